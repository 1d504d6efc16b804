"""Handshakes that fail are counted by a peer that is a process of its own; links are real, over loopback."""

import os
import resource
import socket
import ssl
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from homophily.peer.handshakes import _Dials, counted
from homophily.peer.logs import peer_logger
from homophily.peer.refusals import Refusals
from tests.peer.field import Field, until
from tests.peer.people import People

LOG = peer_logger("me")


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Field]:
    """One peer of two, waiting for nobody."""
    field = Field(tmp_path / "field", 2)
    field.start(0)
    until(lambda: field.round(0) > 0, "it plays")
    yield field
    field.close()


def knock(port: int, certificate: tuple[Path, Path] | None) -> None:
    """A handshake, with a certificate and its key or without; the other side ends it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(*certificate)
    plain = socket.create_connection(("127.0.0.1", port), 10)
    with suppress(OSError), context.wrap_socket(plain) as secure:
        secure.send(b"x")
        assert not secure.recv(1)


def test_who_has_no_certificate_or_a_strangers_is_counted_and_logged_once(alone: Field, tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    strangers = People(tmp_path / "others")
    strangers.identity("bob")
    port = int(tomllib.loads(alone.files[0].read_text())["peer"]["listen"][0].rpartition(":")[2])
    for _ in range(3):
        knock(port, None)
    knock(port, (strangers.folder / "bob.pem", strangers.folder / "bob.key"))
    until(lambda: sum(alone.status(0)["refused"].values()) == 4, "all four are counted")
    refused = alone.status(0)["refused"]
    assert refused.pop("handshake: peer sent no certificates") == 3
    (reason,) = refused
    assert reason.startswith("handshake: invalid peer certificate")
    assert (alone.run(0).path / "peer.log").read_text().count("sent no certificates") == 1


def test_connections_that_say_nothing_stop_nobody(tmp_path: Path) -> None:
    """More of them than a process may open files unless it asks for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    field = Field(tmp_path / "field", 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    field.start(0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    until(lambda: field.round(0) > 0, "it plays")
    (address,) = tomllib.loads(field.files[0].read_text())["peer"]["listen"]
    host, _, port = address.rpartition(":")
    with ExitStack() as idle:
        for _ in range(300):
            idle.enter_context(socket.create_connection((host, int(port)), timeout=5.0))
        field.go_on(0, rounds=10)
    field.close()


def test_why_a_peer_cannot_be_reached_is_logged_once(tmp_path: Path) -> None:
    field = Field(tmp_path / "field", 2)
    field.start(1)  # which dials the other
    log = field.folder / field.names[1] / "peer.log"
    until(lambda: log.exists() and "connection to" in log.read_text(), "it says so")
    field.go_on(1)
    field.close()
    (line,) = [line for line in log.read_text().splitlines() if "connection to" in line]
    (other,) = tomllib.loads(field.files[1].read_text())["peer"]["connect"]
    assert line.endswith(f" connection to {other} failed: Connection refused (os error 111); retrying every 2 s")


def test_an_unreached_peer_is_spoken_of_again_when_the_reason_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, said = 0.0, []
    monkeypatch.setattr("homophily.peer.handshakes.time.monotonic", lambda: clock)
    monkeypatch.setattr(LOG, "warning", lambda text, *a: said.append(text % a))
    dials = _Dials(LOG)
    for clock, why in [  # noqa: B007
        (0.0, "refused"), (4.0, "refused"), (6.0, "refused"), (8.0, "refused"), (10.0, "expired"),
        (300.0, "expired"), (302.0, "expired"), (306.0, "expired"),
    ]:  # fmt: skip
        dials.failed("bob:7447", why)
    assert said == [
        "connection to bob:7447 failed: refused; retrying every 2 s",
        "connection to bob:7447 failed: expired; retrying every 2 s",
        "connection to bob:7447 failed: expired; retrying every 2 s",
    ]


def test_ones_own_address_is_no_fault_and_ones_own_name_elsewhere_is(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, said = 0.0, []
    monkeypatch.setattr("homophily.peer.handshakes.time.monotonic", lambda: clock)
    monkeypatch.setattr(LOG, "warning", lambda text, *a: said.append(text % a))
    dials, closed = _Dials(LOG), "Received a close message (reason %s) in response to an OpenSyn on: Transp"
    for clock in (0.0, 6.0):  # noqa: B007
        dials.failed("me:7447", closed % "CONNECTION_TO_SELF")
        dials.failed("bob:7447", closed % "MAX_LINKS")
    why = "another process with this peer's name is connected there already"
    assert said == [f"connection to bob:7447 failed: {why}; retrying every 2 s"]


def test_what_else_is_written_passes_through(capfd: pytest.CaptureFixture[str]) -> None:
    refusals = Refusals(LOG)
    line = b"2026-11-15T21:56:19.462966Z  WARN acc-0 ThreadId(05) \x1b[2mzenoh_link_tls::unicast\x1b[0m: %s\n"
    with counted(refusals, LOG):
        print("a word of one's own")
        sys.stdout.flush()
        os.write(1, line % b"received corrupt message. Hint: increase the system open file limit.")
        os.write(1, line % (1000 * b"long"))
        os.write(1, b"2026-11-15T21:56:20Z DEBUG net-0 ThreadId(03) zenoh::net::runtime::orchestrator: Try to\n")
        os.write(1, b"no end of line")
    print("and one more")
    assert capfd.readouterr().out == "a word of one's own\nno end of lineand one more\n"
    assert refusals.counts() == {"handshake: received corrupt message": 1, f"handshake: {20 * 'long'}": 1}
