"""Which peers are online, how far away and over which neighbour, according to the statuses of the peers."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homophily.peer import membership
from homophily.peer.identity import Refused
from homophily.peer.manifest import MAX_ROUNDS
from homophily.peer.membership import Announcer, Members, Status
from homophily.peer.membership_document import MAX_MEMBERS
from tests.patience import PATIENCE, eventually, until
from tests.peer.people import FEDERATION, People

SECOND = 10**9


def village(links: Sequence[tuple[str, str]], me: str = "a", extra: Sequence[str] = ()) -> Members:
    """What ``me`` knows where everyone speaks of its links."""
    names = sorted({name for pair in links for name in pair} | {me, *extra})
    near = {name: frozenset(b if a == name else a for a, b in links if name in (a, b)) for name in names}
    made = Members(me, names, False, lambda: near[me])
    for name in names:
        made.update(name, Status(time=SECOND, neighbours=tuple(sorted(near[name]))))
    return made


# A status as it travels


def test_a_status_travels_as_it_is(people: People) -> None:
    status = Status(time=5, trained=3, merged=2, printed=0, finished=True, neighbours=("bob", "carol"), plan="kin")
    sealed = membership.seal_status(status, FEDERATION, people.identity("alice"))
    assert membership.open_status(sealed, people.authority, FEDERATION) == ("alice", status)


@pytest.mark.parametrize(
    "changes",
    [
        {"time": -1},
        {"time": 1.5},
        {"time": True},
        {"time": 1 << 63},
        {"trained": MAX_ROUNDS + 1},
        {"merged": None},
        {"merged": -1},
        {"printed": -2},
        {"printed": "0"},
        {"finished": 1},
        {"neighbours": "bob"},
        {"neighbours": None},
        {"neighbours": [1]},
        {"neighbours": [["bob"]]},
        {"neighbours": ["bob"] * (MAX_MEMBERS + 1)},
        {"plan": 3},
        {"plan": "k" * 201},
        {"plan": "kin\nround 9 of 9"},
        {"more": 1},
        {"finished": ...},
    ],
)
def test_every_field_of_a_status_is_checked(people: People, changes: dict[str, Any]) -> None:
    good = {**asdict(Status(5, 3, 2, 0)), "neighbours": ["bob"]}
    del good["settings"], good["software"]  # they are beside the status
    status = {key: value for key, value in {**good, **changes}.items() if value is not ...}
    alice = people.identity("alice")
    sealed = alice.seal({"federation": FEDERATION, "status": good})
    assert membership.open_status(sealed, people.authority, FEDERATION)[1] == Status(5, 3, 2, 0, neighbours=("bob",))
    sealed = alice.seal({"federation": FEDERATION, "status": status})
    with pytest.raises(Refused, match="malformed status"):
        membership.open_status(sealed, people.authority, FEDERATION)


@pytest.mark.parametrize("software", [7, None, "1" * 41, "0.1\n"])
def test_a_malformed_version_of_the_software_is_refused(people: People, software: Any) -> None:
    status = asdict(Status(5, 3, 2, 0, neighbours=()))
    del status["settings"], status["software"]
    sealed = people.identity("alice").seal(
        {"federation": FEDERATION, "status": {**status, "neighbours": []}, "software": software}
    )
    with pytest.raises(Refused, match="malformed status"):
        membership.open_status(sealed, people.authority, FEDERATION)


@pytest.mark.parametrize("status", [None, [], 3, "status", {}])
def test_a_malformed_status_is_refused(people: People, status: Any) -> None:
    with pytest.raises(Refused, match="malformed status"):
        membership.open_status(
            people.identity("alice").seal({"federation": FEDERATION, "status": status}), people.authority, FEDERATION
        )


def test_a_status_of_another_federation_is_refused(people: People) -> None:
    with pytest.raises(Refused, match="of another federation"):
        membership.open_status(
            membership.seal_status(Status(), "banks", people.identity("alice")), people.authority, FEDERATION
        )


# News


def test_a_status_is_new_once() -> None:
    made = Members("a", ["a", "b"], True, frozenset)
    assert made.update("b", Status(time=2, trained=1))
    assert not made.update("b", Status(time=2, trained=9))
    assert not made.update("b", Status(time=1, trained=9))
    assert made.status("b").trained == 1


def test_a_replayed_status_is_refused_and_changes_nothing() -> None:
    made = Members("a", ["a", "b"], True, frozenset)
    made.update("b", Status(time=100 * SECOND, trained=7))
    with pytest.raises(Refused, match="replayed status"):
        made.update("b", Status(time=50 * SECOND, trained=2, finished=True))
    assert made.status("b") == Status(time=100 * SECOND, trained=7)


def test_a_status_of_oneself_or_of_an_unknown_peer_is_ignored() -> None:
    made = Members("a", ["a", "b"], True, frozenset)
    for name in ("a", "nobody"):
        assert not made.update(name, Status(time=1))
        made.connected(name)
    assert made.alive() == []


# Who is there


def test_in_a_full_mesh_connected_peers_with_a_status_are_online() -> None:
    made = Members("a", ["a", "b", "c"], True, frozenset)
    made.connected("b")
    made.update("c", Status(time=1))
    assert made.alive() == []
    made.update("b", Status(time=1))
    made.connected("c")
    assert made.hops() == {"b": 1, "c": 1}
    made.disconnected("b")
    assert made.alive() == ["c"]
    assert made.next_hop("c") == "c"
    assert made.next_hop("c", ["c"]) is None


def test_a_peer_without_a_recent_valid_status_is_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 100.0
    monkeypatch.setattr("homophily.peer.membership.time.monotonic", lambda: clock)
    made = Members("a", ["a", "b", "c"], True, frozenset, offline_seconds=30.0)
    for name in ("b", "c"):
        made.connected(name)
        made.update(name, Status(time=SECOND, trained=1))
    clock = 120.0
    made.update("c", Status(time=2 * SECOND, trained=9))
    assert made.alive() == ["b", "c"]
    clock = 131.0  # its certificate has ended, say
    assert made.alive() == ["c"]
    assert made.current_round() == 9
    made.update("b", Status(time=3 * SECOND, trained=10))
    assert made.alive() == ["b", "c"]


def test_in_a_partial_mesh_peers_with_a_route_are_online() -> None:
    made = village([("a", "b"), ("b", "c"), ("d", "e")])
    assert made.hops() == {"b": 1, "c": 2}
    assert made.next_hop("c") == "b"
    assert made.next_hop("d") is None
    assert made.next_hop("nobody") is None


def test_a_link_counts_if_both_ends_announce_it() -> None:
    made = village([("a", "b"), ("b", "c")], extra=["liar"])
    made.update("liar", Status(time=2 * SECOND, neighbours=("a", "b", "c", "nobody", "liar")))
    assert "liar" not in made.hops()
    made.update("b", Status(time=2 * SECOND, neighbours=("a",)))
    assert made.hops() == {"b": 1}


def test_a_peer_that_no_neighbour_announces_is_offline() -> None:
    made = village([("a", "b"), ("b", "c"), ("c", "d")])
    assert set(made.alive()) == {"b", "c", "d"}
    made.update("b", Status(time=2 * SECOND, neighbours=("a",)))  # c is gone, and nobody else leads to d
    assert made.alive() == ["b"]


def test_routes_avoid_the_given_neighbours() -> None:
    made = village([("a", "b"), ("b", "z"), ("a", "c"), ("c", "d"), ("d", "z"), ("a", "leaf")])
    assert made.next_hop("z") == "b"
    assert made.next_hop("z", ["b"]) == "c"
    assert made.next_hop("z", ["b", "c"]) is None


NAMES = "abcdefgh"
LINKS = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)).filter(lambda pair: pair[0] != pair[1]))


@given(links=LINKS)
@settings(max_examples=200)
def test_routes_are_shortest_paths(links: list[tuple[str, str]]) -> None:
    made = village(links, extra=NAMES)
    far = nx.single_source_shortest_path_length(nx.Graph([*links, ("a", "a")]), "a")
    assert made.hops() == {name: hops for name, hops in far.items() if hops}
    for name in made.hops():
        next_one = made.next_hop(name)
        assert next_one is not None
        assert village(links, next_one, NAMES).hops().get(name, 0) == far[name] - 1


def test_routes_are_recomputed_only_when_neighbours_change(monkeypatch: pytest.MonkeyPatch) -> None:
    made, searched, search = village([("a", "b"), ("b", "c")]), [0], nx.single_source_shortest_path_length

    def counted(*words: Any) -> Any:
        searched[0] += 1
        return search(*words)

    monkeypatch.setattr(nx, "single_source_shortest_path_length", counted)
    for _ in range(3):
        assert made.hops() == {"b": 1, "c": 2}
    made.update("c", Status(time=SECOND + 1, trained=5, neighbours=("b",)))
    assert made.hops() == {"b": 1, "c": 2}
    assert searched == [1]
    made.update("b", Status(time=SECOND + 1, neighbours=("a",)))
    assert made.hops() == {"b": 1}
    assert searched == [2]


def test_the_median_of_the_others_is_the_current_round() -> None:
    made = Members("a", list("abcd"), True, frozenset)
    assert made.current_round() == 0
    for name, trained in {"b": 4, "c": 5, "d": 1000}.items():
        made.connected(name)
        made.update(name, Status(time=1, trained=trained))
    assert made.current_round() == 5


def test_a_waiting_thread_wakes_on_a_status() -> None:
    made = Members("a", ["a", "b"], True, frozenset)
    made.connected("b")
    woken: list[bool] = []
    waiting = threading.Thread(
        target=lambda: woken.append(made.wait(lambda: made.status("b").trained == 1, 10 * PATIENCE)), daemon=True
    )
    waiting.start()
    assert not eventually(lambda: woken, 0.05)
    made.update("b", Status(time=1, trained=1))
    waiting.join(PATIENCE)  # long before the wait is over by itself
    assert woken == [True]
    assert not made.wait(lambda: made.status("b").trained == 2, 0.01)


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty")
def test_routes_are_thread_safe_during_updates() -> None:
    """Also the very first time, when nothing has been drawn."""
    for _ in range(20):
        made = village([("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")])
        failed: list[Exception] = []

        def look(made: Members = made, failed: list[Exception] = failed) -> None:
            try:
                for _ in range(20):
                    assert made.next_hop("c") in ("b", "d")
            except Exception as error:
                failed.append(error)

        threads = [threading.Thread(target=look) for _ in range(6)]
        for thread in threads:
            thread.start()
        for i in range(20):
            made.update("d", Status(time=SECOND + 1 + i, neighbours=("a", "c") if i % 2 else ("a",)))
        for thread in threads:
            thread.join()
        assert failed == []


# Announcing


def test_announcements_are_repeated_with_increasing_times(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Status] = []
    announcer = Announcer(sent.append, lambda: frozenset({"b", "c"}), 0.01)
    announcer.announce(trained=3)
    monkeypatch.setattr(time, "time_ns", lambda: 5)  # the clock is set back
    announcer.announce(merged=3)
    announcer.start()
    until(lambda: len(sent) >= 4, "four announcements")
    announcer.stop()
    many = len(sent)
    assert [status.time for status in sent] == sorted({status.time for status in sent})
    assert {(status.trained, status.merged) for status in sent[1:]} == {(3, 3)}
    assert sent[-1].neighbours == ("b", "c")
    time.sleep(0.05)
    assert len(sent) == many


def known(**statuses: Status) -> Members:
    """What is known of these others in a full mesh."""
    made = Members("me", ["me", *statuses], True, frozenset)
    for name, status in statuses.items():
        made.connected(name)
        made.update(name, status)
    return made


def test_finished_peers_do_not_count_for_the_current_round() -> None:
    made = known(a=Status(time=SECOND, trained=12, finished=True), b=Status(time=SECOND, trained=2))
    assert (made.current_round(), made.playing(), made.alive()) == (2, ["b"], ["a", "b"])
    assert known(a=Status(time=SECOND, trained=12, finished=True)).current_round() == 0


def test_a_reconnected_peer_is_online_after_its_next_status() -> None:
    made = known(a=Status(time=50 * SECOND, trained=4))
    assert made.alive() == ["a"]
    made.disconnected("a")
    made.connected("a")
    assert made.alive() == []
    made.update("a", Status(time=51 * SECOND))
    assert made.alive() == ["a"]


def test_a_clock_set_back_does_not_make_a_resumed_peer_look_replayed() -> None:
    heard: list[Status] = []
    announcer = Announcer(heard.append, frozenset, 60.0)
    ahead = time.time_ns() + 120 * SECOND
    announcer.continue_after(ahead)
    announcer.announce(trained=3)
    assert heard[0].time > ahead + 60 * SECOND
    right = Announcer(heard.append, frozenset, 60.0)
    right.continue_after(time.time_ns() - SECOND)
    right.announce()
    assert heard[1].time < time.time_ns() + SECOND
    assert right.last == heard[1].time
