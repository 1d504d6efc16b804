"""Membership: which peers are online, in which round, and over which neighbour each is reached.

Every peer announces a signed status of itself to all others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import networkx as nx

from homophily.peer.identity import Authority, Identity, Refused
from homophily.peer.manifest import MOST_ROUNDS

_ROUNDS = (0, MOST_ROUNDS)
_WELL_AFTER = 3600 * 10**9  # nanoseconds, in which a peer surely saves its state
SILENCE = 30.0  # seconds, in which a peer that is online announces its status many times
_LONG_WAY = 10 * 10**9  # nanoseconds that a status may be older than the last one: it may come over a longer route
_LONGEST_PLAN = 200
_BOUNDS = {"time": (0, 1 << 62), "trained": _ROUNDS, "merged": _ROUNDS, "printed": (-1, MOST_ROUNDS)}


@dataclass(frozen=True)
class Status:
    """What a peer announces of itself. trained, merged: the last round in which it has; time only grows."""

    time: int = 0
    trained: int = 0
    merged: int = 0
    printed: int = -1  # the round that its fingerprint is of; -1: none yet
    finished: bool = False
    neighbours: tuple[str, ...] = ()
    plan: str = ""  # method, merge and rounds, in words: only to find files that differ

    @property
    def round(self) -> int:
        """The last round in which it has trained or merged; a peer that comes back has merged, and not trained yet."""
        return max(self.trained, self.merged)


def seal(status: Status, federation: str, identity: Identity) -> bytes:
    return identity.seal({"federation": federation, "status": asdict(status)})


def opened(sealed: bytes, authority: Authority, federation: str, most: int) -> tuple[str, Status]:
    """The name of a peer and its status, every field checked; most: neighbours a peer may have. Raises Refused."""
    body = authority.open(sealed)
    status = body.get("status")
    if body.get("federation") != federation:
        raise Refused("message of another federation")
    if not isinstance(status, dict) or set(status) != set(Status.__dataclass_fields__):
        raise Refused("malformed status")
    for key, (least, highest) in _BOUNDS.items():
        if type(status[key]) is not int or not least <= status[key] <= highest:
            raise Refused("malformed status")
    names = status["neighbours"]
    if type(status["finished"]) is not bool or not isinstance(names, list) or len(names) > most:
        raise Refused("malformed status")
    plan = status["plan"]
    if not all(isinstance(name, str) for name in names) or not isinstance(plan, str):
        raise Refused("malformed status")
    if len(plan) > _LONGEST_PLAN or not plan.isprintable():
        raise Refused("malformed status")
    return str(body["origin"]), Status(**{**status, "neighbours": tuple(names)})


@dataclass
class _Member:
    alive: bool = False
    spoken: bool = False  # it has announced a status since it connected
    heard: float = 0.0  # when it last did, by the monotonic clock
    status: Status = field(default_factory=Status)

    def speaks(self, silence: float) -> bool:
        return self.spoken and time.monotonic() - self.heard < silence


class _Map:
    """The graph of links that both ends announce as neighbours. A peer that disconnected has none."""

    def __init__(self, me: str, said: dict[str, frozenset[str]]) -> None:
        self._me, self.said = me, said
        self._graph = nx.Graph()
        self._graph.add_nodes_from([me, *sorted(said)])
        self._graph.add_edges_from((a, b) for a in sorted(said) for b in sorted(said[a]) if a in said.get(b, ()))
        far = nx.single_source_shortest_path_length(self._graph, me)
        self.hops = {name: hops for name, hops in far.items() if hops}

    def towards(self, name: str, avoiding: Collection[str]) -> str | None:
        """This peer's neighbour on the shortest route to a peer, not one of those to avoid; None: there is no route."""
        graph = nx.restricted_view(self._graph, [], [(self._me, other) for other in avoiding])
        try:
            return str(nx.shortest_path(graph, self._me, name)[1])
        except (nx.NodeNotFound, nx.NetworkXNoPath):
            return None


class Members:
    """What is known of the other peers, by name. Threads that bring news wake those that wait for them.

    silence: a peer without a valid status for this many seconds counts as offline.
    """

    def __init__(
        self,
        me: str,
        allowed: Collection[str],
        full: bool,
        neighbours: Callable[[], frozenset[str]],
        silence: float = SILENCE,
    ) -> None:
        self._me, self.full, self._neighbours, self._silence = me, full, neighbours, silence
        self._others = {name: _Member() for name in sorted(allowed) if name != me}
        self._news = threading.Condition()
        self._map = _Map(me, {})

    def came(self, name: str) -> None:
        self._alive(name, True)

    def went(self, name: str) -> None:
        self._alive(name, False)

    def _alive(self, name: str, alive: bool) -> None:
        """A peer that disconnects loses its status: it may not have its published models when it comes back."""
        with self._news:
            member = self._others.get(name)
            if member is not None:
                member.alive = alive
                if not alive:
                    member.spoken, member.status = False, Status(time=member.status.time)
                self._news.notify_all()

    def update(self, name: str, status: Status) -> bool:
        """Take a status; returns whether it is new. One much older than the last is refused: someone replays it."""
        with self._news:
            member = self._others.get(name)
            if member is None:
                return False
            if status.time < member.status.time - _LONG_WAY:
                raise Refused("replayed status")
            if status.time <= member.status.time:
                return False
            member.spoken, member.status, member.heard = True, status, time.monotonic()
            self._news.notify_all()
            return True

    def status(self, name: str) -> Status:
        return self._others[name].status

    def alive(self) -> list[str]:
        """The peers that are online now, near or far, and have announced a status."""
        return list(self.hops())

    def wait(self, enough: Callable[[], bool], seconds: float) -> bool:
        """Wait until ``enough`` is true; it is called again with all news. False: the time was over."""
        with self._news:
            return self._news.wait_for(enough, seconds)

    def hops(self) -> dict[str, int]:
        """Hops to each peer that messages can reach, by name."""
        if self.full:
            return {name: 1 for name, member in self._others.items() if member.alive and member.speaks(self._silence)}
        return dict(self._drawn().hops)

    def towards(self, name: str, avoiding: Collection[str] = ()) -> str | None:
        """The neighbour nearest to a peer, not one of those to avoid; None: there is no route."""
        if self.full:
            return name if name not in avoiding else None
        return self._drawn().towards(name, avoiding)

    def _drawn(self) -> _Map:
        """The graph, made anew only when the neighbours of a peer have changed."""
        said = {name: frozenset(m.status.neighbours) for name, m in self._others.items() if m.speaks(self._silence)}
        said[self._me] = self._neighbours()
        found = self._map
        if said != found.said:
            found = self._map = _Map(self._me, said)
        return found

    def playing(self) -> list[str]:
        """The peers that are online now and have not finished."""
        return [name for name in self.alive() if not self.status(name).finished]

    def current_round(self) -> int:
        """The round that half of the other peers that still play have reached; 0: none plays."""
        rounds = sorted(status.round for status in map(self.status, self.playing()))
        return rounds[len(rounds) // 2] if rounds else 0


class Announcer:
    """Announces this peer's status: when it changes, when a peer connects or disconnects, and every few seconds."""

    def __init__(
        self, tell: Callable[[Status], None], neighbours: Callable[[], frozenset[str]], every: float, plan: str = ""
    ) -> None:
        self._tell, self._neighbours, self._every = tell, neighbours, every
        self._status, self._lock = Status(plan=plan[:_LONGEST_PLAN]), threading.Lock()
        self._due, self._over = threading.Event(), False
        self._thread = threading.Thread(target=self._repeat, daemon=True)

    @property
    def plan(self) -> str:
        return self._status.plan

    @property
    def last(self) -> int:
        """The time of the last status."""
        return self._status.time

    def go_on_after(self, last: int) -> None:
        """Others know a status of that time: if the clock was set back, statuses go on well after it."""
        if time.time_ns() <= last:
            self._status = replace(self._status, time=last + _WELL_AFTER)

    def start(self) -> None:
        self._thread.start()

    def announce(self, **changes: Any) -> None:
        with self._lock:
            known = {**asdict(self._status), **changes}
            names = tuple(sorted(self._neighbours()))
            now = max(time.time_ns(), self._status.time + 1)  # clocks are set back
            self._status = Status(**{**known, "time": now, "neighbours": names})
            self._tell(self._status)

    def soon(self) -> None:
        """Announce from another thread: for callers that must not wait for the network."""
        self._due.set()

    def _repeat(self) -> None:
        while True:
            self._due.wait(self._every)
            if self._over:
                return
            self._due.clear()
            self.announce()

    def stop(self) -> None:
        self._over = True
        self._due.set()
        if self._thread.ident is not None:  # it was started
            self._thread.join()
