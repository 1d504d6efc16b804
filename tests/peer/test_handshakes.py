"""A peer that runs in its own process counts failed handshakes and logs failed connections; links use loopback."""

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

from homophily.peer.handshakes import ConnectFailures, plain_reason, watch_handshakes
from homophily.peer.logs import peer_logger
from homophily.peer.refusals import Refusals
from tests.patience import until
from tests.peer.field import Field
from tests.peer.people import People

LOG = peer_logger("me")


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Field]:
    """One peer of two, which does not wait for the other."""
    field = Field(tmp_path / "field", 2)
    field.start(0)
    until(lambda: field.round(0) > 0, "it plays")
    yield field
    field.close()


def handshake(port: int, certificate: tuple[Path, Path] | None) -> None:
    """Attempt a handshake with or without a certificate; the other end closes it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(*certificate)
    plain = socket.create_connection(("127.0.0.1", port), 10)
    with suppress(OSError), context.wrap_socket(plain) as secure:
        secure.send(b"x")
        assert not secure.recv(1)


def test_connections_without_a_valid_certificate_are_counted_and_logged_once(alone: Field, tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    strangers = People(tmp_path / "others")
    strangers.identity("bob")
    port = int(tomllib.loads(alone.files[0].read_text())["peer"]["listen"][0].rpartition(":")[2])
    for _ in range(3):
        handshake(port, None)
    handshake(port, (strangers.folder / "bob.pem", strangers.folder / "bob.key"))
    until(lambda: sum(alone.status(0)["refused"].values()) == 4, "all four are counted")
    refused = alone.status(0)["refused"]
    assert refused.pop("handshake: peer sent no certificates") == 3
    assert refused == {"handshake: certificate not issued by the authority in peer.ca": 1}
    assert (alone.run(0).path / "peer.log").read_text().count("sent no certificates") == 1


def test_idle_connections_do_not_stop_a_peer(tmp_path: Path) -> None:
    """There are more of them than the soft limit on open files, which a peer raises."""
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


def test_the_reason_why_a_connection_fails_is_logged_once(tmp_path: Path) -> None:
    field = Field(tmp_path / "field", 2)
    field.start(1)  # which dials the other
    log = field.folder / field.names[1] / "peer.log"
    until(lambda: log.exists() and "connection to" in log.read_text(), "the failed connection is logged")
    field.go_on(1)
    field.close()
    (line,) = [line for line in log.read_text().splitlines() if "connection to" in line]
    (other,) = tomllib.loads(field.files[1].read_text())["peer"]["connect"]
    assert line.endswith(f" connection to {other} failed: Connection refused (os error 111); retrying every 2 s")


def test_a_failed_connection_is_logged_again_when_the_reason_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, said = 0.0, []
    monkeypatch.setattr("homophily.peer.handshakes.time.monotonic", lambda: clock)
    monkeypatch.setattr(LOG, "warning", lambda text, *a: said.append(text % a))
    failures = ConnectFailures(LOG)
    for clock, why in [  # noqa: B007
        (0.0, "refused"), (4.0, "refused"), (6.0, "refused"), (8.0, "refused"), (10.0, "expired"),
        (300.0, "expired"), (302.0, "expired"), (306.0, "expired"),
    ]:  # fmt: skip
        failures.add("bob:7447", why)
    assert said == [
        "connection to bob:7447 failed: refused; retrying every 2 s",
        "connection to bob:7447 failed: expired; retrying every 2 s",
        "connection to bob:7447 failed: expired; retrying every 2 s",
    ]
    assert failures.current() == {"bob:7447": "expired"}
    clock = 320.0
    assert failures.current() == {}  # it was reached, because nothing has failed since


def test_a_connection_to_itself_is_not_logged_and_a_name_clash_is(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, said = 0.0, []
    monkeypatch.setattr("homophily.peer.handshakes.time.monotonic", lambda: clock)
    monkeypatch.setattr(LOG, "warning", lambda text, *a: said.append(text % a))
    failures = ConnectFailures(LOG)
    closed = "Received a close message (reason %s) in response to an OpenSyn on: Transp"
    for clock in (0.0, 6.0):  # noqa: B007
        failures.add("me:7447", plain_reason(closed % "CONNECTION_TO_SELF"))
        failures.add("bob:7447", plain_reason(closed % "MAX_LINKS"))
    why = "another process with this peer's name is already connected there: stop one of the two"
    assert said == [f"connection to bob:7447 failed: {why}; retrying every 2 s"]


@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        (
            "invalid peer certificate: certificate expired: verification time 1794865821 (UNIX), but certificate is "
            "not valid after 1794606613 (259208 seconds ago)",
            "certificate expired on 2026-11-13",
        ),
        (
            "invalid peer certificate: certificate not valid yet: verification time 1794865821 (UNIX), but certificate "
            "is not valid before 1795000000 (134179 seconds in future)",
            "certificate not valid before 2026-11-18: check the clocks of both machines",
        ),
        (
            'invalid peer certificate: certificate not valid for name "10.0.0.7"; certificate is only valid for '
            'DnsName("bob")',
            "certificate does not name 10.0.0.7: issue it with --host 10.0.0.7",
        ),
        ("invalid peer certificate: BadSignature", "certificate not issued by the authority in peer.ca"),
        ("invalid peer certificate: UnknownIssuer", "certificate not issued by the authority in peer.ca"),
        (
            "received fatal alert: BadCertificate",
            "the other end rejected this peer with the TLS alert BadCertificate",
        ),
        ("deadline has elapsed", "no answer to the TLS handshake"),
        ("Connection refused (os error 111)", "Connection refused (os error 111)"),
    ],
)
def test_reasons_are_plain_and_do_not_change_with_time(raw: str, plain: str) -> None:
    assert plain_reason(raw) == plain


def test_other_output_passes_through(capfd: pytest.CaptureFixture[str]) -> None:
    refusals = Refusals(LOG)
    line = b"2026-11-15T21:56:19.462966Z  WARN acc-0 ThreadId(05) \x1b[2mzenoh_link_tls::unicast\x1b[0m: %s\n"
    with watch_handshakes(refusals, LOG):
        print("another line")
        sys.stdout.flush()
        os.write(1, line % b"received corrupt message. Hint: increase the system open file limit.")
        os.write(1, line % (1000 * b"long"))
        os.write(1, b"2026-11-15T21:56:20Z DEBUG net-0 ThreadId(03) zenoh::net::runtime::orchestrator: Try to\n")
        os.write(1, b"no end of line")
    print("the last line")
    assert capfd.readouterr().out == "another line\nno end of linethe last line\n"
    assert refusals.counts() == {"handshake: received corrupt message": 1, f"handshake: {25 * 'long'}": 1}
