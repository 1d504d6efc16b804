"""How a real peer synchronises with the others: which peers it waits for, and how long."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from homophily.peer.membership import Announcer, Members

_CHECK_SECONDS = 1.0  # seconds


@dataclass(frozen=True)
class SyncPolicy:
    """How peers synchronise. lockstep: every peer waits for all others; otherwise none waits beyond a deadline."""

    lockstep: bool
    deadline: float  # seconds
    staleness: int  # age in rounds that a model may have
    wait_for: int  # others that must be online before the first round
    rejoin_seconds: float  # a peer that rejoins waits this long for the first status of another peer
    expected_hops: dict[str, int] | None = None  # hops to each peer that must be online, if they are known

    @property
    def ahead(self) -> int:
        """Rounds that a peer may be ahead of another, for which it waits otherwise, if it is not in lockstep."""
        return max(1, (self.staleness - 1) // 2)

    @property
    def behind(self) -> int:
        """Rounds that a peer may be behind the median of the others.

        With more, the fastest peer could not use the slowest peer's model any more (``staleness``).
        """
        return max(0, self.staleness - 1 - self.ahead)


class Pacing:
    """Waits for the others, by the statuses that they announce."""

    def __init__(
        self, policy: SyncPolicy, members: Members, announcer: Announcer, names: Sequence[str], log: logging.Logger
    ) -> None:
        """names: of the other peers that are allowed."""
        self.policy, self._members, self._announcer, self._names = policy, members, announcer, names
        self._log = log
        self._too_slow: dict[str, int] = {}  # peers that were waited for in vain, and the round they had trained then

    def wait_for_start(self, round: int, waiting: Callable[[], None] = lambda: None) -> None:
        """Before the first round, wait without a limit until enough other peers are online.

        A peer that rejoins waits for one other, for at most ``rejoin_seconds``. waiting: called at once, and every
        second during the wait.
        """
        self._announcer.announce(merged=round)
        waiting()
        if round == 0 and self.policy.wait_for:
            missing: list[str] = []
            while not self._members.wait(self._together, _CHECK_SECONDS):
                waiting()
                online = self._members.hops()
                if missing != (missing := [name for name in self._names if name not in online]):
                    offline = ", ".join(missing)
                    self._log.info(
                        "this peer waits for %d other peers to be online (peer.wait_for); offline: %s",
                        self.policy.wait_for,
                        offline,
                    )
        elif self._names:
            self._members.wait(lambda: bool(self._members.alive()), self.policy.rejoin_seconds)

    def _together(self) -> bool:
        """Whether enough peers are online.

        Enough are ``wait_for`` of them or, if the topology is known, every expected peer at its expected distance.
        """
        hops = self._members.hops()
        return (
            len(hops) >= self.policy.wait_for
            if self.policy.expected_hops is None
            else hops == self.policy.expected_hops
        )

    def catch_up(self, finished: int, rounds: int, max_behind: int) -> int:
        """Return the number of rounds that count as finished: ``finished``, or more if this peer skips rounds.

        A peer skips rounds if it is more than ``max_behind`` rounds behind half of the others; ``rounds``, the last
        round, is never skipped. Unless in lockstep, a peer first waits for those that are too far behind it.
        """
        if not self.policy.lockstep:
            self._wait_for_slower(finished + 1 - self.policy.ahead)
        current = min(self._members.current_round(), rounds) - 1
        if current - finished <= max_behind:
            return finished
        self._log.info(
            "this peer skips rounds %d to %d: half of the other peers have passed them", finished + 1, current
        )
        self._announcer.announce(merged=current)
        return current

    def _wait_for_slower(self, round: int) -> None:
        """Wait until all have reached a round: for at most ``deadline`` seconds times the share of those that have not.

        A peer that was waited for in vain is waited for again when it has trained another round. A peer that is far
        too slow therefore costs the others one wait for each of its rounds, and not one for each of theirs.
        """
        began = time.monotonic()

        def limit() -> float:
            return self.policy.deadline * len(self._slower_than(round)) / max(1, len(self._members.playing()))

        self._members.wait(lambda: time.monotonic() - began >= limit(), limit())
        self._too_slow |= {name: self._members.status(name).trained for name in self._slower_than(round)}

    def _slower_than(self, round: int) -> list[str]:
        """The peers that have not reached a round, except those that are too slow."""
        statuses = {name: self._members.status(name) for name in self._members.playing()}
        return [
            name
            for name, status in statuses.items()
            if status.round < round and self._too_slow.get(name) != status.trained
        ]

    def wait(self, ready: Callable[[str], bool], until: float, names: Sequence[str] | None = None) -> None:
        """Wait until every peer that is online (of those named) is ready or has finished.

        until: the latest time to wait, by ``time.monotonic()``.
        """

        def enough() -> bool:
            alive = self._members.alive()
            waited_for = alive if names is None else set(alive) & set(names)
            return all(self._members.status(name).finished or ready(name) for name in waited_for)

        self._members.wait(enough, max(0.0, until - time.monotonic()))

    def linger(self) -> None:
        """Stay online after the last round, because other peers may still need this peer's model.

        Return when all have finished, or when none of them has made progress for ``deadline`` seconds.
        """
        members = self._members

        def unfinished() -> list[tuple[str, int]]:
            statuses = {name: members.status(name) for name in members.alive()}
            return [(name, status.merged) for name, status in statuses.items() if not status.finished]

        before: list[tuple[str, int]] | None = None
        while before != (before := unfinished()) and not members.wait(lambda: not unfinished(), self.policy.deadline):
            pass
