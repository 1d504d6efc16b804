"""Real links over loopback: who is refused, and that nothing is sent in plaintext. Honest peers continue."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import zenoh

from homophily.errors import UserError
from homophily.peer import Peer
from homophily.peer.transport import ZenohLinks, _config
from tests.patience import eventually
from tests.peer.linked import ALLOWED, HOST, QUIET, Pair, Someone, address, free_port, opened, session
from tests.peer.people import FEDERATION, People


def tries(intruder: zenoh.Session) -> None:
    """Says and asks all that an intruder could want to."""
    for key in ("tell/bob", "tell/mallory", "alive/mallory"):
        intruder.put(f"homophily/{FEDERATION}/{key}", b"from an intruder")
    intruder.liveliness().declare_token(f"homophily/{FEDERATION}/alive/mallory")
    assert not list(intruder.get(f"homophily/{FEDERATION}/ask/alice/secret", timeout=QUIET))


def assert_unheard(pair: Pair) -> None:
    assert b"from an intruder" not in pair.alice.heard + pair.bob.heard
    assert "secret" not in pair.alice.asked
    assert "mallory" not in pair.alice.there | pair.bob.there
    assert pair.go_on()


# Who is refused


def test_honest_peers_talk(pair: Pair) -> None:
    assert pair.go_on()
    assert pair.bob.links.neighbours() == {"alice"}
    assert pair.alice.strangers == []


def test_a_certificate_of_an_unknown_authority_gets_no_link(pair: Pair, people: People, strangers: People) -> None:
    for root in (strangers.ca, people.ca):  # also when it trusts ours
        intruder = session(address(strangers, "bob", free_port(), (pair.port,)), root_ca_certificate=str(root))
        tries(intruder)
        assert not list(intruder.info.transports())
        assert_unheard(pair)


def test_a_peer_without_a_certificate_gets_no_link(pair: Pair, people: People) -> None:
    intruder = session(address(people, "mallory", free_port(), (pair.port,)), enable_mtls=False)
    tries(intruder)
    assert not list(intruder.info.transports())
    assert_unheard(pair)


def test_no_link_is_opened_to_a_listener_with_an_unknown_certificate(people: People, strangers: People) -> None:
    port = free_port()
    impostor = session(address(strangers, "alice", port), enable_mtls=False)
    bob = Someone(address(people, "bob", free_port(), (port,)))
    time.sleep(QUIET)
    assert bob.links.neighbours() == frozenset()
    assert not list(impostor.info.transports())


def test_a_name_not_in_allow_can_neither_send_nor_receive_and_is_counted(pair: Pair, people: People) -> None:
    intruder = session(address(people, "mallory", free_port(), (pair.port,)))
    heard: list[bytes] = []
    intruder.declare_subscriber(f"homophily/{FEDERATION}/**", lambda sample: heard.append(sample.payload.to_bytes()))
    assert eventually(lambda: "mallory" in pair.alice.strangers)
    tries(intruder)
    assert_unheard(pair)
    assert set(heard) <= {b"from an intruder"}


def test_a_peer_cannot_impersonate_another(people: People) -> None:
    """bob is allowed, but leaves out our rules and says that he is carol."""
    three, port, root = (*ALLOWED, "carol"), free_port(), f"homophily/{FEDERATION}"
    alice = Someone(replace(address(people, "alice", port), allowed=three))
    carol = Someone(replace(address(people, "carol", free_port(), (port,)), allowed=three))
    bob = session(replace(address(people, "bob", free_port(), (port,)), allowed=three))
    assert eventually(lambda: alice.links.neighbours() == {"bob", "carol"} and "carol" in alice.there)

    def lie(query: zenoh.Query) -> None:
        query.reply(query.key_expr, b"lies")
        query.drop()

    bob.declare_queryable(f"{root}/ask/carol/**", lie)
    bob.declare_queryable(f"{root}/ask/bob/**", lie)
    assert eventually(lambda: "x" in carol.asked or alice.links.request("carol", "x", 5.0, 2))
    assert eventually(lambda: alice.links.request("bob", "x", 5.0) == [b"lies"])  # for himself he may
    assert [alice.links.request("carol", "x", 5.0, 2) for _ in range(5)] == [[b"to x"]] * 5
    bob.put(f"{root}/tell/carol", b"from an intruder")
    token = bob.liveliness().declare_token(f"{root}/alive/carol")
    carol.links.close()
    assert eventually(lambda: "carol" not in alice.there)
    assert b"from an intruder" not in alice.heard
    token.undeclare()


def test_plain_tcp_is_refused_at_a_tls_port(pair: Pair, people: People) -> None:
    plain = opened(zenoh.open(_config(address(people, "mallory", free_port(), (pair.port,), secure=False))))
    with socket.create_connection((HOST, pair.port), 5) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(range(256)) * 64)
    with socket.create_connection((HOST, pair.port), 5) as raw:
        raw.sendall(b"\x16\x03\x01\xff\xff\x01")  # the beginning of a handshake that promises more than it sends
        tries(plain)
    assert not list(plain.info.transports())
    assert_unheard(pair)


def test_tls_without_a_certificate_ends_with_an_alert(pair: Pair, people: People) -> None:
    context = ssl.create_default_context(cafile=str(people.ca))
    with (
        socket.create_connection((HOST, pair.port), 5) as raw,
        context.wrap_socket(raw, server_hostname=HOST) as wrapped,
        pytest.raises(OSError, match=r"(?i)certificate.required|reset"),
    ):
        wrapped.recv(1)
    assert pair.go_on()


def test_idle_connections_keep_no_peer_out(pair: Pair, people: People) -> None:
    for _ in range(50):
        opened(socket.create_connection((HOST, pair.port), 5))
    pair.bob.links.close()
    pair.bob = Someone(address(people, "bob", free_port(), (pair.port,)))
    assert eventually(lambda: "alice" in pair.bob.there and "bob" in pair.alice.there)
    assert pair.go_on()


# Plaintext


def settings_of(people: People, folder: Path, **changes: Any) -> Path:
    table = {
        "name": "alice", "allow": list(ALLOWED), "listen": [f"{HOST}:{free_port()}"], "ca": str(people.ca),
        "certificate": str(people.folder / "alice.pem"), "key": str(people.folder / "alice.key"), **changes,
    }  # fmt: skip
    people.identity("alice")
    (folder / "peer.toml").write_text(tomli_w.dumps({"peer": table}))
    return folder / "peer.toml"


@pytest.mark.parametrize("key", ["ca", "certificate", "key"])
@pytest.mark.parametrize("insecure", [[], ["--insecure"]])
def test_a_missing_certificate_is_an_error_and_never_plaintext(
    people: People, tmp_path: Path, command: Callable[..., tuple[int, str, str]], key: str, insecure: list[str]
) -> None:
    file = settings_of(people, tmp_path, **{key: "nowhere.pem"})
    code, _, err = command("peer", str(file), *insecure)
    assert code == 2
    assert "cannot read the" in err
    assert "nowhere.pem" in err
    assert "Traceback" not in err
    assert not (tmp_path / "alice").exists()


@pytest.mark.parametrize("where", [{"listen": ["0.0.0.0:7447"]}, {"connect": ["10.1.2.3:7447"]}])
def test_plaintext_is_refused_off_loopback(
    people: People, tmp_path: Path, command: Callable[..., tuple[int, str, str]], where: dict[str, Any]
) -> None:
    code, _, err = command("peer", str(settings_of(people, tmp_path, **where)), "--insecure")
    assert code == 2
    assert "--insecure is allowed only if peer.listen and peer.connect are loopback addresses" in err
    assert not (tmp_path / "alice").exists()


def test_a_certificate_that_the_others_would_refuse_is_an_error(
    people: People, strangers: People, tmp_path: Path
) -> None:
    strangers.identity("alice")
    theirs = {"certificate": str(strangers.folder / "alice.pem"), "key": str(strangers.folder / "alice.key")}
    with pytest.raises(UserError, match=r"other peers will refuse .*: certificate not issued by this authority"):
        Peer(settings_of(people, tmp_path, **theirs)).result()


def test_plaintext_that_was_asked_for_works_on_loopback(people: People) -> None:
    pair = Pair(people, secure=False)
    assert pair.go_on()


def test_a_port_in_use_is_reported(people: People) -> None:
    with socket.socket() as held:
        held.bind((HOST, 0))
        held.listen()
        with pytest.raises(UserError, match=r"peer\.listen: cannot listen on 127\.0\.0\.1"):
            ZenohLinks(address(people, "alice", held.getsockname()[1]))
