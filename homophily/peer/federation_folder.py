"""The authority's folder: its certificate and key, the members and issued certificates, and the signed document."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509

from homophily.atomic_io import locked, read_json, write_bytes, write_json
from homophily.config.schema import Config
from homophily.errors import InUseError, UserError
from homophily.peer import certificates
from homophily.peer.identity import Refused
from homophily.peer.membership_document import (
    Member,
    MembershipDocument,
    common_name,
    is_address,
    open_document,
    sign_document,
)
from homophily.peer.settings import shared_settings
from homophily.peer.state_folder import refused_change
from homophily.simulation.configuration import make

DOCUMENT = "membership.json"
_STATE = "federation.json"
_DAYS = 365  # a document is valid for so long; every change begins the time anew
_PROLONGED_BEFORE = 180 * 86400  # seconds before the end of a document
_LOCK_SECONDS = 10.0


@dataclass
class Ledger:
    """What the authority writes down. generations: of all names that ever were members."""

    federation: str
    version: int = 0
    members: dict[str, list[str]] = field(default_factory=dict)  # addresses by name
    generations: dict[str, int] = field(default_factory=dict)
    issued: list[dict[str, Any]] = field(default_factory=list)  # name, serial and expiry of each certificate
    revoked: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    authority: list[str] = field(default_factory=list)  # addresses of the service
    invitations: dict[str, dict[str, Any]] = field(default_factory=dict)  # by the digest of the secret

    def revoke(self, name: str) -> None:
        """Revoke all certificates of a name; the next has another common name."""
        serials = [entry["serial"] for entry in self.issued if entry["name"] == name]
        self.revoked += [serial for serial in serials if serial not in self.revoked]
        self.generations[name] = self.generations.get(name, 1) + 1


def init(
    folder: Path, federation: str, settings: Path | None = None, service: Sequence[str] = ()
) -> MembershipDocument:
    """Make a federation: an authority, unless the folder has one, and the first document, without members."""
    if not certificates.is_name(federation):
        raise UserError(f"federation {federation!r}: {certificates.NAME_RULE}")
    if (folder / _STATE).exists():
        raise UserError(f"{folder / _STATE} already exists: the folder holds a federation")
    for address in service:
        check_address("--at", address)
    shared = {} if settings is None else shared_settings(settings)
    if not (folder / "ca.key").exists():
        certificates.init(folder)
    ledger = Ledger(federation, settings=shared, authority=list(service))
    return _publish(folder, ledger)


def add(folder: Path, name: str, addresses: Sequence[str] = ()) -> MembershipDocument:
    """Make a peer a member, or change its addresses."""
    with changed(folder) as ledger:
        enter(ledger, name, addresses)
    return current(folder)


def enter(ledger: Ledger, name: str, addresses: Sequence[str]) -> None:
    if not certificates.is_name(name):
        raise UserError(f"peer name {name!r}: {certificates.NAME_RULE}")
    for address in addresses:
        check_address("--address", address)
    ledger.members[name] = list(addresses)
    ledger.generations.setdefault(name, 1)


def remove(folder: Path, name: str) -> MembershipDocument:
    """End a membership, and revoke all certificates of that name."""
    with changed(folder) as ledger:
        _check_member(ledger, name)
        del ledger.members[name]
        ledger.revoke(name)
    return current(folder)


def revoke(folder: Path, name: str) -> MembershipDocument:
    """Revoke all certificates of a member, which stays a member and needs a new one."""
    with changed(folder) as ledger:
        _check_member(ledger, name)
        ledger.revoke(name)
    return current(folder)


def share(folder: Path, settings: Path) -> MembershipDocument:
    """Replace the settings that all members share."""
    with changed(folder) as ledger:
        ledger.settings = shared_settings(settings)
    return current(folder)


def refused_by_states(before: MembershipDocument, now: MembershipDocument) -> str | None:
    """What of new shared settings members refuse that have played under the ones before; None: nothing that is known.

    The state folder of a member fits only the settings with which it began, except for more rounds.
    """
    if not now.members:
        return None
    old, new = (dict(document.settings.get("peer", {})).get("classes") for document in (before, now))
    found = ("peer.classes", old, new) if old != new else refused_change(_config(before), _config(now))
    if found is None:
        return None
    key, was, wanted = found
    if key == "data.scale":
        return "members that have played a round with other constants refuse the new data.scale"
    held, asked = (f"no {key}" if value is None else f"{key} = {value!r}" for value in (was, wanted))
    return f"members that have played a round with {held} refuse {asked}"


def _config(document: MembershipDocument) -> Config:
    return make({key: value for key, value in document.settings.items() if key != "peer"})


def prolong(folder: Path) -> MembershipDocument | None:
    """Sign a new version if half a year or less of the present one is left; None: nothing to do."""
    if current(folder).expires - time.time() > _PROLONGED_BEFORE:
        return None
    with changed(folder):
        pass
    return current(folder)


def serve_at(folder: Path, addresses: Sequence[str]) -> None:
    """Change the addresses of the authority's service, if they are others."""
    for address in addresses:
        check_address("--at", address)
    if read_ledger(folder).authority != list(addresses):
        with changed(folder) as ledger:
            ledger.authority = list(addresses)


def check_address(option: str, address: str) -> None:
    if not is_address(address):
        raise UserError(f"{option} {address}: must be host:port, such as 192.0.2.7:7447")


def _check_member(ledger: Ledger, name: str) -> None:
    if name not in ledger.members:
        known = ", ".join(sorted(ledger.members)) or "none"
        raise UserError(f"{name!r} is not a member of {ledger.federation}; members: {known}")


def issue_key(folder: Path, name: str, hosts: Sequence[str], days: int) -> Path:
    """Make a key and a certificate for a peer; the authority of a federation writes the certificate down."""
    if not has_federation(folder):
        return certificates.issue(folder, name, hosts, days)
    with changed(folder, publish=False) as ledger:
        common = common_name(name, ledger.generations.get(name, 1))
        path = certificates.issue(folder, name, hosts, days, common)
        record(ledger, name, certificates.read_certificate(path))
    return path


def record(ledger: Ledger, name: str, certificate: x509.Certificate) -> None:
    """Write down an issued certificate; those that expired are forgotten."""
    now = time.time()
    serial, expires = f"{certificate.serial_number:x}", int(certificate.not_valid_after_utc.timestamp())
    gone = {entry["serial"] for entry in ledger.issued if entry["expires"] < now}
    ledger.issued = [entry for entry in ledger.issued if entry["serial"] not in gone]
    ledger.issued.append({"name": name, "serial": serial, "expires": expires})
    ledger.revoked = [serial for serial in ledger.revoked if serial not in gone]


def current(folder: Path) -> MembershipDocument:
    """The document in an authority's folder."""
    path = folder / DOCUMENT
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; make it with homophily federation init") from error
    ledger = read_ledger(folder)
    try:
        return open_document(data, certificates.read_certificate(folder / "ca.pem"), ledger.federation)
    except Refused as error:
        raise UserError(f"{path} is damaged: {error}; restore the folder from its backup") from None


def has_federation(folder: Path) -> bool:
    return (folder / _STATE).exists()


def read_ledger(folder: Path) -> Ledger:
    if not has_federation(folder):
        raise UserError(f"there is no federation in {folder}: make one with homophily federation init")
    values = read_json(folder / _STATE)
    try:
        return Ledger(**values)
    except TypeError as error:
        raise UserError(f"{folder / _STATE} is damaged: {error}") from error


@contextmanager
def changed(folder: Path, publish: bool = True) -> Iterator[Ledger]:
    """Change the ledger; afterwards it is written, and with ``publish`` a new version of the document is signed."""
    read_ledger(folder)  # before the lock makes the folder
    with ExitStack() as stack:
        _lock(folder, stack)
        ledger = read_ledger(folder)
        yield ledger
        if publish:
            _publish(folder, ledger)
        else:
            write_json(folder / _STATE, asdict(ledger))


def _lock(folder: Path, stack: ExitStack) -> None:
    """Lock the folder until the stack closes, after waiting for another command that changes it."""
    end = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            stack.enter_context(locked(folder))
            return
        except InUseError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def _publish(folder: Path, ledger: Ledger) -> MembershipDocument:
    ledger.version += 1
    now = int(time.time())
    members = {
        name: Member(tuple(addresses), ledger.generations[name]) for name, addresses in sorted(ledger.members.items())
    }
    document = MembershipDocument(
        ledger.federation, ledger.version, now, now + _DAYS * 86400, members, tuple(ledger.revoked), ledger.settings,
        tuple(ledger.authority),
    )  # fmt: skip
    key, _ = certificates.authority(folder)
    signed = sign_document(document, key)
    write_json(folder / _STATE, asdict(ledger))  # first: a version is never signed twice
    write_bytes(folder / DOCUMENT, signed)
    return document


def shown(document: MembershipDocument) -> dict[str, Any]:
    """The document as an object for people and programs."""

    def day(seconds: int) -> str:
        return datetime.fromtimestamp(seconds, UTC).date().isoformat()

    return {
        "federation": document.federation,
        "version": document.version,
        "issued": day(document.issued),
        "expires": day(document.expires),
        "members": {name: list(member.addresses) for name, member in document.members.items()},
        "revoked": list(document.revoked),
        "settings": dict(document.settings),
        "authority": list(document.authority),
    }
