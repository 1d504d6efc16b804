"""Joining by invitation: the token, the code that two people compare, and what is written on both sides."""

from __future__ import annotations

import json
import logging
import secrets
import socket
import ssl
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homophily.errors import UserError
from homophily.peer import admission, authority_client, certificates, federation_folder
from homophily.peer import channel as channel_module
from homophily.peer.authority_client import MOST_BYTES, newer_document, received, renew_certificate
from homophily.peer.authority_service import AuthorityService
from homophily.peer.channel import Channel, ChannelBroken, dial, unverified, verified
from homophily.peer.invitation import Invitation, commitment, short_code
from homophily.peer.joining import NewPeer, join
from homophily.peer.settings import load
from tests.patience import until
from tests.peer.linked import free_port


class Office:
    """An authority with its service, and a person who confirms codes."""

    def __init__(self, folder: Path, rounds: int = 7) -> None:
        self.folder, self.at, self.said = folder / "certs", f"127.0.0.1:{free_port()}", list[str]()
        (folder / "shared.toml").write_text(f'rounds = {rounds}\nmethod = "random"\n')
        federation_folder.init(self.folder, "clinics", folder / "shared.toml", [self.at])
        self.service = AuthorityService(self.folder, [self.at], self.said.append)

    def invite(self, name: str, hours: float = 1.0) -> Invitation:
        return Invitation.read(admission.invite(self.folder, name, hours).token())

    def confirm(self, name: str, code: str) -> None:
        until(lambda: name in admission.waiting(self.folder), "the request waits")
        admission.confirm(self.folder, name, code)


class Joiner:
    """A new peer that joins in a thread of its own."""

    def __init__(self, invitation: Invitation, folder: Path, **options: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.new, self.codes, self.error = NewPeer(folder / "peer.toml", **options), list[str](), ""
        self._thread = threading.Thread(target=self._join, args=(invitation,), daemon=True)
        self._thread.start()

    def _join(self, invitation: Invitation) -> None:
        try:
            join(invitation, self.new, self.codes.append)
        except UserError as error:
            self.error = str(error)

    def code(self) -> str:
        until(lambda: self.codes, "a code")
        return self.codes[0]

    def end(self) -> str:
        """The error of the end, if there is one."""
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.error


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    made = Office(tmp_path)
    yield made
    made.service.close()


def joined(office: Office, invitation: Invitation, folder: Path, **options: Any) -> Joiner:
    joiner = Joiner(invitation, folder, **options)
    office.confirm(invitation.name, joiner.code())
    assert joiner.end() == ""
    return joiner


def test_a_new_peer_gets_its_certificate_and_file_and_its_key_never_travels(office: Office, tmp_path: Path) -> None:
    folder = tmp_path / "f"
    joined(office, office.invite("hospital-f"), folder, listen=["127.0.0.1:7001"], data="own.npz")
    key = folder / "certs/hospital-f.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert not (office.folder / "hospital-f.key").exists()
    secret = key.read_text().splitlines()[1]
    assert not any(secret in path.read_text() for path in office.folder.iterdir())
    found = load(folder / "peer.toml")
    assert (found.peer.name, found.peer.federation, found.peer.allow) == ("hospital-f", "clinics", ["hospital-f"])
    assert (found.config.rounds, found.config.data.name, found.peer.listen) == (7, "own.npz", ["127.0.0.1:7001"])
    assert found.document is not None
    assert found.document.members["hospital-f"].addresses == ("127.0.0.1:7001",)
    assert found.document.authority == (office.at,)
    hosts = certificates.hosts_in(certificates.read_certificate(found.certificate))
    assert hosts == ["hospital-f", "127.0.0.1"]


def test_an_invitation_is_used_once_but_the_same_key_gets_its_certificate_again(office: Office, tmp_path: Path) -> None:
    invitation = office.invite("hospital-f")
    first = joined(office, invitation, tmp_path / "f")
    made = tmp_path / "f/certs/hospital-f.pem"
    before = made.read_bytes()
    made.unlink()  # as if the connection had broken before the certificate came
    again = Joiner(invitation, tmp_path / "f")
    assert (again.end(), again.codes, made.read_bytes()) == ("", [], before)
    assert first.codes
    other = Joiner(invitation, tmp_path / "g")
    assert other.end().startswith("the invitation of hospital-f was used on 20")
    assert (
        Joiner(invitation, tmp_path / "f")
        .end()
        .endswith("this peer has joined; move it away to ask for a new certificate")
    )


def test_an_expired_or_replaced_invitation_is_refused(office: Office, tmp_path: Path) -> None:
    invitation = office.invite("hospital-f", hours=-1)
    assert Joiner(invitation, tmp_path / "f").end().startswith("the invitation of hospital-f expired on 20")
    replaced = office.invite("hospital-f")
    office.invite("hospital-f")
    assert Joiner(replaced, tmp_path / "f").end().startswith("this invitation is not known: a newer one may have")
    stolen = replace(office.invite("hospital-f"), name="hospital-g")
    assert Joiner(stolen, tmp_path / "f2").end().startswith("this invitation is not known")
    assert "hospital-f" not in federation_folder.current(office.folder).members


def test_a_wrong_code_admits_nobody_and_three_end_the_invitation(office: Office, tmp_path: Path) -> None:
    joiner = Joiner(office.invite("hospital-f"), tmp_path / "f")
    wrong = f"{(int(joiner.code()) + 1) % 10**6:06}"
    with pytest.raises(UserError, match=r"not the code that hospital-f must read out.*2 more can be typed"):
        office.confirm("hospital-f", wrong)
    with pytest.raises(UserError, match="1 more can be typed"):
        office.confirm("hospital-f", wrong)
    with pytest.raises(UserError, match="the invitation is void: make a new one of hospital-f"):
        office.confirm("hospital-f", wrong)
    assert joiner.end().startswith("the code of hospital-f was wrong 3 times, so that its invitation is void")
    with pytest.raises(UserError, match="'hospital-f' does not ask for a certificate; asking: nobody"):
        admission.confirm(office.folder, "hospital-f", joiner.code())
    assert federation_folder.current(office.folder).members == {}
    key = (tmp_path / "f/certs/hospital-f.key").read_bytes()
    joined(office, office.invite("hospital-f"), tmp_path / "f")
    assert (tmp_path / "f/certs/hospital-f.key").read_bytes() == key  # nothing is lost


def test_an_authority_that_cannot_be_reached_or_is_another_is_named(office: Office, tmp_path: Path) -> None:
    invitation, port = office.invite("hospital-f"), free_port()
    error = Joiner(replace(invitation, authority=(f"127.0.0.1:{port}",)), tmp_path / "f").end()
    assert error.startswith(
        f"the authority at 127.0.0.1:{port} cannot be reached: Connection refused; nothing was lost"
    )
    (tmp_path / "mallory").mkdir()
    mallory = Office(tmp_path / "mallory")
    error = Joiner(replace(invitation, authority=(mallory.at,)), tmp_path / "f").end()
    mallory.service.close()
    assert error.startswith(f"the machine at {mallory.at} is not the authority of this invitation")
    joined(office, invitation, tmp_path / "f")


@pytest.mark.parametrize("token", ["", "homophily-", "homophily-abc", "x" * 50])
def test_a_damaged_token_is_refused(token: str) -> None:
    with pytest.raises(UserError, match="the token is"):
        Invitation.read(token)


def test_a_token_that_was_cut_or_wrapped(office: Office) -> None:
    invitation = office.invite("hospital-f")
    token = invitation.token()
    assert Invitation.read(token[:60] + "\n  " + token[60:]) == invitation
    with pytest.raises(UserError, match="incomplete or damaged"):
        Invitation.read(token[:-7])


def test_existing_files_are_kept(office: Office, tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    (folder / "peer.toml").write_text('[peer]\nname = "hospital-b"\n')
    error = Joiner(office.invite("hospital-f"), folder).end()
    assert error.endswith("peer.toml is not the file of hospital-f: give another one with --file")
    mine = '# mine\n[peer]\nname = "hospital-f"\nfederation = "clinics"\nmembership = "certs/membership.json"\n'
    (folder / "peer.toml").write_text(mine)
    joined(office, office.invite("hospital-f"), folder)
    assert (folder / "peer.toml").read_text() == mine


# A man in the middle


def asked(office: Office, invitation: Invitation, request: str, nonce: bytes) -> tuple[Channel, bytes]:
    """Ask as a joiner would, up to the authority's nonce."""
    context = verified((office.folder / "ca.pem").read_text())
    channel = dial([office.at], context, MOST_BYTES)
    channel.send(kind="join", secret=invitation.secret, request=request, commitment=commitment(nonce, request))
    return channel, bytes.fromhex(received(channel)["nonce"])


def request_of(folder: Path, name: str) -> str:
    key = certificates.new_key(folder / "other.key")
    return json.dumps({"name": name, "csr": certificates.request(key, name), "addresses": []})


def test_a_nonce_that_is_chosen_after_the_authoritys_is_refused(office: Office, tmp_path: Path) -> None:
    invitation, request = office.invite("hospital-f"), request_of(tmp_path, "hospital-f")
    channel, _ = asked(office, invitation, request, secrets.token_bytes(32))
    with channel:
        channel.send(nonce=secrets.token_bytes(32).hex())
        with pytest.raises(UserError, match="the nonce is not the one that was committed to"):
            received(channel)
    assert admission.waiting(office.folder) == {}


def test_the_key_of_somebody_in_the_middle_has_another_code(office: Office, tmp_path: Path) -> None:
    """Somebody who replaced the token shows the joiner another authority, and asks with a key of their own."""
    (tmp_path / "mallory").mkdir()
    mallory = Office(tmp_path / "mallory")
    victim = Joiner(mallory.invite("hospital-f"), tmp_path / "f")
    nonce, request = secrets.token_bytes(32), request_of(tmp_path, "hospital-f")
    channel, _ = asked(office, office.invite("hospital-f"), request, nonce)
    channel.send(nonce=nonce.hex())
    until(lambda: admission.waiting(office.folder), "the request waits")
    if admission.waiting(office.folder)["hospital-f"]["code"] != victim.code():  # one chance in a million
        with pytest.raises(UserError, match="not the code"):
            office.confirm("hospital-f", victim.code())
    mallory.service.close()
    channel.close()


@given(st.binary(min_size=32, max_size=32), st.text(max_size=50), st.binary(min_size=32, max_size=32))
def test_a_code_has_six_digits_and_depends_on_everything(nonce: bytes, request: str, theirs: bytes) -> None:
    found = [short_code(a, request + r, nonce[:31] + n, theirs[:31] + t)
             for a, r, n, t in (("x", "", b"1", b"1"), ("y", "", b"1", b"1"), ("x", "z", b"1", b"1"),
                                ("x", "", b"2", b"1"), ("x", "", b"1", b"2"))]  # fmt: skip
    assert all(len(code) == 6 and code.isdecimal() for code in found)
    assert len(set(found)) > 1  # five independent codes of six digits: the chance of equality is 1e-24
    assert commitment(nonce, request) != commitment(theirs, request) or nonce == theirs


# The service


def test_a_certificate_is_renewed_for_the_same_key_and_hosts_until_it_is_revoked(
    office: Office, tmp_path: Path
) -> None:
    joined(office, office.invite("hospital-f"), tmp_path / "f", listen=["127.0.0.1:7001"])
    settings = load(tmp_path / "f/peer.toml")
    document = settings.document
    assert document is not None
    before = certificates.read_certificate(settings.certificate)
    renew_certificate(settings, document)
    after = certificates.read_certificate(settings.certificate)
    assert before.serial_number != after.serial_number
    assert certificates.hosts_in(before) == certificates.hosts_in(after)
    assert before.public_key() == after.public_key()
    assert newer_document(settings, document) is None
    federation_folder.revoke(office.folder, "hospital-f")
    assert newer_document(settings, document) == (office.folder / "membership.json").read_bytes()
    revoked = federation_folder.current(office.folder).revoked
    assert {f"{each.serial_number:x}" for each in (before, after)} == set(revoked)
    with pytest.raises(UserError, match="of hospital-f is revoked"):
        renew_certificate(settings, document)
    federation_folder.remove(office.folder, "hospital-f")
    with pytest.raises(UserError, match="hospital-f is not a member of clinics"):
        renew_certificate(settings, document)


def test_the_service_asks_for_a_certificate_and_outlives_nonsense(office: Office, tmp_path: Path) -> None:
    context = verified((office.folder / "ca.pem").read_text())
    for message, why in (({"kind": "document"}, "needs the certificate of a peer"), ({"kind": 3}, "unknown request")):
        with dial([office.at], context, MOST_BYTES) as channel:
            channel.send(**message)
            with pytest.raises(UserError, match=why):
                received(channel)
    host, _, port = office.at.partition(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(20)]
    for each in idle[:10]:
        each.sendall(b"GET / HTTP/1.0\r\n\r\n")
    joined(office, office.invite("hospital-f"), tmp_path / "f")
    for each in idle:
        each.close()


def test_idle_connections_from_one_address_keep_nobody_else_out(office: Office) -> None:
    host, _, port = office.at.partition(":")
    idle = [socket.create_connection((host, int(port)), source_address=("127.0.0.2", 0)) for _ in range(150)]
    with dial([office.at], unverified(), MOST_BYTES) as channel:
        channel.send(kind="authority")
        assert "CERTIFICATE" in received(channel)["certificate"]
    for each in idle:
        each.close()


def test_a_message_that_comes_byte_by_byte_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "SILENCE_SECONDS", 1.0)
    ours, theirs = socket.socketpair()
    stop = threading.Event()

    def drip() -> None:
        theirs.sendall((1000).to_bytes(4, "big"))
        while not stop.wait(0.2):
            theirs.sendall(b" ")

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    with pytest.raises(ChannelBroken, match="no answer"):
        Channel(cast(ssl.SSLSocket, ours), MOST_BYTES).receive()
    stop.set()
    thread.join()


def test_half_a_surrogate_pair_is_a_malformed_message(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    died: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    with dial([office.at], unverified(), MOST_BYTES) as channel:
        channel.send(kind="join", secret="\ud800", request="{}", commitment="")
        with pytest.raises(UserError, match="the connection to the authority broke"):
            received(channel)
    assert died == []


def test_a_peer_asks_again_if_a_connection_breaks_before_it_has_asked(
    office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined(office, office.invite("hospital-f"), tmp_path / "f")
    settings, heard = load(tmp_path / "f/peer.toml"), list[bytes]()
    assert settings.document is not None
    federation_folder.add(office.folder, "hospital-g")
    dialled: list[Channel] = []

    def broken_at_first(*arguments: Any) -> Channel:
        dialled.append(dial(*arguments))
        if len(dialled) == 1:
            dialled[0]._connection.shutdown(socket.SHUT_RDWR)
        return dialled[-1]

    monkeypatch.setattr(authority_client, "dial", broken_at_first)
    monkeypatch.setattr(authority_client, "_DOCUMENT_SECONDS", 0.1)
    document, log = settings.document, logging.getLogger("test")
    client = authority_client.AuthorityClient(settings, lambda: document, heard.append, lambda: None, log)
    client.start()
    until(lambda: heard, "the newer document")
    client.stop()


def test_the_service_signs_the_document_again_before_it_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shared.toml").write_text("rounds = 7\n")
    folder, said = tmp_path / "certs", list[str]()
    monkeypatch.setattr(federation_folder, "_DAYS", 179)
    federation_folder.init(folder, "clinics", tmp_path / "shared.toml", ["127.0.0.1:7001"])
    monkeypatch.undo()
    service = AuthorityService(folder, [f"127.0.0.1:{free_port()}"], said.append)
    try:
        until(lambda: said, "a new version")
    finally:
        service.close()
    assert said[0].startswith("signed version 2 of the membership document, valid until ")
    found = federation_folder.current(folder)
    assert (found.version, found.expires - found.issued, found.settings) == (2, 365 * 86400, {"rounds": 7})
    assert federation_folder.prolong(folder) is None


def test_no_peer_gets_a_certificate_of_the_service(office: Office) -> None:
    with pytest.raises(UserError, match="belongs to the authority's service"):
        certificates.issue(office.folder, "hospital-f", ["authority.homophily.invalid"])
    with pytest.raises(UserError, match="malformed address"):
        admission.check_addresses(["nowhere"])
