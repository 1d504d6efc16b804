"""A manifest says what a blob is, and everything is checked against it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homophily.peer.identity import MAX_SEALED_BYTES, Refused
from homophily.peer.manifest import CHUNK, MAX_ROUNDS, open_manifest, signed_pieces, split_piece
from tests.peer.people import FEDERATION, MOST, People

BIG = bytes(range(256)) * (CHUNK // 256) + b"the rest"  # a chunk and a bit


def body(**changes: Any) -> dict[str, Any]:
    """Of a good manifest, but for the changes; a change to ... leaves a field out."""
    good = {
        "federation": FEDERATION, "kind": "model", "round": 3, "size": 5, "chunks": ["0" * 64],
    }  # fmt: skip
    return {key: value for key, value in {**good, **changes}.items() if value is not ...}


@given(size=st.integers(1, 3 * CHUNK), round=st.integers(0, MAX_ROUNDS))
def test_a_manifest_fits_its_blob(people: People, size: int, round: int) -> None:
    data = bytes(size)
    sealed, chunks = zip(
        *map(split_piece, signed_pieces(data, FEDERATION, "print", round, people.identity("bob"))), strict=True
    )
    assert len(set(sealed)) == 1  # every piece has the same one
    found = open_manifest(sealed[0], people.authority, FEDERATION, MOST)
    assert (found.origin, found.kind, found.round, found.size) == ("bob", "print", round, size)
    assert len(chunks) == len(found.chunks)
    assert b"".join(chunks) == data
    for number, chunk in enumerate(chunks):
        found.check_chunk(number, chunk)


def test_an_altered_swapped_or_cut_chunk_is_refused(people: People) -> None:
    pieces = signed_pieces(BIG, FEDERATION, "model", 1, people.identity("bob"))
    found = open_manifest(split_piece(pieces[0])[0], people.authority, FEDERATION, MOST)
    first, last = (bytes(split_piece(piece)[1]) for piece in pieces)
    for number, wrong in [(0, b""), (0, last), (0, first[:-1]), (1, first), (1, last + b"x"), (2, b""), (2, last)]:
        with pytest.raises(Refused, match="chunk of the wrong size"):
            found.check_chunk(number, wrong)
    for number, wrong in [(0, b"x" + first[1:]), (1, last[::-1])]:
        with pytest.raises(Refused, match="altered chunk"):
            found.check_chunk(number, wrong)


@pytest.mark.parametrize("piece", [b"", b"no end", b"x" * CHUNK, b"x" * (MAX_SEALED_BYTES + 1) + b"\n"])
def test_a_piece_whose_manifest_has_no_end_is_refused(piece: bytes) -> None:
    with pytest.raises(Refused, match="missing manifest"):
        split_piece(piece)


def test_a_valid_manifest_is_opened(people: People) -> None:
    found = open_manifest(people.identity("alice").seal(body()), people.authority, FEDERATION, MOST)
    assert (found.origin, found.round, found.size, found.chunks) == ("alice", 3, 5, ("0" * 64,))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"federation": "banks"}, "of another federation"),
        ({"federation": ...}, "of another federation"),
        ({"federation": [FEDERATION]}, "of another federation"),
        ({"kind": "pickle"}, "malformed"),
        ({"kind": ["model"]}, "malformed"),
        ({"kind": {}}, "malformed"),
        ({"round": -1}, "malformed"),
        ({"round": 1.0}, "malformed"),
        ({"round": True}, "malformed"),
        ({"round": MAX_ROUNDS + 1}, "malformed"),
        ({"round": ...}, "malformed"),
        ({"size": 0}, "malformed"),
        ({"size": -5}, "malformed"),
        ({"size": "5"}, "malformed"),
        ({"size": float("nan")}, "malformed"),
        ({"size": ...}, "malformed"),
        ({"size": MOST + 1}, "blob too large"),
        ({"size": 1 << 61}, "blob too large"),
        ({"size": 10**400}, "malformed"),
        ({"size": CHUNK + 1}, "malformed"),  # one chunk short
        ({"chunks": []}, "malformed"),
        ({"chunks": ["0" * 64] * 2}, "malformed"),
        ({"chunks": "0"}, "malformed"),
        ({"chunks": [7]}, "malformed"),
        ({"chunks": [["0" * 64]]}, "malformed"),
        ({"chunks": ["0" * 63]}, "malformed"),
        ({"chunks": ["0" * 64 + "\n"]}, "malformed"),
        ({"chunks": ["G" * 64]}, "malformed"),
        ({"chunks": {"0": "0"}}, "malformed"),
    ],
)
def test_every_field_is_checked(people: People, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(Refused, match=why):
        open_manifest(people.identity("alice").seal(body(**changes)), people.authority, FEDERATION, MOST)


def test_a_manifest_of_a_stranger_is_refused(people: People, strangers: People) -> None:
    sealed, _ = split_piece(signed_pieces(BIG, FEDERATION, "model", 1, strangers.identity("bob"))[0])
    with pytest.raises(Refused, match="certificate not issued by this authority"):
        open_manifest(sealed, people.authority, FEDERATION, MOST)
