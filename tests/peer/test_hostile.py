"""Real links over loopback under attack: honest peers continue in every test."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import zenoh

from homophily.peer.blob_transfer import BlobId
from homophily.peer.logs import peer_logger
from homophily.peer.manifest import CHUNK
from homophily.peer.network import PeerNetwork, address_of
from homophily.peer.refusals import Refusals
from homophily.peer.settings import load
from homophily.peer.setup import prepare_peer
from homophily.peer.transport import NoAnswer, ZenohLinks
from tests.patience import eventually
from tests.peer.linked import HOST, QUIET, Pair, Someone, address, free_port, opened, session
from tests.peer.people import FEDERATION, People, Village, question, soon

NAMES = ("alice", "bob", "carol")


def test_an_oversize_message_is_dropped(pair: Pair) -> None:
    for size in (CHUNK + (1 << 19), 8 << 20):
        pair.bob.links.broadcast(bytes(size))
    time.sleep(QUIET)
    assert pair.alice.heard == []
    assert pair.go_on()


def test_an_oversize_answer_is_dropped(people: People) -> None:
    answers = {"much": bytes(8 << 20), "still there": b"to still there"}
    pair = Pair(people, lambda question: question.answer(answers[question.path]))
    with pytest.raises(NoAnswer):
        pair.bob.links.request("alice", "much", QUIET)
    assert pair.go_on()


def test_a_declined_request_carries_the_reason(people: People) -> None:
    pair = Pair(people, lambda question: question.decline("x" * 1000))
    with pytest.raises(NoAnswer, match=r"^x{64}$"):
        pair.bob.links.request("alice", "anything", 10.0)


def test_a_request_to_an_absent_peer_gets_no_answer(pair: Pair) -> None:
    with pytest.raises(NoAnswer, match="no answer"):
        pair.bob.links.request("carol", "anything", QUIET)


@pytest.mark.parametrize("most", [1, 2])
def test_surplus_answers_are_dropped(people: People, most: int) -> None:
    def many(question: Any) -> None:
        if question.path == "many":
            for _ in range(100):
                question._query.reply(question._query.key_expr, b"again")
        question.answer(b"to still there")

    pair = Pair(people, many)
    assert pair.bob.links.request("alice", "many", 10.0, most) == most * [b"again"]
    assert pair.go_on()


def test_a_flood_of_requests_is_counted_and_survived(people: People) -> None:
    """Malformed ones, and more good ones than there is room for."""
    village = opened(Village(people, [("alice", "bob")], slots=2, waiting=8))
    transfer = village.transfer["alice"]
    transfer.publish("model", 1, b"small")
    pair = Pair(people, transfer.handle_request)
    answered: list[zenoh.Reply] = []
    for _ in range(1000):
        for path in ("alice/model/1/0", "alice/model/1/**", "nobody/model/1/0"):
            pair.bob.links._session.get(f"homophily/{FEDERATION}/ask/alice/{path}", answered.append, timeout=30.0)
    assert eventually(lambda: len(answered) == 3000, 30)
    good = sum(reply.ok is not None for reply in answered)
    counts = transfer.refusals.counts()
    assert counts.pop("malformed request") == 1000
    assert counts.pop("unknown origin") == 1000
    assert counts.pop("too many requests", 0) == 1000 - good
    assert counts == {}
    assert good > 0
    assert pair.bob.links.request("alice", "alice/model/1/0", 10.0)[0].endswith(b"\nsmall")


@pytest.mark.slow
def test_a_million_requests_are_counted_and_survived(people: People) -> None:
    village = opened(Village(people, [("alice", "bob"), ("bob", "carol")], slots=2, waiting=8))
    transfer = village.transfer["bob"]
    village.transfer["carol"].publish("model", 1, b"small")
    paths = [f"carol/model/{round}/{part}" for round in (1, 2) for part in ("0", "1", "-1", "x")]
    for i in range(1_000_000):
        transfer.handle_request(question(paths[i % 8]))
    counts = transfer.refusals.counts()
    assert counts["malformed request"] == 500_000
    assert set(counts) <= {"malformed request", "too many requests"}
    assert village.transfer["alice"].fetch(BlobId("carol", "model", 1), soon()) == b"small"


def test_closed_links_neither_send_nor_receive(people: People) -> None:
    alone = Someone(address(people, "alice", free_port()))
    alone.links.close()
    alone.links.broadcast(b"to nobody")
    assert alone.links.neighbours() == frozenset()
    with pytest.raises(NoAnswer, match="links closed"):
        alone.links.request("bob", "anything", 1.0)


# A mesh where not everyone is linked


class Player:
    """All that a peer is but for training."""

    def __init__(self, people: People, folder: Path, name: str, connect: tuple[int, ...]) -> None:
        self.port = free_port()
        people.identity(name)
        table = {
            "name": name, "allow": list(NAMES), "federation": FEDERATION, "listen": [f"{HOST}:{self.port}"],
            "connect": [f"{HOST}:{port}" for port in connect], "mesh": "partial", "share": NAMES.index(name),
            "ca": str(people.ca), "certificate": str(people.folder / f"{name}.pem"),
            "key": str(people.folder / f"{name}.key"),
        }  # fmt: skip
        file = folder / f"{name}.toml"
        file.write_text(
            tomli_w.dumps({"method": "random", "data": {"train": 20, "test": 10, "angles": [0]}, "peer": table})
        )
        setup = prepare_peer(load(file))
        links = ZenohLinks(address_of(setup.settings, insecure=False))
        self.network = opened(PeerNetwork.on(links, setup, Refusals(peer_logger(name))))
        self.transfer, self.members, self.announcer = (
            self.network.transfer,
            self.network.members,
            self.network.announcer,
        )
        self.network.start(setup, links)


def test_a_broadcast_reaches_direct_neighbours_only(people: People) -> None:
    def someone(name: str, *connect: int) -> tuple[Someone, int]:
        port = free_port()
        where = address(people, name, port, connect, full=False)
        return Someone(replace(where, allowed=NAMES)), port

    carol, port = someone("carol")
    alice, bob = (someone(name, port)[0] for name in ("alice", "bob"))
    assert eventually(lambda: carol.links.neighbours() == {"alice", "bob"} and "carol" in alice.there & bob.there)
    alice.links.broadcast(b"hello")
    assert eventually(lambda: b"hello" in carol.heard)
    time.sleep(QUIET)
    assert bob.heard == []


def test_a_stranger_connected_to_two_peers_cannot_come_between_them(people: People, tmp_path: Path) -> None:
    carol = Player(people, tmp_path, "carol", ())
    alice, bob = (Player(people, tmp_path, name, (carol.port,)) for name in ("alice", "bob"))
    assert eventually(lambda: alice.members.hops() == {"carol": 1, "bob": 2})
    session(address(people, "mallory", free_port(), (alice.port, bob.port), full=False))
    assert eventually(lambda: "connection of a name not in peer.allow (mallory)" in alice.transfer.refusals.counts())
    assert eventually(lambda: "connection of a name not in peer.allow (mallory)" in bob.transfer.refusals.counts())
    bob.transfer.publish("model", 1, b"bob's")
    bob.announcer.announce(trained=1)
    assert eventually(lambda: alice.members.status("bob").trained == 1)
    assert alice.transfer.fetch(BlobId("bob", "model", 1), soon()) == b"bob's"
    assert list(alice.transfer.refusals.counts()) == ["connection of a name not in peer.allow (mallory)"]
    bob.network.close()
    assert eventually(lambda: alice.members.hops() == {"carol": 1})
