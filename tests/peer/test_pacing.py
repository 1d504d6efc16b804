"""Which peers a peer waits for, and how long, according to the statuses of the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from homophily.peer.logs import peer_logger
from homophily.peer.membership import Announcer, Members, Status
from homophily.peer.pacing import Pacing, SyncPolicy

OTHERS = ["ann", "bob", "cy"]
LOG = peer_logger("me")
SHORT = 0.2  # seconds, of a wait that must end by its deadline
LONG = 60.0  # seconds, of a wait that must end before its deadline


def policy(**changes: Any) -> SyncPolicy:
    keys = {"lockstep": False, "deadline": LONG, "staleness": 3, "wait_for": 0, "rejoin_seconds": LONG}
    return SyncPolicy(**{**keys, **changes})


class Federation:
    """A peer's pacing in a full mesh of four, the others' statuses made by the test."""

    def __init__(self, **changes: Any) -> None:
        self.members = Members("me", ["me", *OTHERS], True, frozenset)
        self.announced: list[Status] = []
        announcer = Announcer(self.announced.append, frozenset, 60.0)
        self.pacing = Pacing(policy(**changes), self.members, announcer, OTHERS, LOG)
        self._time = 0

    def says(self, name: str, **status: Any) -> None:
        """A peer is online and has this status."""
        self._time += 1
        self.members.connected(name)
        self.members.update(name, Status(time=self._time, **status))


@contextmanager
def later(action: Callable[[], None]) -> Iterator[None]:
    """Something happens while the test waits."""
    timer = threading.Timer(0.05, action)
    timer.start()
    yield
    timer.join()


def seconds(wait: Callable[[], Any]) -> float:
    began = time.monotonic()
    wait()
    return time.monotonic() - began


# The policy


@pytest.mark.parametrize(
    ("staleness", "ahead", "behind"), [(0, 1, 0), (1, 1, 0), (2, 1, 0), (3, 1, 1), (5, 2, 2), (6, 2, 3), (10, 4, 5)]
)
def test_a_staleness_is_split_into_rounds_ahead_and_rounds_behind(staleness: int, ahead: int, behind: int) -> None:
    assert (policy(staleness=staleness).ahead, policy(staleness=staleness).behind) == (ahead, behind)


@pytest.mark.parametrize("staleness", range(2, 40))
def test_the_model_of_the_last_peer_is_fresh_enough_for_the_first(staleness: int) -> None:
    """The first is a round further yet when it asks."""
    assert policy(staleness=staleness).ahead + policy(staleness=staleness).behind + 1 <= staleness


# Before the first round


def test_nobody_is_waited_for_if_nobody_need_be_online() -> None:
    federation = Federation(rejoin_seconds=SHORT)
    waits: list[int] = []
    federation.says("ann")
    assert seconds(lambda: federation.pacing.wait_for_start(0, lambda: waits.append(1))) < LONG / 2
    assert waits == [1]
    assert [status.merged for status in federation.announced] == [0]


def test_the_first_round_begins_when_enough_others_are_online() -> None:
    federation = Federation(wait_for=2)
    federation.says("ann")
    with later(lambda: federation.says("cy")):
        federation.pacing.wait_for_start(0)
    assert set(federation.members.alive()) == {"ann", "cy"}


def test_while_it_waits_a_peer_says_so_every_second_and_logs_who_is_offline_when_that_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("homophily.peer.pacing._CHECK_SECONDS", 0.01)
    logged: list[str] = []
    monkeypatch.setattr(LOG, "info", lambda text, *a: logged.append(text % a))
    federation = Federation(wait_for=2)
    waits: list[int] = []
    federation.says("ann")

    def waiting() -> None:
        waits.append(len(waits))
        if len(waits) == 5:
            federation.says("cy")

    federation.pacing.wait_for_start(0, waiting)
    assert len(waits) == 5
    assert logged == [
        f"this peer waits for 2 other peers to be online (peer.wait_for); offline: {names}"
        for names in ("bob, cy", "bob")
    ]


def test_with_known_distances_exactly_these_peers_are_waited_for() -> None:
    federation = Federation(wait_for=1, expected_hops={"ann": 1, "bob": 1})
    federation.says("ann")
    federation.says("cy")

    def change() -> None:
        federation.says("bob")
        federation.members.disconnected("cy")

    with later(change):
        federation.pacing.wait_for_start(0)
    assert federation.members.hops() == {"ann": 1, "bob": 1}


def test_a_peer_that_comes_back_waits_for_anyone_and_not_for_long() -> None:
    federation = Federation(wait_for=3)
    with later(lambda: federation.says("bob", trained=9)):
        federation.pacing.wait_for_start(7)
    assert [status.merged for status in federation.announced] == [7]
    alone = Federation(wait_for=3, rejoin_seconds=SHORT)
    assert SHORT <= seconds(lambda: alone.pacing.wait_for_start(7)) < LONG / 2


# From round to round


def test_a_peer_in_step_goes_on_from_its_own_round() -> None:
    federation = Federation()
    federation.says("ann", trained=4)
    assert federation.pacing.catch_up(4, 10, 0) == 4
    assert Federation().pacing.catch_up(4, 10, 0) == 4  # alone
    assert federation.announced == []


@pytest.mark.parametrize("lockstep", [True, False])
def test_a_peer_that_is_too_far_behind_goes_on_from_the_round_of_the_others(lockstep: bool) -> None:
    federation = Federation(lockstep=lockstep)
    for name, trained in (("ann", 8), ("bob", 9), ("cy", 100)):
        federation.says(name, trained=trained)
    assert federation.pacing.catch_up(6, 20, 2) == 6
    assert federation.announced == []
    assert federation.pacing.catch_up(5, 20, 2) == 8
    assert [status.merged for status in federation.announced] == [8]


def test_a_peer_that_catches_up_still_plays_the_last_round() -> None:
    federation = Federation()
    federation.says("ann", trained=100)
    assert federation.pacing.catch_up(3, 20, 0) == 19


def test_finished_peers_are_not_caught_up_with() -> None:
    federation = Federation()
    federation.says("ann", trained=20, finished=True)
    assert federation.pacing.catch_up(3, 20, 0) == 3


def test_at_a_free_pace_a_peer_that_is_ahead_waits_for_the_others() -> None:
    federation = Federation(staleness=3)  # one round ahead is enough
    federation.says("ann", trained=3)
    with later(lambda: federation.says("ann", trained=5)):
        assert federation.pacing.catch_up(5, 20, 1) == 5
    assert federation.members.status("ann").trained == 5


def test_at_a_free_pace_a_peer_that_is_ahead_waits_no_longer_than_the_deadline() -> None:
    federation = Federation(staleness=3, deadline=SHORT)
    federation.says("ann", trained=3)
    assert SHORT <= seconds(lambda: federation.pacing.catch_up(5, 20, 1)) < LONG / 2


def test_at_a_free_pace_the_slowest_of_three_is_waited_for() -> None:
    federation = Federation(staleness=3)
    federation.says("ann", trained=5)
    federation.says("bob", trained=4)
    with later(lambda: federation.says("bob", trained=5)):
        assert federation.pacing.catch_up(5, 20, 1) == 5
    assert federation.members.status("bob").trained == 5


@pytest.mark.parametrize("slow", [["ann"], ["ann", "bob"]])
def test_the_wait_is_the_share_of_the_deadline_that_the_slower_peers_are_of_all(slow: list[str]) -> None:
    third = 0.5  # seconds
    federation = Federation(staleness=3, deadline=3 * third)
    for name in OTHERS:
        federation.says(name, trained=3 if name in slow else 5)
    took = seconds(lambda: federation.pacing.catch_up(5, 20, 1))
    assert len(slow) * third <= took < (len(slow) + 0.9) * third


def test_a_finished_peer_and_one_that_disconnects_are_not_waited_for() -> None:
    federation = Federation(staleness=3)
    federation.says("ann", trained=3, finished=True)
    federation.says("bob", trained=3)
    with later(lambda: federation.members.disconnected("bob")):
        assert seconds(lambda: federation.pacing.catch_up(5, 20, 1)) < LONG / 2


def test_a_peer_waited_for_in_vain_is_waited_for_again_when_it_has_trained_another_round() -> None:
    federation = Federation(staleness=3, deadline=SHORT)
    federation.says("ann", trained=3)
    waits = []
    for round, trained in ((5, 3), (6, 3), (7, 3), (8, 4), (9, 4)):
        federation.says("ann", trained=trained)
        waits.append(seconds(lambda round=round: federation.pacing.catch_up(round, 20, 1)) >= SHORT)
    assert waits == [True, False, False, True, False]


# In a round


def soon(span: float) -> float:
    return time.monotonic() + span


def test_everyone_who_is_online_is_waited_for() -> None:
    federation = Federation()
    federation.says("ann", trained=2)
    federation.says("bob", trained=1)
    with later(lambda: federation.says("bob", trained=2)):
        federation.pacing.wait(lambda name: federation.members.status(name).trained >= 2, soon(LONG))
    assert federation.members.status("bob").trained == 2


@pytest.mark.parametrize("event", ["finishes", "disconnects"])
def test_a_peer_that_has_finished_or_is_gone_is_not_waited_for(event: str) -> None:
    federation = Federation()
    federation.says("ann", trained=2)
    federation.says("bob", trained=1)
    ends = {
        "finishes": lambda: federation.says("bob", trained=1, finished=True),
        "disconnects": lambda: federation.members.disconnected("bob"),
    }
    with later(ends[event]):
        took = seconds(lambda: federation.pacing.wait(lambda name: name == "ann", soon(LONG)))
    assert took < LONG / 2


def test_only_those_named_are_waited_for() -> None:
    federation = Federation()
    federation.says("ann", trained=2)
    federation.says("bob", trained=1)

    def ready(name: str) -> bool:
        return federation.members.status(name).trained >= 2

    assert seconds(lambda: federation.pacing.wait(ready, soon(LONG), ["ann", "cy"])) < LONG / 2
    assert SHORT / 2 <= seconds(lambda: federation.pacing.wait(ready, soon(SHORT), ["bob"])) < LONG / 2


def test_after_the_deadline_nobody_is_waited_for() -> None:
    federation = Federation()
    federation.says("ann")
    assert seconds(lambda: federation.pacing.wait(lambda name: False, soon(-1.0))) < LONG / 2


# After the last round


def test_a_finished_peer_stays_until_everyone_has_finished() -> None:
    federation = Federation()
    federation.says("ann", merged=20, finished=True)
    federation.says("bob", merged=19)
    with later(lambda: federation.says("bob", merged=20, finished=True)):
        federation.pacing.linger()
    assert federation.members.status("bob").finished


def test_a_finished_peer_alone_does_not_stay() -> None:
    assert seconds(Federation().pacing.linger) < LONG / 2


def test_a_finished_peer_does_not_stay_for_others_that_get_no_further() -> None:
    federation = Federation(deadline=SHORT)
    federation.says("ann", merged=3)
    assert SHORT <= seconds(federation.pacing.linger) < LONG / 2


def test_a_finished_peer_stays_while_others_get_further() -> None:
    federation = Federation(deadline=2 * SHORT)
    federation.says("ann", merged=3)
    with later(lambda: federation.says("ann", merged=4)):
        took = seconds(federation.pacing.linger)
    assert took >= 4 * SHORT, "a second deadline began after the round that was merged during the first"
