"""Joining a federation by invitation: the new peer makes its key, asks for a certificate and writes its file."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from homophily.atomic_io import write_bytes, write_text
from homophily.config.overlay import read
from homophily.errors import UserError
from homophily.peer import certificates
from homophily.peer.authority_client import MOST_BYTES, received, sent
from homophily.peer.channel import Channel, dial, unverified, verified
from homophily.peer.identity import Refused
from homophily.peer.invitation import NONCE_BYTES, Invitation, commitment, fingerprint, short_code
from homophily.peer.membership_document import is_address, open_document

_EVERY_ADDRESS = ("0.0.0.0", "[::]")


@dataclass(frozen=True)
class NewPeer:
    """Where a new peer's files go and how it is reached. addresses: of this machine, as the others reach it."""

    file: Path
    listen: Sequence[str] = ()
    addresses: Sequence[str] = ()
    data: str | None = None

    @property
    def certs(self) -> Path:
        return self.file.parent / "certs"

    @property
    def reached_at(self) -> list[str]:
        """The addresses that others dial: if none are given, those that this peer listens on."""
        own = [each for each in self.listen if each.rpartition(":")[0] not in _EVERY_ADDRESS]
        return list(self.addresses or own)


def join(invitation: Invitation, new: NewPeer, read_out: Callable[[str], None]) -> None:
    """Join by an invitation. read_out: called with the code that a person reads out. Raises UserError.

    What was written before an error is used again by the next try.
    """
    _check(invitation, new)
    path = new.certs / f"{invitation.name}.key"
    key = certificates.read_key(path) if path.exists() else certificates.new_key(path)
    authority = _authority(invitation)
    request = json.dumps(
        {"name": invitation.name, "csr": certificates.request(key, invitation.name), "addresses": new.reached_at}
    )
    with dial(invitation.authority, verified(authority), MOST_BYTES) as channel:
        answer = _asked(channel, invitation, request, read_out)
    _write(invitation, new, authority, answer, key)


def _check(invitation: Invitation, new: NewPeer) -> None:
    """Refuse what would overwrite something, before anything is asked."""
    for option, addresses in (("--listen", new.listen), ("--address", new.addresses)):
        for address in addresses:
            if not is_address(address):
                raise UserError(f"{option} {address}: must be host:port, such as 192.0.2.7:7447")
    made = new.certs / f"{invitation.name}.pem"
    if made.exists():
        raise UserError(f"{made} already exists: this peer has joined; move it away to ask for a new certificate")
    ca = new.certs / "ca.pem"
    if ca.exists() and fingerprint(certificates.read_certificate(ca)) != invitation.fingerprint:
        raise UserError(f"{ca} is of another authority than the invitation: join in another folder")
    if new.file.exists():
        table = read(new.file).get("peer")
        name = table.get("name") if isinstance(table, dict) else None
        if name != invitation.name:
            raise UserError(f"{new.file} is not the file of {invitation.name}: give another one with --file")


def _authority(invitation: Invitation) -> str:
    """The authority's certificate in PEM form, which must have the fingerprint of the invitation."""
    with dial(invitation.authority, unverified(), MOST_BYTES) as channel:
        sent(channel, kind="authority")
        text = str(received(channel).get("certificate"))
    try:
        found = fingerprint(x509.load_pem_x509_certificate(text.encode()))
    except ValueError:
        found = "unreadable"
    if found != invitation.fingerprint:
        raise UserError(
            f"the machine at {invitation.authority[0]} is not the authority of this invitation: its certificate has "
            f"the fingerprint {found[:16]}, not {invitation.fingerprint[:16]}; tell whoever invited you"
        )
    return text


def _asked(channel: Channel, invitation: Invitation, request: str, read_out: Callable[[str], None]) -> dict[str, Any]:
    """The answer with the certificate. Commits to a nonce before it knows the authority's."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    sent(channel, kind="join", secret=invitation.secret, request=request, commitment=commitment(nonce, request))
    answer = received(channel)
    if "nonce" in answer:
        try:
            theirs = bytes.fromhex(str(answer["nonce"]))
        except ValueError:
            raise UserError("the authority sent a malformed answer: the two versions of homophily differ") from None
        sent(channel, nonce=nonce.hex())
        read_out(short_code(invitation.fingerprint, request, nonce, theirs))
        answer = received(channel)
        while "waiting" in answer:
            answer = received(channel)
    return answer


def _write(
    invitation: Invitation, new: NewPeer, authority: str, answer: dict[str, Any], key: Ed25519PrivateKey
) -> None:
    """Check what the authority sent, and write it; the certificate last, so that it marks a peer that has joined."""
    issuer = x509.load_pem_x509_certificate(authority.encode())
    document = str(answer.get("document")).encode()
    try:
        open_document(document, issuer, invitation.federation)
        made = certificates.issued_to(str(answer.get("certificate")), issuer, invitation.name, key)
    except (Refused, ValueError) as error:
        raise UserError(f"the authority sent something that does not fit the invitation: {error}") from None
    write_text(new.certs / "ca.pem", authority)
    write_bytes(new.certs / "membership.json", document)
    if not new.file.exists():
        write_text(new.file, _file(invitation, new))
    write_text(new.certs / f"{invitation.name}.pem", made)


def _file(invitation: Invitation, new: NewPeer) -> str:
    peer = {
        "name": invitation.name,
        "federation": invitation.federation,
        "membership": "certs/membership.json",
        "listen": list(new.listen),
    }
    data = {} if new.data is None else {"data": {"name": new.data}}
    return tomli_w.dumps({**data, "peer": peer})
