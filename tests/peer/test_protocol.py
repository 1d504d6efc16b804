"""Peers of the last protocol version and of this one understand each other, and differing settings are named.

protocol_1.json holds every kind of message as peers of version 1 sent it; protocol_1.py reads messages as they did.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from base64 import b64decode, b64encode
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch

from homophily.fingerprints.fingerprint import SMALL_FEDERATION
from homophily.peer import protocol, wire
from homophily.peer.blob_transfer import BlobId, parse_request
from homophily.peer.deploy import write_files
from homophily.peer.identity import Authority, Identity, Refused, check_protocol
from homophily.peer.manifest import open_manifest, signed_pieces, split_piece
from homophily.peer.membership import Status, open_status, seal_status
from homophily.peer.wire import ExpectedModel, ModelMessage
from homophily.runs.reader import Run
from homophily.simulation.configuration import make
from tests.peer import protocol_1
from tests.peer.people import FEDERATION, People

HERE = Path(__file__).resolve().parent
RECORDED = json.loads((HERE / "protocol_1.json").read_text(encoding="utf-8"))
LAST_BUILD = "388060e"  # the last commit that spoke version 1
NETWORK = 1234567890123
ROW = torch.arange(6, dtype=torch.float32) / 8
TABLES = {"similarity": torch.tensor([0.5, torch.nan], dtype=torch.float64)}
BUCKETS = SMALL_FEDERATION.buckets
MEAN = torch.arange(BUCKETS) % 7 / 8.0
FACTOR = ((torch.arange(3 * BUCKETS) % 5).reshape(3, BUCKETS) / 4.0).triu()
STATUS = Status(
    time=1_700_000_000_000_000_000,
    trained=3,
    merged=2,
    printed=0,
    neighbours=("bob",),
    plan="kin with merge uniform for 40 rounds",
)
BLOBS: dict[str, Callable[[], bytes]] = {
    "model": lambda: wire.pack_model(ModelMessage(ROW, 190), NETWORK),
    "diverged model": lambda: wire.pack_model(ModelMessage(None, 190), NETWORK),
    "model with tables": lambda: wire.pack_model(ModelMessage(ROW, 190, TABLES, torch.tensor([3, 7])), NETWORK),
    "model before training": lambda: wire.pack_before(ROW / 2, NETWORK),
    "fingerprint": lambda: wire.pack_print(MEAN, FACTOR, 4, NETWORK),
    "empty fingerprint": lambda: wire.pack_print(MEAN, FACTOR, 1, NETWORK),
}


@pytest.fixture
def last(tmp_path: Path) -> Authority:
    """The authority of the recorded messages; its folder also holds the certificate and key of alice."""
    for name in ("ca.pem", "alice.pem", "alice.key"):
        (tmp_path / name).write_text(RECORDED[name])
    return Authority(tmp_path / "ca.pem", ["alice", "bob"])


def sealed(kind: str) -> bytes:
    return b64decode(RECORDED["sealed"][kind])


# What the last version sent is read


def test_a_status_of_the_last_version_is_read(last: Authority) -> None:
    assert open_status(sealed("status"), last, FEDERATION) == ("alice", STATUS)


def test_a_manifest_and_a_request_of_the_last_version_are_read(last: Authority) -> None:
    line, chunk = split_piece(sealed("piece"))
    found = open_manifest(line, last, FEDERATION, 1 << 20)
    found.check_chunk(0, chunk)
    assert (found.origin, found.kind, found.round, bytes(chunk)) == ("alice", "model", 3, b"weights " * 4)
    assert parse_request(RECORDED["request"]) == (BlobId("alice", "model", 3), 0)


@pytest.mark.parametrize("kind", BLOBS)
def test_blobs_are_the_same_bytes_in_both_versions(kind: str) -> None:
    assert BLOBS[kind]() == b64decode(RECORDED["blobs"][kind])


def test_blobs_of_the_last_version_are_read() -> None:
    blobs = {kind: b64decode(data) for kind, data in RECORDED["blobs"].items()}
    expected = ExpectedModel(6, torch.float32, ("similarity",), NETWORK, 5)
    with_tables = wire.unpack_model(blobs["model with tables"], expected)
    assert with_tables.contacts is not None
    assert with_tables.contacts.tolist() == [3, 7]
    for kind in ("model", "model with tables"):
        row = wire.unpack_model(blobs[kind], expected).row
        assert row is not None
        assert torch.equal(row, ROW)
    assert wire.unpack_model(blobs["diverged model"], expected).row is None
    assert torch.equal(wire.unpack_before(blobs["model before training"], expected), ROW / 2)
    mean, factor, count = wire.unpack_print(blobs["fingerprint"], SMALL_FEDERATION, NETWORK)
    assert torch.equal(mean, MEAN)
    assert torch.equal(factor, FACTOR)
    assert (count, wire.unpack_print(blobs["empty fingerprint"], SMALL_FEDERATION, NETWORK)[2]) == (4, 1)


# What this version sends is read by the last


def test_the_last_version_reads_a_status(last: Authority, tmp_path: Path) -> None:
    alice = Identity("alice", tmp_path / "alice.pem", tmp_path / "alice.key")
    now = Status(**{**STATUS.__dict__, "settings": (("rounds", "40"),)})
    read = protocol_1.open_status(
        seal_status(now, FEDERATION, alice), RECORDED["ca.pem"].encode(), {"alice"}, FEDERATION
    )
    assert read == protocol_1.open_status(sealed("status"), RECORDED["ca.pem"].encode(), {"alice"}, FEDERATION)


def test_the_last_version_reads_a_manifest(last: Authority, tmp_path: Path) -> None:
    alice = Identity("alice", tmp_path / "alice.pem", tmp_path / "alice.key")
    data = BLOBS["model"]()
    (piece,) = signed_pieces(data, FEDERATION, "model", 3, alice)
    body, chunk = protocol_1.open_piece(piece, RECORDED["ca.pem"].encode(), {"alice"}, FEDERATION)
    assert (chunk, body["chunks"], body["round"]) == (data, [sha256(data).hexdigest()], 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("listener", "method"), [("old", {"name": "random", "k": 1}), ("new", {"name": "random", "k": 1}), ("new", "kin")]
)
def test_a_peer_of_the_last_build_plays_with_one_of_this_build(
    tmp_path: Path, listener: str, method: dict[str, Any] | str
) -> None:
    """In lockstep, so that every round of each needs the model of the other."""
    archive = subprocess.run(
        ["git", "archive", LAST_BUILD, "homophily"], cwd=HERE.parents[1], capture_output=True, check=False
    )
    if archive.returncode or shutil.which("git") is None:
        pytest.skip(f"the history does not hold commit {LAST_BUILD}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as held:
        held.extractall(tmp_path / "last", filter="data")
    config = make({"rounds": 2, "peers": 2, "data": {"angles": [0]}, "method": method})
    files = write_files(config, 2, tmp_path, "lockstep")
    builds = [tmp_path / "last", HERE.parents[1]]
    peers = [
        subprocess.Popen(
            [sys.executable, "-m", "homophily", "peer", str(file)],
            env={**os.environ, "PYTHONPATH": str(build)},
            cwd=tmp_path,
        )
        for file, build in zip(files, builds if listener == "old" else builds[::-1], strict=True)
    ]
    assert [peer.wait(120) for peer in peers] == [0, 0]
    for i in range(2):
        run = Run(tmp_path / f"peer-{i}")
        assert [line["merged"] for line in run.metrics()] == [[f"peer-{1 - i}"]] * 2
        log = (tmp_path / f"peer-{i}" / "peer.log").read_text()
        assert "refused" not in log
        assert " runs " not in log, "the settings are the same"


# Versions that have nothing in common


@pytest.mark.parametrize(
    ("spoken", "reason"),
    [
        ([3, 3], "protocol version 3, but this peer has version 2: update the older one"),
        ([2, 1], "malformed protocol version"),
        ([0, 2], "malformed protocol version"),
        (["1", "2"], "malformed protocol version"),
        (2, "malformed protocol version"),
        (None, "malformed protocol version"),
    ],
)
def test_a_message_of_a_version_that_is_not_spoken_is_refused(people: People, spoken: Any, reason: str) -> None:
    class Later(Identity):
        def seal(self, body: Any) -> bytes:
            made = super().seal(body)
            text = json.dumps({**json.loads(json.loads(made)["body"]), "protocol": spoken})
            signature = b64encode(self._key.sign(text.encode())).decode()
            return json.dumps({**json.loads(made), "body": text, "signature": signature}).encode()

    people.identity("alice")
    alice = Later("alice", people.folder / "alice.pem", people.folder / "alice.key")
    with pytest.raises(Refused, match=reason):
        people.authority.open(alice.seal({}))


def test_a_later_version_that_the_last_can_read_is_accepted() -> None:
    for spoken in ([2, 3], [1, 1], [1, 9]):
        check_protocol(spoken)


# Settings


def test_settings_are_compared_field_by_field() -> None:
    mine = make({"rounds": 40, "training": {"lr": 0.1, "momentum": 0.5}, "method": {"name": "random", "k": 2}})
    theirs = make({"rounds": 60, "training": {"lr": 0.2, "momentum": 0.9}, "method": {"name": "random"}})
    a, b = (protocol.agreed_settings(config, None, {}) for config in (theirs, mine))
    assert protocol.differing_settings(a, b) == {
        "method.k": ("(left out)", "2"),
        "rounds": ("60", "40"),
        "training.momentum": ("0.9", "0.5"),
    }
    assert protocol.differing_settings(a, a) == {}


def test_constants_and_long_values_are_compared_by_their_hash() -> None:
    names = [f"layer-{i}" for i in range(100)]
    configs = [make({"model": {"name": "mlp", "personal": names[:count]}}) for count in (99, 100)]
    (mine, theirs) = (
        protocol.agreed_settings(config, digest, {}) for config, digest in zip(configs, "ab", strict=True)
    )
    found = protocol.differing_settings(theirs, mine)
    assert found["data.scale"] == ('"b"', '"a"')
    assert all(value.startswith("#") for value in found["model.personal"])


@pytest.mark.parametrize(
    "settings",
    [None, [], {"rounds": 40}, {"r" * 81: "4"}, {"rounds": "4" * 81}, {"rounds\n": "4"}, {"rounds": "4\n"},
     {str(i): "1" for i in range(129)}],
)  # fmt: skip
def test_malformed_settings_are_refused(people: People, settings: Any) -> None:
    status = {**STATUS.__dict__}
    del status["settings"], status["software"]
    body = {"federation": FEDERATION, "status": status, "settings": settings}
    with pytest.raises(Refused, match="malformed settings"):
        open_status(people.identity("alice").seal(body), people.authority, FEDERATION)
