"""Membership: which peers are online, which round each is in, and over which neighbour each is reached.

Every peer announces its signed status to all other peers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import networkx as nx

from homophily.peer.identity import Authority, Identity, Refused
from homophily.peer.manifest import MAX_ROUNDS
from homophily.peer.membership_document import MAX_MEMBERS
from homophily.peer.protocol import Settings, read_settings
from homophily.version import __version__

_ROUNDS = (0, MAX_ROUNDS)
_CLOCK_JUMP = 3600 * 10**9  # nanoseconds, longer than a peer runs without saving its state
OFFLINE_SECONDS = 30.0  # a peer without a valid status for this long counts as offline
_REPLAY_TOLERANCE = 10 * 10**9  # nanoseconds: a status that took a longer route comes late
_PLAN_CHARS, _SOFTWARE_CHARS = 200, 40
_BOUNDS = {"time": (0, 1 << 62), "trained": _ROUNDS, "merged": _ROUNDS, "printed": (-1, MAX_ROUNDS)}


@dataclass(frozen=True)
class Status:
    """What a peer announces about itself. time increases; trained, merged: the last round in which it did."""

    time: int = 0
    trained: int = 0
    merged: int = 0
    printed: int = -1  # the round that its fingerprint is of; -1: none yet
    finished: bool = False
    neighbours: tuple[str, ...] = ()
    plan: str = ""  # method, merge, rounds and constants as a phrase: for peers of protocol version 1
    settings: Settings = ()  # those that all peers must share: only used to report files that differ
    software: str = ""  # version of homophily; empty: not announced

    @property
    def round(self) -> int:
        """The last round in which it has trained or merged; a peer that comes back has merged, and not trained yet."""
        return max(self.trained, self.merged)


_BESIDE = ("settings", "software")  # beside the status: peers of protocol version 1 know its other fields only
_FIELDS = set(Status.__dataclass_fields__) - set(_BESIDE)


def seal_status(status: Status, federation: str, identity: Identity) -> bytes:
    fields = asdict(status)
    settings, software = (fields.pop(key) for key in _BESIDE)
    return identity.seal({"federation": federation, "status": fields, "settings": dict(settings), "software": software})


def open_status(sealed: bytes, authority: Authority, federation: str) -> tuple[str, Status]:
    """The name of a peer and its status, every field checked. Raises Refused."""
    body = authority.open(sealed)
    status = body.get("status")
    if body.get("federation") != federation:
        raise Refused("message of another federation")
    if not isinstance(status, dict) or set(status) != _FIELDS:
        raise Refused("malformed status")
    for key, (least, highest) in _BOUNDS.items():
        if type(status[key]) is not int or not least <= status[key] <= highest:
            raise Refused("malformed status")
    names = status["neighbours"]
    if type(status["finished"]) is not bool or not isinstance(names, list) or len(names) > MAX_MEMBERS:
        raise Refused("malformed status")
    plan = status["plan"]
    if not all(isinstance(name, str) for name in names) or not isinstance(plan, str):
        raise Refused("malformed status")
    if len(plan) > _PLAN_CHARS or not plan.isprintable():
        raise Refused("malformed status")
    settings, software = read_settings(body.get("settings", {})), body.get("software", "")
    if settings is None:
        raise Refused("malformed settings")
    if not isinstance(software, str) or len(software) > _SOFTWARE_CHARS or not software.isprintable():
        raise Refused("malformed status")
    beside = {"settings": settings, "software": software}
    return str(body["origin"]), Status(**{**status, "neighbours": tuple(names), **beside})


@dataclass
class _Member:
    alive: bool = False
    announced: bool = False  # it has announced a status since it connected
    last_heard: float = 0.0  # when it last did, by the monotonic clock
    status: Status = field(default_factory=Status)

    def is_online(self, offline_seconds: float) -> bool:
        return self.announced and time.monotonic() - self.last_heard < offline_seconds


class _LinkGraph:
    """The graph of links that both ends announce as neighbours. A peer that disconnected has none."""

    def __init__(self, me: str, announced: dict[str, frozenset[str]]) -> None:
        self._me, self.announced = me, announced
        self._graph = nx.Graph()
        self._graph.add_nodes_from([me, *sorted(announced)])
        self._graph.add_edges_from(
            (a, b) for a in sorted(announced) for b in sorted(announced[a]) if a in announced.get(b, ())
        )
        far = nx.single_source_shortest_path_length(self._graph, me)
        self.hops = {name: hops for name, hops in far.items() if hops}

    def next_hop(self, name: str, avoiding: Collection[str]) -> str | None:
        """The neighbour on the shortest route to a peer that avoids some neighbours; None if there is no route."""
        graph = nx.restricted_view(self._graph, [], [(self._me, other) for other in avoiding])
        try:
            return str(nx.shortest_path(graph, self._me, name)[1])
        except (nx.NodeNotFound, nx.NetworkXNoPath):
            return None


class Members:
    """What is known of the other peers, by name. It is thread-safe; changes wake waiting threads.

    offline_seconds: a peer without a valid status for this long counts as offline.
    """

    def __init__(
        self,
        me: str,
        allowed: Collection[str],
        full: bool,
        neighbours: Callable[[], frozenset[str]],
        offline_seconds: float = OFFLINE_SECONDS,
    ) -> None:
        self._me, self.full, self._neighbours, self._offline_seconds = me, full, neighbours, offline_seconds
        self._others = {name: _Member() for name in sorted(allowed) if name != me}
        self._changed = threading.Condition()
        self._graph = _LinkGraph(me, {})

    def connected(self, name: str) -> None:
        self._set_alive(name, True)

    def disconnected(self, name: str) -> None:
        self._set_alive(name, False)

    def _set_alive(self, name: str, alive: bool) -> None:
        """A peer that disconnects loses its status: when it reconnects, it may no longer have its published models."""
        with self._changed:
            member = self._others.get(name)
            if member is not None:
                member.alive = alive
                if not alive:
                    member.announced, member.status = False, Status(time=member.status.time)
                self._changed.notify_all()

    def update(self, name: str, status: Status) -> bool:
        """Record a status; returns whether it is new. Raises Refused if it is replayed: much older than the last."""
        with self._changed:
            member = self._others.get(name)
            if member is None:
                return False
            if status.time < member.status.time - _REPLAY_TOLERANCE:
                raise Refused("replayed status")
            if status.time <= member.status.time:
                return False
            member.announced, member.status, member.last_heard = True, status, time.monotonic()
            self._changed.notify_all()
            return True

    def status(self, name: str) -> Status:
        return self._others[name].status

    def ages(self) -> dict[str, float]:
        """Seconds since the last status of each peer that has announced one since it connected."""
        now = time.monotonic()
        return {name: now - one.last_heard for name, one in self._others.items() if one.announced}

    def alive(self) -> list[str]:
        """The peers that are online now, at any distance."""
        return list(self.hops())

    def wait(self, enough: Callable[[], bool], seconds: float) -> bool:
        """Wait until ``enough`` is true; it is called again after every change. Returns False after a timeout."""
        with self._changed:
            return self._changed.wait_for(enough, seconds)

    def hops(self) -> dict[str, int]:
        """Hops to each peer that messages can reach, by name."""
        if self.full:
            return {
                name: 1
                for name, member in self._others.items()
                if member.alive and member.is_online(self._offline_seconds)
            }
        return dict(self._current_graph().hops)

    def next_hop(self, name: str, avoiding: Collection[str] = ()) -> str | None:
        """The neighbour nearest to a peer that is not one of those to avoid; None if there is no route."""
        if self.full:
            return name if name not in avoiding else None
        return self._current_graph().next_hop(name, avoiding)

    def _current_graph(self) -> _LinkGraph:
        """The graph of links, rebuilt only when the neighbours of a peer have changed."""
        announced = {
            name: frozenset(m.status.neighbours)
            for name, m in self._others.items()
            if m.is_online(self._offline_seconds)
        }
        announced[self._me] = self._neighbours()
        found = self._graph
        if announced != found.announced:
            found = self._graph = _LinkGraph(self._me, announced)
        return found

    def playing(self) -> list[str]:
        """The peers that are online now and have not finished."""
        return [name for name in self.alive() if not self.status(name).finished]

    def current_round(self) -> int:
        """The round that half of the other unfinished peers have reached; 0 if there are none."""
        rounds = sorted(status.round for status in map(self.status, self.playing()))
        return rounds[len(rounds) // 2] if rounds else 0


class Announcer:
    """Announces this peer's status: when it changes, when a peer connects or disconnects, and every few seconds."""

    def __init__(
        self,
        send: Callable[[Status], None],
        neighbours: Callable[[], frozenset[str]],
        every: float,
        plan: str = "",
        settings: Settings = (),
    ) -> None:
        self._send, self._neighbours, self._every = send, neighbours, every
        self._status = Status(plan=plan[:_PLAN_CHARS], settings=settings, software=__version__)
        self._lock = threading.Lock()
        self._wake, self._stopped = threading.Event(), False
        self._thread = threading.Thread(target=self._announce_repeatedly, daemon=True)

    @property
    def settings(self) -> Settings:
        return self._status.settings

    @property
    def plan(self) -> str:
        return self._status.plan

    @property
    def status(self) -> Status:
        return self._status

    def continue_from(self, status: Status) -> None:
        """Continue after the status that another announcer of this peer sent last."""
        self._status = replace(status, plan=self._status.plan, settings=self._status.settings)

    @property
    def last(self) -> int:
        """The time of the last status."""
        return self._status.time

    def continue_after(self, last: int) -> None:
        """Announce only later times than ``last``, which other peers know, even if the clock was set back."""
        if time.time_ns() <= last:
            self._status = replace(self._status, time=last + _CLOCK_JUMP)

    def start(self) -> None:
        self._thread.start()

    def announce(self, **changes: Any) -> None:
        with self._lock:
            names = tuple(sorted(self._neighbours()))
            now = max(time.time_ns(), self._status.time + 1)  # the clock may have been set back
            self._status = replace(self._status, **changes, time=now, neighbours=names)
            self._send(self._status)

    def announce_soon(self) -> None:
        """Announce from another thread: for callers that must not wait for the network."""
        self._wake.set()

    def _announce_repeatedly(self) -> None:
        while True:
            self._wake.wait(self._every)
            if self._stopped:
                return
            self._wake.clear()
            self.announce()

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()
        if self._thread.ident is not None:  # it was started
            self._thread.join()
