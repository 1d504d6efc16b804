"""peer.toml: each mistake is reported in one sentence that names the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w

from homophily.errors import UserError
from homophily.peer.settings import Peer, PeerSettings, load, outside_loopback


def write(folder: Path, peer: Any, **config: Any) -> Path:
    path = folder / "peer.toml"
    path.write_text(tomli_w.dumps({**config, "peer": peer}))
    return path


def table(**changes: Any) -> dict[str, Any]:
    good: dict[str, Any] = {"name": "alice", "allow": ["alice", "bob"], "listen": ["127.0.0.1:7447"]}
    return {key: value for key, value in {**good, **changes}.items() if value is not ...}


def loaded(folder: Path, **changes: Any) -> PeerSettings:
    return load(write(folder, table(**changes)))


def test_a_file_gives_the_name_and_the_paths_of_a_peer(tmp_path: Path) -> None:
    found = load(write(tmp_path, table(), rounds=5))
    assert found.config.rounds == 5
    assert found.peer.name == "alice"
    assert found.certificate == tmp_path / "certs" / "alice.pem"
    assert found.key == tmp_path / "certs" / "alice.key"
    assert found.path(found.peer.ca) == tmp_path / "certs" / "ca.pem"
    assert found.state == tmp_path / "alice"


def test_files_may_be_elsewhere(tmp_path: Path) -> None:
    found = loaded(tmp_path, certificate="a.pem", key="/keys/a.key", state="memory")
    assert (found.certificate, found.key, found.state) == (tmp_path / "a.pem", Path("/keys/a.key"), tmp_path / "memory")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": ...}, r"peer\.name is missing"),
        ({"allow": ...}, r"peer\.allow is missing"),
        ({"nmae": "alice"}, r"unknown key peer\.nmae \(did you mean name\?\)"),
        ({"name": 3}, r"peer\.name = 3: must be a string"),
        ({"name": "Alice"}, r"peer\.name = 'Alice': must be 1 to 63 characters"),
        ({"name": "carol"}, r"peer\.allow must also name this peer itself, 'carol'"),
        ({"allow": "alice"}, r"peer\.allow = \"alice\": must be a list"),
        ({"allow": ["alice", 3]}, r"peer\.allow\.1 = 3: must be a string"),
        ({"allow": ["alice", "B O B"]}, r"peer\.allow = 'B O B': must be 1 to 63"),
        ({"allow": ["alice", "ca"]}, r"peer\.allow = 'ca': .* not 'ca'"),
        ({"allow": ["alice", "alice"]}, r"peer\.allow names 'alice' twice"),
        ({"log_files": 0}, r"peer\.log_files = 0: must be at least 1"),
        ({"log_mb": 0}, r"peer\.log_mb = 0: must be at least 0\.01"),
        ({"federation": ""}, r"peer\.federation = '': must be 1 to 63"),
        ({"federation": "a/b"}, r"peer\.federation = 'a/b': must be 1 to 63"),
        ({"federation": "**"}, r"peer\.federation = '\*\*': must be 1 to 63"),
        ({"listen": ["7447"]}, r"peer\.listen = '7447': must be host:port"),
        ({"listen": [":7447"]}, r"peer\.listen = ':7447': must be host:port"),
        ({"listen": ["127.0.0.1:0"]}, r"peer\.listen = '127\.0\.0\.1:0': must be host:port"),
        ({"listen": ["127.0.0.1:65536"]}, r"peer\.listen = .*: must be host:port"),
        ({"listen": ["127.0.0.1:²"]}, r"peer\.listen = .*: must be host:port"),
        ({"listen": ["127.0.0.1:" + "9" * 5000]}, r"peer\.listen = .*: must be host:port"),
        ({"listen": ["127.0.0.1:7447#iface=eth0:1"]}, r"peer\.listen = .*: must be host:port"),
        ({"listen": ["tcp/127.0.0.1:7447"]}, r"peer\.listen = .*: must be host:port"),
        ({"listen": ["::1:7447"]}, r"peer\.listen = .*: must be host:port"),
        ({"connect": ["bob"]}, r"peer\.connect = 'bob': must be host:port"),
        ({"connect": "bob:7447"}, r"peer\.connect = \"bob:7447\": must be a list"),
        ({"mesh": "torus"}, r"peer\.mesh = \"torus\": must be 'full' or 'partial'"),
        ({"device": "gpu"}, r"peer\.device = \"gpu\": must be 'auto', 'cpu' or 'cuda'"),
        ({"pace": "fast"}, r"peer\.pace = \"fast\": must be 'free' or 'lockstep'"),
        ({"wait_for": -1}, r"peer\.wait_for = -1: must be at least 0"),
        ({"deadline": 0.0}, r"peer\.deadline = 0\.0: must be greater than 0"),
        ({"lease": 0.1}, r"peer\.lease = 0\.1: must be at least 0\.5"),
        ({"pulls": 65}, r"peer\.pulls = 65: must be at most 64"),
        ({"window": 0}, r"peer\.window = 0: must be at least 1"),
        ({"slots": 1.5}, r"peer\.slots = 1\.5: must be a whole number"),
        ({"waiting": 65537}, r"peer\.waiting = 65537: must be at most 65536"),
        ({"cache_mb": 7}, r"peer\.cache_mb = 7: must be at least 8"),
        ({"classes": 1}, r"peer\.classes = 1: must be at least 2"),
        ({"share": 1}, r"peer\.share = 1: must be 0, the position of 'alice' in peer\.allow"),
    ],
)
def test_a_mistake_is_reported_with_its_key(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=f"^{sentence}"):
        loaded(tmp_path, **changes)


def test_a_file_without_a_peer_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "peer.toml").write_text("rounds = 3\n")
    with pytest.raises(UserError, match=r"has no table \[peer\]"):
        load(tmp_path / "peer.toml")
    with pytest.raises(UserError, match=r"has no table \[peer\]"):
        load(write(tmp_path, 3))


def test_the_rest_is_an_ordinary_config(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown key ruonds"):
        load(write(tmp_path, table(), ruonds=3))


def peer(listen: list[str], connect: list[str]) -> Peer:
    return Peer(name="alice", allow=["alice"], listen=listen, connect=connect)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"])
def test_these_are_loopback_addresses(address: str) -> None:
    assert not outside_loopback(peer([address], [address]))


@pytest.mark.parametrize(
    "address", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1", "localhost.example.org:1", "127.0.0.1.nip.io:1"]
)
def test_these_are_not_loopback_addresses(address: str) -> None:
    assert outside_loopback(peer(["127.0.0.1:1", address], [])) == [address]
    assert outside_loopback(peer([], ["127.0.0.1:1", address])) == [address]
