"""What `homophily doctor` finds: a healthy peer, whether it runs or not, and faults that are made for real."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from homophily.peer import certificates, federation_folder
from homophily.peer.doctor import Check, examine
from homophily.peer.identity import Identity
from homophily.peer.membership import Status, seal_status
from homophily.peer.network import address_of
from homophily.peer.settings import load
from homophily.peer.transport import LinkHandlers, ZenohLinks
from homophily.version import __version__
from tests.patience import until
from tests.peer.field import Field
from tests.peer.linked import free_port

Command = Callable[..., tuple[int, str, str]]


def found(file: Path) -> dict[str, Check]:
    return {check.subject: check for check in examine(file)}


def to_do(file: Path) -> dict[str, str]:
    """The lines that are not ok."""
    return {check.subject: check.text for check in examine(file) if not check.ok}


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Field]:
    """Two peers; the second dials the first."""
    field = Field(tmp_path / "field", 2)
    yield field
    field.close()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is online who could be heard, so that there is nothing to wait for."""
    monkeypatch.setattr("homophily.peer.doctor._LISTEN_SECONDS", 0.5)


def changed(file: Path, old: str, new: str) -> Path:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    return file


def address(file: Path) -> str:
    """The one address that a peer dials."""
    (only,) = load(file).peer.connect
    return only


def test_all_is_ok_before_the_peer_runs_and_while_it_runs(two: Field) -> None:
    two.start(0)
    until(lambda: two.round(0) > 1, "the first plays")
    before = found(two.files[1])
    assert all(check.ok for check in before.values()), before
    assert before[f"dial {address(two.files[1])}"].text.startswith("peer-0, connected in ")
    assert "MB/s" in before["peer-0: link"].text
    assert {"file", "certificate", "data", "disk", "name 127.0.0.1", "peer-0", "peer-0: clock", "peer-0: settings"} < {
        *before
    }
    assert before["peer-0: version"].text == f"homophily {__version__}"
    assert not (two.folder / "peer-1").exists(), "it writes nothing"
    two.start(1)
    two.all_meet(0, 1)
    words = [sys.executable, "-m", "homophily", "doctor", str(two.files[1]), "--json"]
    # In a process of its own, because zenoh, once it logs, writes to the standard output until its process ends.
    assert json.loads(subprocess.check_output(words))["ok"] is True
    assert found(two.files[0])["peer-1"].text == "connected to the running peer; it cannot be dialled from here"
    two.go_on(0, 1)
    assert two.status(0)["refused"] == {}, "the doctor makes requests that are allowed only"
    two.all_meet(0, 1)


def test_a_mistake_in_the_file_is_the_only_line(two: Field, command: Command) -> None:
    changed(two.files[1], 'mesh = "full"', 'mesh = "fool"')
    code, out, _ = command("doctor", str(two.files[1]))
    assert code == 1
    assert out.startswith("FIX  file: peer.mesh")
    assert out.count("\n") == 1


@pytest.mark.usefixtures("hasty")
def test_a_peer_that_is_offline_and_a_closed_port(two: Field) -> None:
    assert to_do(two.files[1]) == {
        f"dial {address(two.files[1])}": "connection refused: start the peer there, or correct peer.connect",
        "peer-0": "offline: start it, or add an address of it, or of a peer that reaches it, to peer.connect",
    }


@pytest.mark.usefixtures("hasty")
def test_a_port_in_use_and_a_name_that_does_not_resolve(two: Field) -> None:
    two.start(0)
    until(lambda: two.round(0) > 0, "the first plays")
    taken = load(two.files[0]).peer.listen[0]
    changed(two.files[1], address(two.files[1]), f"nowhere.invalid:{free_port()}")
    changed(two.files[1], load(two.files[1]).peer.listen[0], taken)
    wrong = to_do(two.files[1])
    assert wrong[f"listen {taken}"].startswith("Address already in use: change peer.listen")
    assert "correct peer.connect, or the name service" in wrong["name nowhere.invalid"]


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("days", [0, 7])
def test_a_certificate_that_has_expired_or_soon_will(two: Field, days: int) -> None:
    for end in ("pem", "key"):
        (two.folder / "certs" / f"peer-1.{end}").unlink()
    certificates.issue(two.folder / "certs", "peer-1", ["127.0.0.1"], days)
    says = "expired on" if days == 0 else "expires on"
    assert says in to_do(two.files[1])["certificate"]


@pytest.mark.usefixtures("hasty")
def test_a_listener_whose_certificate_has_expired(two: Field) -> None:
    for end in ("pem", "key"):
        (two.folder / "certs" / f"peer-0.{end}").unlink()
    certificates.issue(two.folder / "certs", "peer-0", ["127.0.0.1"], 0)
    with links_of(two, 0):
        wrong = to_do(two.files[1])[f"dial {address(two.files[1])}"]
    assert wrong == "the certificate of the other end has expired: issue a new one there"


@pytest.mark.usefixtures("hasty")
def test_a_port_of_another_program_a_certificate_without_the_address_and_a_name_that_is_not_allowed(
    two: Field, tmp_path: Path
) -> None:
    dial = f"dial {address(two.files[1])}"
    host, _, port = address(two.files[1]).partition(":")
    with socket.create_server((host, int(port))) as other:
        threading.Thread(target=_greet, args=(other,), daemon=True).start()
        assert to_do(two.files[1])[dial] == "this is not the port of a peer: it does not answer with TLS"
    certs = two.folder / "certs"
    for end in ("pem", "key"):
        (certs / f"peer-0.{end}").unlink()
    certificates.issue(certs, "peer-0", ["192.0.2.7"])
    with links_of(two, 0):
        wrong = to_do(two.files[1])[dial]
    assert wrong == f"the certificate of the other end does not name {host}: issue it with --host {host}"
    for end in ("pem", "key"):
        (certs / f"peer-0.{end}").unlink()
    certificates.issue(certs, "peer-0", [host])
    changed(two.files[1], '"peer-0"', '"peer-9"')
    with links_of(two, 0):
        wrong = to_do(two.files[1])[dial]
    assert wrong == "peer-0 is not in peer.allow: add it, or correct peer.connect"


def _greet(other: socket.socket) -> None:
    connection, _ = other.accept()
    with connection:
        connection.sendall(b"220 mail.example.org ESMTP\r\n")
        connection.recv(1000)


@pytest.mark.usefixtures("hasty")
def test_addresses_are_dialled_side_by_side(two: Field, monkeypatch: pytest.MonkeyPatch) -> None:
    """None answers before all were dialled, and the first does so last; the order of the lines is that of the file."""
    monkeypatch.setattr("homophily.peer.doctor._DIAL_SECONDS", 30.0)
    others = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    addresses = [f"127.0.0.1:{other.getsockname()[1]}" for other in others]
    changed(two.files[1], address(two.files[1]), '", "'.join(addresses))
    answering = threading.Thread(target=_answer_from_the_last, args=(others,), daemon=True)
    answering.start()
    dials = {subject: text for subject, text in to_do(two.files[1]).items() if subject.startswith("dial ")}
    answering.join()
    text = "this is not the port of a peer: it does not answer with TLS"
    assert list(dials.items()) == [(f"dial {one}", text) for one in addresses]


def _answer_from_the_last(others: list[socket.socket]) -> None:
    """Accept a connection at each port, then answer one after the other, each when the one before has ended."""
    accepted = [other.accept()[0] for other in others]
    for other in others:
        other.close()
    for connection in reversed(accepted):
        with connection, suppress(OSError):
            connection.sendall(b"220 mail.example.org ESMTP\r\n")
            while connection.recv(1000):
                pass


@pytest.mark.usefixtures("hasty")
def test_a_membership_document_that_ends(two: Field, monkeypatch: pytest.MonkeyPatch) -> None:
    certs = two.folder / "certs"
    monkeypatch.setattr(federation_folder, "_DAYS", 20)
    federation_folder.init(certs, "federation")
    for name in two.names:
        federation_folder.add(certs, name)
    text = two.files[1].read_text()
    two.files[1].write_text(
        re.sub(r"allow = \[[^]]*\]", 'membership = "certs/membership.json"', re.sub(r"share = .*", "", text))
    )
    assert re.fullmatch(
        r"version 3, valid until .*: ask the authority for a new one", to_do(two.files[1])["membership"]
    )
    monkeypatch.undo()
    federation_folder.add(certs, "peer-2")
    assert found(two.files[1])["membership"].ok


@pytest.mark.usefixtures("hasty")
def test_another_authority_on_either_side(two: Field, tmp_path: Path) -> None:
    other = tmp_path / "other"
    certificates.init(other)
    certificates.issue(other, "peer-1", ["127.0.0.1"])
    two.start(0)
    until(lambda: two.round(0) > 0, "the first plays")
    dial = f"dial {address(two.files[1])}"
    shutil.copy(two.folder / "certs" / "ca.pem", tmp_path / "ours.pem")
    text = two.files[1].read_text()
    ours = f'ca = "{tmp_path / "ours.pem"}"'
    theirs = f'ca = "{other / "ca.pem"}"'
    pair = f'certificate = "{other / "peer-1.pem"}"\nkey = "{other / "peer-1.key"}"'
    two.files[1].write_text(f"{text}\n{theirs}\n")
    assert "was not issued by" in to_do(two.files[1])["certificate"]
    two.files[1].write_text(f"{text}\n{theirs}\n{pair}\n")
    assert to_do(two.files[1])[dial] == "the certificate of the other end was not issued by the authority in peer.ca"
    two.files[1].write_text(f"{text}\n{ours}\n{pair}\n")
    wrong = to_do(two.files[1])
    assert "was not issued by" in wrong["certificate"]
    assert wrong[dial].startswith("the other end refused this peer's certificate")


@contextmanager
def links_of(field: Field, peer: int) -> Iterator[ZenohLinks]:
    """The links of a peer that does not run, whose certificate may be one that a peer would not start with."""
    good = address_of(load(field.files[1 - peer]), insecure=False)
    folder, name = field.folder / "certs", field.names[peer]
    listen = tuple(load(field.files[peer]).peer.listen)
    tls = folder / "ca.pem", folder / f"{name}.pem", folder / f"{name}.key"
    links = ZenohLinks(replace(good, name=name, listen=listen, connect=(), tls=tls))
    links.listen(LinkHandlers(*[lambda given: None] * 5))
    try:
        yield links
    finally:
        links.close()


def test_a_wrong_clock_and_other_settings(two: Field) -> None:
    certs = two.folder / "certs"
    identity = Identity("peer-0", certs / "peer-0.pem", certs / "peer-0.key")
    hour, settings = 3600 * 10**9, (("rounds", "7"),)
    with links_of(two, 0) as links:
        done = threading.Event()

        def announce() -> None:
            while not done.wait(0.2):
                status = Status(time=time.time_ns() + hour, neighbours=("peer-1",), settings=settings, software="9.1")
                links.broadcast(seal_status(status, "federation", identity))

        thread = threading.Thread(target=announce)
        thread.start()
        checks = list(examine(two.files[1]))
        done.set()
        thread.join()
    wrong = [check.text for check in checks if check.subject == "peer-0: clock"]
    assert len(wrong) == 1
    assert re.match(r"3(600\.0|59\d\.\d) s ahead of", wrong[0])  # less by the time that the message took
    assert wrong[0].endswith("set both clocks, for example with NTP")
    assert f"homophily 9.1, {__version__} here" in [
        check.text for check in checks if check.subject == "peer-0: version"
    ]
    differing = [check.text for check in checks if check.subject == "peer-0: settings"]
    assert "rounds = 7, but 100000 here: give both the same value" in differing


@pytest.mark.skipif(os.geteuid() != 0, reason="a small tmpfs needs root")
@pytest.mark.usefixtures("hasty")
def test_a_full_disk(two: Field, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=True)
    try:
        two.files[1].write_text(f'{two.files[1].read_text()}\nstate = "{small / "state"}"\n')
        assert to_do(two.files[1])["disk"].startswith(f"{small} has 1 MB free, but ")
    finally:
        subprocess.run(["umount", str(small)], check=True)
