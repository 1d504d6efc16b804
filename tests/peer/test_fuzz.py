"""Fuzzing: parsers of received bytes raise only Refused for noise, damaged messages and signed nonsense.

The nonsense is that of a member of the federation: its signature is right, and what is signed is anything at all.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from homophily.fingerprints.fingerprint import SMALL_FEDERATION
from homophily.peer import manifest, membership
from homophily.peer.blob_transfer import parse_request
from homophily.peer.certificates import read_key
from homophily.peer.identity import Refused
from homophily.peer.membership import Status
from homophily.peer.wire import (
    ExpectedModel,
    ModelMessage,
    pack_before,
    pack_model,
    pack_print,
    unpack_before,
    unpack_model,
    unpack_print,
)
from tests.peer.people import FEDERATION, MOST, People, parts, sealed_by

Case = tuple[Callable[[Any], Any], st.SearchStrategy[Any]]

_ODD: list[Any] = [
    0, -1, 1, 2**31, 2**53, 2**62, 2**63, 2**64, 10**30, 0.5, 1e308, float("inf"), float("nan"), True, None, "",
    "\ud800", "\x00", "model", "before", "print", FEDERATION, "alice", "bob", "0" * 64, [], {}, ["0" * 64], ["bob"],
    [[[[]]]],
]  # fmt: skip
_JSON = st.recursive(
    st.sampled_from(_ODD) | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """Good bytes with a few flipped, cut out, put in, said twice or cut off."""
    data = good
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        end = draw(st.integers(at, min(len(data), at + 64)))
        put = draw(
            st.binary(max_size=8) | st.sampled_from([b"\x00", b"\xff" * 8, b"{", b'"', b"\\ud800", data[at:end] * 2])
        )
        data = data[:at] if draw(st.integers(0, 9)) == 0 else data[:at] + put + data[end:]
    return data


def nonsense(good: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A good table with some values exchanged for anything, left out or added."""
    changes = st.dictionaries(st.sampled_from([*good, "more"]), _JSON | st.just(...), min_size=1, max_size=3)
    return changes.map(lambda new: {key: value for key, value in {**good, **new}.items() if value is not ...})


def signed(people: People, body: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """Sealed by alice, whatever it is."""
    certificate = parts(people.identity("alice").seal({}))["certificate"]
    key = read_key(people.folder / "alice.key")
    texts = body.map(json.dumps) | st.text(max_size=40).filter(lambda text: text.isascii())
    return texts.map(lambda text: sealed_by(key, certificate, text))


def with_odd_certificate(people: People) -> st.SearchStrategy[bytes]:
    """A certificate that is damaged inside its base64."""
    sealed = parts(people.identity("alice").seal({"round": 1}))
    good = b64decode(sealed["certificate"])
    return damaged(good).map(lambda der: json.dumps({**sealed, "certificate": b64encode(der).decode()}).encode())


def tensor_files(good: bytes) -> st.SearchStrategy[bytes]:
    """Safetensors whose header says something else, with numbers changed behind it."""
    size = int.from_bytes(good[:8], "little")
    header, data = json.loads(good[8 : 8 + size]), good[8 + size :]
    kinds = st.sampled_from(
        ["F64", "F32", "F16", "BF16", "I64", "I32", "U8", "BOOL", "F8_E4M3", "F8_E8M0", "F4", "F6_E2M3", "C64", "X", ""]
    )
    numbers = st.sampled_from([0, 1, 2, 12, 512, len(data), len(data) + 1, 2**31, 2**62, 2**63, 2**64, -1])
    field = st.fixed_dictionaries(
        {},
        optional={
            "dtype": kinds | _JSON,
            "shape": st.lists(numbers, max_size=4) | _JSON,
            "data_offsets": st.lists(numbers, max_size=3) | _JSON,
        },
    )
    names = st.sampled_from([*header, "more", "table/other", "__metadata__", ""])
    changes = st.dictionaries(names, field | st.just(...) | _JSON, min_size=1, max_size=3)

    def packed(changes: dict[str, Any], data: bytes) -> bytes:
        new = {name: {**header.get(name, {}), **c} if isinstance(c, dict) else c for name, c in changes.items()}
        text = json.dumps({name: value for name, value in {**header, **new}.items() if value is not ...}).encode()
        return len(text).to_bytes(8, "little") + text + data

    return st.builds(packed, changes, st.just(data) | damaged(data))


NETWORK = 11


def cases(people: People) -> dict[str, Case]:
    """Parsers by name, and what each is fed."""
    alice, authority = people.identity("alice"), people.authority
    body = {
        "federation": FEDERATION, "origin": "alice", "kind": "model", "round": 3, "size": 5,
        "chunks": ["0" * 64],
    }  # fmt: skip
    status = {**asdict(Status(5, 3, 2, 0)), "neighbours": ["bob"]}
    statuses = nonsense(status).map(lambda status: {"federation": FEDERATION, "origin": "alice", "status": status})
    messages = nonsense({"federation": FEDERATION, "origin": "alice", "status": status})
    ids = torch.tensor([3, 5])
    tables = {"similarity": torch.tensor([1.5, -2.0], dtype=torch.float64)}
    model = pack_model(ModelMessage(torch.ones(12), 7, tables, ids), NETWORK)
    expected = ExpectedModel(12, torch.float32, ("similarity",), NETWORK, 5)
    before = pack_before(torch.ones(12), NETWORK)
    fingerprint = pack_print(torch.ones(512), torch.ones(2, 512).triu(), 3, NETWORK)
    strange = {"weights": torch.zeros(2), "contacts": torch.zeros(0, 2)}
    noise = st.binary(max_size=300)
    words = st.sampled_from(
        ["alice", "model", "before", "print", "1", "0", "999999", "/", "//", "*", "**", "-1", "９", "\n", "\ud800"]
    )

    piece = manifest.signed_pieces(b"x", FEDERATION, "print", 1, alice)[0]

    def manifest_opened(data: bytes) -> manifest.Manifest:
        return manifest.open_manifest(data, authority, FEDERATION, MOST)

    def piece_checked(data: bytes) -> None:
        sealed, chunk = manifest.split_piece(data)
        manifest_opened(sealed).check_chunk(0, chunk)

    def status_opened(data: bytes) -> object:
        return membership.open_status(data, authority, FEDERATION)

    def model_unpacked(data: bytes) -> object:
        return unpack_model(data, expected)

    return {
        "seal: noise": (
            authority.open,
            noise | st.text(max_size=100).map(lambda text: text.encode("utf-8", "replace")),
        ),
        "seal: damaged": (authority.open, damaged(alice.seal({"round": 1}))),
        "seal: JSON": (authority.open, (_JSON | nonsense(parts(alice.seal({})))).map(lambda v: json.dumps(v).encode())),
        "seal: certificate": (authority.open, with_odd_certificate(people)),
        "manifest: damaged": (
            manifest_opened,
            noise | damaged(manifest.split_piece(piece)[0]),
        ),
        "manifest: signed": (manifest_opened, signed(people, nonsense(body) | _JSON)),
        "piece": (piece_checked, noise | damaged(piece) | noise.map(lambda data: piece + data)),
        "status: damaged": (status_opened, noise | damaged(membership.seal_status(Status(), FEDERATION, alice))),
        "status: signed": (status_opened, signed(people, statuses | messages)),
        "model: damaged": (model_unpacked, noise | damaged(model) | damaged(save(strange))),
        "model: header": (model_unpacked, tensor_files(model)),
        "before: damaged": (partial(unpack_before, expected=expected), noise | damaged(before)),
        "before: header": (partial(unpack_before, expected=expected), tensor_files(before)),
        "print: damaged": (partial(unpack_print, form=SMALL_FEDERATION, network=NETWORK), noise | damaged(fingerprint)),
        "print: header": (partial(unpack_print, form=SMALL_FEDERATION, network=NETWORK), tensor_files(fingerprint)),
        "request": (parse_request, st.text(max_size=60) | st.lists(words, max_size=9).map("".join)),
    }


CASES = [
    "seal: noise", "seal: damaged", "seal: JSON", "seal: certificate", "manifest: damaged", "manifest: signed", "piece",
    "status: damaged", "status: signed", "model: damaged", "model: header", "before: damaged", "before: header",
    "print: damaged", "print: header", "request",
]  # fmt: skip


def fed(case: Case, inputs: int) -> None:
    """So many inputs to a parser; whatever it raises but Refused is raised, with the smallest input that makes it."""
    parse, foods = case
    eaten = 0

    @settings(
        max_examples=inputs, deadline=None, database=None, phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(foods)
    def each(food: Any) -> None:
        nonlocal eaten
        eaten += 1
        with suppress(Refused):
            parse(food)

    each()
    assert eaten >= inputs


def test_every_case_is_listed(people: People) -> None:
    assert list(cases(people)) == CASES


@pytest.mark.parametrize("name", CASES)
def test_parsers_raise_only_refused(people: People, name: str) -> None:
    fed(cases(people)[name], 100)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CASES)
def test_parsers_raise_only_refused_for_many_inputs(people: People, name: str) -> None:
    fed(cases(people)[name], 9000)
