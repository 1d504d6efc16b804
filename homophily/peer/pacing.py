"""How a real peer keeps step with the others: which peers it waits for, and how long."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from homophily.peer.membership import Announcer, Members

_A_WHILE = 1.0  # seconds


@dataclass(frozen=True)
class SyncPolicy:
    """How peers keep step. lockstep: everyone waits for everyone; else nobody waits beyond a deadline."""

    lockstep: bool
    deadline: float  # seconds
    staleness: int  # rounds that a model may be old
    wait_for: int  # others that must be online before the first round
    hello: float  # seconds that a peer that comes back waits for a status of anyone
    far: dict[str, int] | None = None  # hops to each of the others that must be online, if they are known

    @property
    def ahead(self) -> int:
        """Rounds that a peer may be ahead of most of the others, at a free pace."""
        return max(1, (self.staleness - 1) // 2)

    @property
    def behind(self) -> int:
        """Rounds that a peer may be behind, so that the model of the last is still fresh enough for the first."""
        return max(0, self.staleness - 1 - self.ahead)


class Pacing:
    """Waits for the others, by the statuses that they announce."""

    def __init__(
        self, policy: SyncPolicy, members: Members, announcer: Announcer, names: Sequence[str], log: logging.Logger
    ) -> None:
        """names: of the other peers that are allowed."""
        self.policy, self._members, self._announcer, self._names = policy, members, announcer, names
        self._log = log

    def come_together(self, round: int, waiting: Callable[[], None] = lambda: None) -> None:
        """Before the first round, wait for enough others, however long; a peer that comes back waits for anyone.

        waiting: called at once, and every second while it waits for the others.
        """
        self._announcer.announce(merged=round)
        waiting()
        if round == 0 and self.policy.wait_for:
            missing: list[str] = []
            while not self._members.wait(self._together, _A_WHILE):
                waiting()
                online = self._members.hops()
                if missing != (missing := [name for name in self._names if name not in online]):
                    wanted, offline = self.policy.wait_for, ", ".join(missing)
                    self._log.info("this peer waits until %d others are online; offline: %s", wanted, offline)
        elif self._names:
            self._members.wait(lambda: bool(self._members.alive()), self.policy.hello)

    def _together(self) -> bool:
        hops = self._members.hops()
        return len(hops) >= self.policy.wait_for if self.policy.far is None else hops == self.policy.far

    def next_round_after(self, round: int, last: int, behind: int) -> int:
        """The round to go on from: this peer's own, or that of the others if it is more than that many behind.

        At a free pace a peer that is ahead of most of the others waits for them a while.
        """
        if not self.policy.lockstep:
            slow = round + 1 - self.policy.ahead
            self._members.wait(
                lambda: not self._members.playing() or self._members.current_round() >= slow, self.policy.deadline
            )
        current = min(self._members.current_round(), last) - 1
        if current - round <= behind:
            return round
        self._log.info("this peer skips rounds %d to %d: half of the others are past them", round + 1, current)
        self._announcer.announce(merged=current)
        return current

    def wait(self, ready: Callable[[str], bool], deadline: float, names: Sequence[str] | None = None) -> None:
        """Wait until every peer that is online (of those named) is ready or has finished, or until the deadline."""

        def enough() -> bool:
            alive = self._members.alive()
            waited_for = alive if names is None else set(alive) & set(names)
            return all(self._members.status(name).finished or ready(name) for name in waited_for)

        self._members.wait(enough, max(0.0, deadline - time.monotonic()))

    def linger(self) -> None:
        """Others may still need the last model: stay until all have finished, or none merges within the deadline."""
        members = self._members

        def far() -> list[tuple[str, int]]:
            statuses = {name: members.status(name) for name in members.alive()}
            return [(name, status.merged) for name, status in statuses.items() if not status.finished]

        before: list[tuple[str, int]] | None = None
        while before != (before := far()) and not members.wait(lambda: not far(), self.policy.deadline):
            pass
