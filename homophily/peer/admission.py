"""What the authority does with invitations, requests for certificates, and renewals, in its folder."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding

from homophily.errors import UserError
from homophily.peer import certificates
from homophily.peer.federation_folder import Ledger, changed, current, enter, read_ledger, record
from homophily.peer.invitation import Invitation, fingerprint, secret_digest
from homophily.peer.membership_document import MembershipDocument, common_name, is_address

MOST_WRONG_CODES = 3  # of one invitation
CERTIFICATE_DAYS = 365
_MOST_ADDRESSES = 16
_FORGOTTEN_AFTER = 30 * 86400  # seconds after its end, in which an invitation is still explained


def invite(folder: Path, name: str, hours: float) -> Invitation:
    """A one-time invitation, which replaces earlier ones of the name."""
    if not certificates.is_name(name):
        raise UserError(f"peer name {name!r}: {certificates.NAME_RULE}")
    now, secret = time.time(), secrets.token_hex(16)
    with changed(folder, publish=False) as ledger:
        if not ledger.authority:
            raise UserError(
                "an invitation needs the address of this machine: give it once with "
                "homophily federation serve --at HOST:PORT"
            )
        ledger.invitations = {
            digest: each
            for digest, each in ledger.invitations.items()
            if each["expires"] > now - _FORGOTTEN_AFTER and (each["name"] != name or each["used"] is not None)
        }
        expires = int(now + 3600 * hours)
        ledger.invitations[secret_digest(secret)] = {
            "name": name, "expires": expires, "wrong_codes": 0, "used": None, "certificate": None, "request": None,
        }  # fmt: skip
    mark = fingerprint(certificates.read_certificate(folder / "ca.pem"))
    return Invitation(ledger.federation, name, tuple(ledger.authority), mark, secret, expires, ledger.settings)


def certificate_request(text: str) -> tuple[Ed25519PublicKey, bytes]:
    """The public key of a certificate request, whose sender has the private one, and the key's raw bytes."""
    try:
        found = x509.load_pem_x509_csr(text.encode())
        key = found.public_key()
        if not found.is_signature_valid or not isinstance(key, Ed25519PublicKey):
            raise UserError("malformed certificate request")
    except ValueError:
        raise UserError("malformed certificate request") from None
    return key, key.public_bytes_raw()


def check_addresses(found: Any) -> list[str]:
    if not isinstance(found, list) or len(found) > _MOST_ADDRESSES or not all(map(is_address, found)):
        raise UserError("malformed address: must be host:port, such as 192.0.2.7:7447")
    return list(found)


def answer(ledger: Ledger, digest: str, name: str, key: bytes) -> x509.Certificate | None:
    """The certificate that an invitation gave to this key; None: not yet. Raises UserError."""
    entry = ledger.invitations.get(digest)
    if entry is None or entry["name"] != name:
        raise UserError(
            "this invitation is not known: a newer one may have replaced it; ask the authority for a new one"
        )
    ask = "ask the authority for a new one"
    if entry["used"] is not None:
        found = x509.load_pem_x509_certificate(entry["certificate"].encode())
        if _raw_key(found) == key and f"{found.serial_number:x}" not in ledger.revoked:
            return found
        raise UserError(f"the invitation of {name} was used on {_day(entry['used'])}: {ask}")
    if entry["wrong_codes"] >= MOST_WRONG_CODES:
        raise UserError(f"the code of {name} was wrong {MOST_WRONG_CODES} times, so that its invitation is void: {ask}")
    if entry["expires"] < time.time():
        raise UserError(f"the invitation of {name} expired on {_day(entry['expires'])}: {ask}")
    return None


def file_request(folder: Path, digest: str, request: dict[str, Any], key: bytes) -> None:
    """Let a request wait for a person. request: csr, addresses, code, source (an address)."""
    with changed(folder, publish=False) as ledger:
        entry = ledger.invitations.get(digest)
        if entry is not None and answer(ledger, digest, entry["name"], key) is None:
            entry["request"] = {**request, "since": int(time.time())}


def waiting(folder: Path) -> dict[str, dict[str, Any]]:
    """The requests that wait for a person, by name."""
    return {name: entry["request"] for name, entry in _asking(read_ledger(folder)).items()}


def confirm(folder: Path, name: str, code: str) -> MembershipDocument:
    """Admit a peer whose code is right: sign its certificate, and make it a member."""
    with changed(folder, publish=False) as ledger:
        entry = _waiting_entry(ledger, name)
        right = entry["request"]["code"] == code
        if not right:
            entry["wrong_codes"] += 1
            left = MOST_WRONG_CODES - entry["wrong_codes"]
            if left == 0:
                entry["request"] = None
    if not right:
        then = f"{left} more can be typed" if left else f"the invitation is void: make a new one of {name}"
        raise UserError(
            f"this is not the code that {name} must read out, so that its key may not be the one that came here; {then}"
        )
    with changed(folder) as ledger:
        entry = _waiting_entry(ledger, name)
        request = entry["request"]
        if request["code"] != code:
            raise UserError(f"{name} has asked anew in the meantime: ask for its new code")
        enter(ledger, name, request["addresses"])
        key, _ = certificate_request(request["csr"])
        made = _signed(folder, ledger, name, key, [_host(address) for address in request["addresses"]])
        entry.update(used=int(time.time()), certificate=made.public_bytes(Encoding.PEM).decode(), request=None)
    return current(folder)


def _waiting_entry(ledger: Ledger, name: str) -> dict[str, Any]:
    asking = _asking(ledger)
    if name not in asking:
        raise UserError(f"{name!r} does not ask for a certificate; asking: {', '.join(sorted(asking)) or 'nobody'}")
    return asking[name]


def _asking(ledger: Ledger) -> dict[str, dict[str, Any]]:
    """The invitations with a request that waits, by name."""
    now, entries = time.time(), ledger.invitations.values()
    return {entry["name"]: entry for entry in entries if entry["request"] is not None and entry["expires"] > now}


def _signed(folder: Path, ledger: Ledger, name: str, key: Ed25519PublicKey, hosts: Sequence[str]) -> x509.Certificate:
    common = common_name(name, ledger.generations[name])
    made = certificates.sign(folder, name, key, hosts, CERTIFICATE_DAYS, common)
    record(ledger, name, made)
    return made


def renew(folder: Path, present: x509.Certificate) -> x509.Certificate:
    """A new certificate for the key and the hosts of a member's present one. Raises UserError."""
    name, key = certificates.name_in(present), present.public_key()
    with changed(folder, publish=False) as ledger:
        if name not in ledger.members:
            raise UserError(f"{name} is not a member of {ledger.federation}")
        valid = certificates.common_name_in(present) == common_name(name, ledger.generations[name])
        if f"{present.serial_number:x}" in ledger.revoked or not valid or not isinstance(key, Ed25519PublicKey):
            raise UserError(f"certificate {present.serial_number:x} of {name} is revoked")
        return _signed(folder, ledger, name, key, certificates.hosts_in(present))


def _raw_key(certificate: x509.Certificate) -> bytes:
    key = certificate.public_key()
    return key.public_bytes_raw() if isinstance(key, Ed25519PublicKey) else b""


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
