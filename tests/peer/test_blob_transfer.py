"""Transfers of blobs between peers whose links are function calls; the threads are real."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homophily.peer.blob_transfer import BlobId, parse_request
from homophily.peer.identity import Refused
from homophily.peer.manifest import CHUNK, KINDS, split_piece
from homophily.peer.transport import NoAnswer
from tests.patience import PATIENCE
from tests.peer.people import MOST, People, Village, question, soon

DATA = bytes(range(251)) * (2 * CHUNK // 250)  # three chunks
MODEL = BlobId("erin", "model", 1)
LINE = [("alice", "bob"), ("bob", "carol"), ("carol", "erin")]
AROUND = [("alice", "bob"), ("bob", "erin"), ("alice", "carol"), ("carol", "dave"), ("dave", "erin")]

Found = Callable[..., Village]


@pytest.fixture
def found(people: People) -> Iterator[Found]:
    """Villages that are closed in the end."""
    made: list[Village] = []

    def village(*words: Any, **keys: Any) -> Village:
        made.append(Village(people, *words, **keys))
        return made[-1]

    yield village
    for each in made:
        each.close()


def crossings(village: Village, link: tuple[str, str]) -> dict[str, int]:
    """What was asked over a link, in one direction, and how often."""
    return {path: often for (*ends, path), often in village.crossed.items() if tuple(ends) == link}


# Ways


def test_a_blob_is_fetched_from_a_neighbour(found: Found) -> None:
    village = found([("alice", "erin")])
    village.transfer["erin"].publish("model", 1, DATA)
    assert village.transfer["alice"].fetch(MODEL, soon()) == DATA


def test_a_blob_comes_over_a_line_of_four(found: Found) -> None:
    village = found(LINE)
    village.transfer["erin"].publish("model", 1, DATA)
    assert village.transfer["alice"].fetch(MODEL, soon()) == DATA
    assert list(crossings(village, ("carol", "erin")).values()) == [1, 1]  # three chunks, two at a time


def test_a_blob_crosses_a_link_once_however_many_want_it(found: Found) -> None:
    leaves = ["alice", "bob", "dave"]
    village = found([*((leaf, "carol") for leaf in leaves), ("carol", "erin")])
    village.transfer["erin"].publish("model", 1, DATA)
    with ThreadPoolExecutor(9) as pool:
        pulls = [pool.submit(village.transfer[name].fetch, MODEL, soon()) for name in 3 * leaves]
    assert all(pull.result() == DATA for pull in pulls)
    for link in [("carol", "erin"), *((leaf, "carol") for leaf in leaves)]:
        assert set(crossings(village, link).values()) == {1}


def test_a_blob_of_an_unreachable_peer_has_no_route(found: Found) -> None:
    village = found([("alice", "bob"), ("carol", "erin")])
    village.transfer["erin"].publish("model", 1, DATA)
    with pytest.raises(NoAnswer, match="no route"):
        village.transfer["alice"].fetch(MODEL, soon())


def test_an_unpublished_blob_fails_at_once(found: Found) -> None:
    village = found(LINE)
    with pytest.raises(NoAnswer, match="not published"):
        village.transfer["alice"].fetch(MODEL, soon())


def test_each_of_several_blobs_is_fetched_or_reports_the_reason(found: Found) -> None:
    village = found(LINE)
    village.transfer["erin"].publish("model", 1, DATA)
    village.transfer["bob"].publish("print", 0, b"whorls")
    wanted = [MODEL, BlobId("bob", "print", 0), BlobId("carol", "model", 1)]
    came = village.transfer["alice"].fetch_all(wanted, len, soon())
    assert came[wanted[0]] == len(DATA)
    assert came[wanted[1]] == len(b"whorls")
    assert isinstance(came[wanted[2]], NoAnswer)
    assert village.transfer["alice"].fetch_all([], len, soon()) == {}


def test_a_blob_that_cannot_be_unpacked_does_not_affect_others(found: Found) -> None:
    def unpack(data: bytes) -> bytes:
        if data == b"arches":
            raise Refused("not a whorl")
        return data

    village = found([("alice", "bob"), ("alice", "erin")])
    village.transfer["erin"].publish("print", 0, b"whorls")
    village.transfer["bob"].publish("print", 0, b"arches")
    came = village.transfer["alice"].fetch_all([BlobId(name, "print", 0) for name in ("bob", "erin")], unpack, soon())
    assert came.pop(BlobId("erin", "print", 0)) == b"whorls"
    assert str(came[BlobId("bob", "print", 0)]) == "not a whorl"


def test_two_rounds_of_each_kind_stay_published(found: Found) -> None:
    village = found([("alice", "erin")])
    village.transfer["erin"].publish("print", 0, b"whorls")
    for round in (1, 2, 3):
        village.transfer["erin"].publish("model", round, f"round {round}".encode())
    for blob, data in {("model", 3): b"round 3", ("model", 2): b"round 2", ("print", 0): b"whorls"}.items():
        assert village.transfer["alice"].fetch(BlobId("erin", *blob), soon()) == data  # type: ignore[arg-type]
    with pytest.raises(NoAnswer):
        village.transfer["alice"].fetch(MODEL, soon())


def test_in_a_ring_with_one_slot_each_everyone_pulls_from_everyone_at_once(found: Found, people: People) -> None:
    """Requests that wait for one another in a circle would wait for ever if they stood in one queue."""
    names = people.names
    ring = [(name, names[(i + 1) % len(names)]) for i, name in enumerate(names)]
    village = found(ring, slots=1, waiting=256, timeout=PATIENCE)  # longer than a pull may take
    for name in names:
        village.transfer[name].publish("model", 1, DATA + name.encode())
    wanted = {name: [BlobId(other, "model", 1) for other in names if other != name] for name in names}
    with ThreadPoolExecutor(len(names)) as pool:
        pulls = {name: pool.submit(village.transfer[name].fetch_all, wanted[name], bytes, soon(60)) for name in names}
    for name, pull in pulls.items():
        assert pull.result() == {blob: DATA + blob.origin.encode() for blob in wanted[name]}


# Hostile relays


def flip(path: str, data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def flip_end(path: str, data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


TRICKS: dict[str, tuple[Callable[[str, bytes], bytes | None], str]] = {
    "alters manifests": (flip, "not JSON"),
    "alters chunks": (flip_end, "altered chunk"),
    "cuts chunks short": (lambda path, data: data[:-1], "chunk of the wrong size"),
    "sends manifests alone": (lambda path, data: data[: data.index(b"\n") + 1], "chunk of the wrong size"),
    "sends chunks alone": (lambda path, data: bytes(split_piece(data)[1]), "not JSON"),
    "leaves out every second chunk": (
        lambda path, data: None if split_piece(data)[1] == DATA[CHUNK : 2 * CHUNK] else data, "missing chunk",
    ),
    "sends nothing": (lambda path, data: b"", "missing manifest"),
    "sends too much": (lambda path, data: data + bytes(1 << 20), "chunk of the wrong size"),
    "sends a manifest without an end": (lambda path, data: b"{" * CHUNK, "missing manifest"),
}  # fmt: skip


@pytest.mark.parametrize("trick", TRICKS.values(), ids=TRICKS)
def test_a_relay_that_alters_bytes_is_counted_and_another_route_is_taken(found: Found, trick: Any) -> None:
    tamper, why = trick
    village = found(AROUND)
    village.transfer["erin"].publish("model", 1, DATA)
    village.tampering["bob"] = tamper
    assert village.transfer["alice"].fetch(MODEL, soon()) == DATA
    refused = village.transfer["alice"].refusals.counts()
    assert f"{why} (bob)" in refused
    assert all(reason.endswith("(bob)") for reason in refused)
    assert not village.transfer["carol"].refusals.counts()


def test_a_relay_that_replays_an_old_manifest_is_counted_and_avoided(found: Found) -> None:
    village = found(AROUND)
    erin, alice = village.transfer["erin"], village.transfer["alice"]
    erin.publish("model", 1, b"old")
    (old,) = village.request("alice", "erin", "erin/model/1/0", 1.0)
    erin.publish("model", 2, b"new")
    village.tampering["bob"] = lambda path, data: old
    assert alice.fetch(BlobId("erin", "model", 2), soon()) == b"new"
    assert alice.refusals.counts() == {"manifest of another blob (bob)": 1}


def test_a_relay_that_substitutes_another_model_is_counted(found: Found) -> None:
    village = found([("alice", "bob"), ("bob", "erin")])
    village.transfer["bob"].publish("model", 1, b"bob's")
    village.transfer["erin"].publish("model", 1, b"erin's")
    (bobs,) = village.request("alice", "bob", "bob/model/1/0", 1.0)
    village.tampering["bob"] = lambda path, data: bobs
    with pytest.raises(Refused, match="manifest of another blob"):
        village.transfer["alice"].fetch(MODEL, soon())


@pytest.mark.parametrize("mixed", range(3))
def test_chunks_of_two_blobs_that_an_origin_made_for_one_round_are_not_mixed(found: Found, mixed: int) -> None:
    village = found([("alice", "erin")])
    erin, alice = village.transfer["erin"], village.transfer["alice"]
    erin.publish("model", 1, DATA)
    old = [chunk for part in (0, 1) for chunk in village.request("alice", "erin", f"erin/model/1/{part}", 1.0)]
    erin.publish("model", 1, DATA[::-1])
    new = [chunk for part in (0, 1) for chunk in village.request("alice", "erin", f"erin/model/1/{part}", 1.0)]
    village.tampering["erin"] = lambda path, data: old[mixed] if data == new[mixed] else data
    with pytest.raises(Refused, match="chunks of different blobs"):
        alice.fetch(MODEL, soon())


def test_an_altered_chunk_is_refused_at_the_first_honest_hop(found: Found) -> None:
    village = found(LINE)
    village.transfer["erin"].publish("model", 1, DATA)
    village.tampering["carol"] = flip_end
    with pytest.raises(NoAnswer, match="altered chunk"):
        village.transfer["alice"].fetch(MODEL, soon())
    assert set(village.transfer["bob"].refusals.counts()) == {"altered chunk (carol)"}
    assert not village.transfer["alice"].refusals.counts()


def test_a_refused_chunk_is_not_cached(found: Found) -> None:
    village = found(LINE)
    village.transfer["erin"].publish("model", 1, DATA)
    village.tampering["carol"] = flip
    with pytest.raises(NoAnswer):
        village.transfer["alice"].fetch(MODEL, soon())
    del village.tampering["carol"]  # comes to its senses
    assert village.transfer["alice"].fetch(MODEL, soon()) == DATA


def test_a_relay_that_never_answers_is_avoided(found: Found) -> None:
    village = found(AROUND, timeout=0.2)
    village.transfer["erin"].publish("model", 1, b"small")
    village.transfer["bob"].handle_request = lambda question: None  # type: ignore[method-assign]
    assert village.transfer["alice"].fetch(MODEL, soon()) == b"small"


def test_a_blob_larger_than_any_honest_one_is_refused_with_its_first_chunks(found: Found) -> None:
    village = found([("alice", "erin")])
    village.transfer["erin"].publish("model", 1, bytes(MOST + 1))
    with pytest.raises(Refused, match="blob too large"):
        village.transfer["alice"].fetch(MODEL, soon())
    assert set(crossings(village, ("alice", "erin"))) == {"erin/model/1/0"}


# Limits


def test_too_many_requests_are_declined_and_counted(found: Found) -> None:
    village = found([("alice", "erin")], slots=1, waiting=2)
    erin, gate = village.transfer["erin"], threading.Event()
    erin.publish("model", 1, DATA)
    held = erin._own_part
    erin._own_part = lambda part: (gate.wait(30), held(part))[1]  # type: ignore[method-assign]
    asked = [question("erin/model/1/0") for _ in range(1000)]
    for each in asked:
        erin.handle_request(each)
    declined = [each for each in asked if each.reply.done()]
    assert len(declined) == 997
    for each in declined:
        with pytest.raises(NoAnswer, match="busy"):
            each.reply.result()
    assert erin.refusals.counts() == {"too many requests": 997}
    gate.set()
    assert all(split_piece(each.reply.result(10)[0])[1] == DATA[:CHUNK] for each in asked if each not in declined)
    last = question("erin/model/1/1")  # there is room again
    deadline = time.monotonic() + 10
    erin.handle_request(last)
    while last.reply.exception(10) is not None and time.monotonic() < deadline:
        last = question("erin/model/1/1")
        erin.handle_request(last)
    assert last.reply.result(10)


@pytest.mark.parametrize(
    "path",
    [
        "", "erin", "erin/model/1", "erin/model/1/", "erin/model/1/manifest", "erin/model/1/0/", "/erin/model/1/0",
        "erin/model/-1/0", "erin/pickle/1/0", "erin/model/1/*", "erin/model/**", "erin/model/１/0", "erin/model/1/0\n",
        "../model/1/0", "erin/model/9999999999999/0", "erin/model/1/9999999", f"erin/model/1/{MOST // (2 * CHUNK)}",
        "x" * 100_000, "\ud800/model/1/0",
    ],
)  # fmt: skip
def test_malformed_requests_are_declined_and_counted(found: Found, path: str) -> None:
    village = found([("alice", "erin")])
    asked = question(path)
    village.transfer["erin"].handle_request(asked)
    with pytest.raises(NoAnswer, match="malformed request"):
        asked.reply.result(1)
    assert village.transfer["erin"].refusals.counts() == {"malformed request": 1}


@given(
    origin=st.from_regex(r"[a-z0-9-]{1,63}", fullmatch=True),
    kind=st.sampled_from(KINDS),
    round=st.integers(0, 10**12 - 1),
    number=st.integers(0, 10**6 - 1),
)
def test_well_formed_requests_are_understood(origin: str, kind: Any, round: int, number: int) -> None:
    assert parse_request(f"{origin}/{kind}/{round}/{number}") == (BlobId(origin, kind, round), number)


def test_requests_for_unpublished_blobs_are_declined(found: Found) -> None:
    village = found(LINE)
    village.transfer["erin"].publish("model", 1, DATA)
    for path, why in {
        "nobody/model/1/0": "unknown origin",
        "erin/model/2/0": "not published",
        "erin/model/1/2": "malformed request",
        "erin/model/1/999999": "malformed request",
    }.items():
        for at in ("bob", "erin"):
            asked = question(path)
            village.transfer[at].handle_request(asked)
            with pytest.raises(NoAnswer, match=why):
                asked.reply.result(10)


def test_the_cache_stays_within_its_size_and_evicted_chunks_are_fetched_again(found: Found) -> None:
    room = 3 * CHUNK
    village = found(LINE, cache_bytes=room)
    for round in range(1, 6):
        village.transfer["erin"].publish("model", round, DATA + bytes([round]))
        assert village.transfer["alice"].fetch(BlobId("erin", "model", round), soon()) == DATA + bytes([round])
        for transfer in village.transfer.values():
            assert transfer._cached == sum(piece.size for piece in transfer._cache.values()) <= room
    assert village.transfer["alice"].fetch(BlobId("erin", "model", 4), soon()) == DATA + bytes([4])
    assert max(crossings(village, ("carol", "erin")).values()) == 2


def test_a_cache_smaller_than_a_chunk_still_works(found: Found) -> None:
    village = found(LINE, cache_bytes=100)
    village.transfer["erin"].publish("model", 1, DATA)
    assert village.transfer["alice"].fetch(MODEL, soon()) == DATA


def test_no_transfer_stays_in_flight(found: Found) -> None:
    village = found(LINE)
    village.transfer["erin"].publish("model", 1, DATA)
    village.tampering["carol"] = flip_end
    wanted = [MODEL, BlobId("dave", "model", 1), BlobId("erin", "model", 9)]
    village.transfer["alice"].fetch_all(wanted, len, soon())
    assert not any(transfer._in_flight for transfer in village.transfer.values())


def test_a_second_request_for_a_chunk_keeps_its_own_deadline(found: Found) -> None:
    village = found([("alice", "erin")], timeout=30.0)
    gate, handle = threading.Event(), village.transfer["erin"].handle_request
    village.transfer["erin"].publish("model", 1, b"small")
    village.transfer["erin"].handle_request = lambda asked: (gate.wait(30), handle(asked))[1]  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        first: Future[bytes] = pool.submit(village.transfer["alice"].fetch, MODEL, soon(30))
        deadline = time.monotonic() + 10
        while not village.transfer["alice"]._in_flight and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(NoAnswer, match="deadline passed"):
            village.transfer["alice"].fetch(MODEL, soon(0.1))
        gate.set()
        assert first.result(10) == b"small"


def test_a_closed_transfer_declines_requests(found: Found) -> None:
    village = found([("alice", "erin")])
    erin = village.transfer["erin"]
    erin.publish("model", 1, DATA)
    assert village.transfer["alice"].fetch(MODEL, soon()) == DATA
    erin.close()
    asked = question("erin/model/1/0")
    erin.handle_request(asked)
    with pytest.raises(NoAnswer, match="busy"):
        asked.reply.result(1)
