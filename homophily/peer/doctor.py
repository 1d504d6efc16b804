"""Checks what a peer needs before and while it runs: its file, data, disk, certificate, and the other peers.

It writes nothing. Other peers do not count it as online, so that it also works while the peer itself runs.
"""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from homophily.atomic_io import in_use, read_json
from homophily.errors import UserError
from homophily.peer.authority_client import RENEWED_BEFORE, caught_up
from homophily.peer.certificates import name_in, read_certificate
from homophily.peer.handshakes import plain_reason
from homophily.peer.identity import Refused
from homophily.peer.membership import Status, open_status
from homophily.peer.membership_document import MembershipDocument
from homophily.peer.membership_keeper import WARNED_BEFORE
from homophily.peer.network import ANNOUNCE_SECONDS, address_of, announced_settings
from homophily.peer.protocol import differing_settings
from homophily.peer.settings import PeerSettings, load
from homophily.peer.setup import PeerSetup, prepare_peer
from homophily.peer.transport import NoAnswer, ZenohLinks
from homophily.version import __version__

_LISTEN_SECONDS = 5 * ANNOUNCE_SECONDS  # every peer that is online announces its status in this time
_DIAL_SECONDS = 5.0
_DIALS = 64  # at a time: an address that does not answer takes _DIAL_SECONDS
_ALERT_SECONDS = 0.5  # in which a peer that refuses a certificate says so, after the handshake
_ASK_SECONDS = 10.0
_CLOCK_SECONDS = 30.0  # of difference between two clocks, beyond which one of them is wrong
_MEMBER = "member "  # how the subjects of lines begin that say who should answer
_KEPT_MODELS, _SPARE_BYTES = 8, 64 << 20  # of the state folder: checkpoints beside each other, and everything else


@dataclass(frozen=True)
class Check:
    """One line: what was checked, whether it is as it should be, and what was found or what to do."""

    subject: str
    ok: bool
    text: str


def examine(file: Path) -> Iterator[Check]:
    """All checks, one after the other. Those that need a valid file, data or certificate follow only if it is."""
    try:
        settings = load(file)
    except UserError as error:
        yield Check("file", False, str(error))
        return
    yield Check("file", True, f"{settings.peer.name} of {settings.peer.federation}")
    if settings.document is not None:
        yield _document(settings.document)
    certificate = _certificate(settings)
    yield certificate
    if settings.document is not None and settings.document.authority:
        found, settings = _authority(settings, settings.document)
        yield found
    try:
        setup = prepare_peer(settings)
    except UserError as error:
        if certificate.ok:
            yield Check("data", False, str(error))
        yield from _disk(settings, 0)
        yield from _addresses(settings)
        return
    samples = int(setup.training.task.data.train.count[0])
    yield Check(
        "data", True, f"{samples} training samples; a model takes {setup.expected.max_bytes / 1e6:.2f} MB to send"
    )
    yield from _disk(settings, setup.expected.max_bytes)
    yield from _addresses(settings)
    yield from _members(setup)


# This machine


def _authority(settings: PeerSettings, document: MembershipDocument) -> tuple[Check, PeerSettings]:
    """Whether the authority's service answers; and the settings under its document, if that is newer."""
    try:
        settings, newer = caught_up(settings, document)
    except (UserError, OSError) as error:
        return Check("authority", False, str(getattr(error, "strerror", None) or error)), settings
    if newer is None or settings.document is None:
        return Check("authority", True, f"answers, and has version {document.version} too"), settings
    what = f"answers, and has version {settings.document.version}, which is used for what follows"
    return Check("authority", True, what), settings


def _new_certificate(settings: PeerSettings, expired: bool) -> str:
    """How the operator of a peer gets a new certificate."""
    if settings.document is None or not settings.document.authority:
        return "issue a new one"
    return "join with a new invitation" if expired else "start the peer, which renews it"


def _certificate(settings: PeerSettings) -> Check:
    try:
        found, authority = read_certificate(settings.certificate), read_certificate(settings.path(settings.peer.ca))
        until = found.not_valid_after_utc
        if datetime.now(UTC) > until:
            what = _new_certificate(settings, expired=True)
            return Check("certificate", False, f"{settings.certificate} expired on {until.date()}: {what}")
        try:
            found.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature) as error:
            raise UserError(f"{settings.certificate} was not issued by {settings.path(settings.peer.ca)}") from error
    except UserError as error:
        return Check("certificate", False, str(error))
    if until - datetime.now(UTC) < RENEWED_BEFORE:
        what = _new_certificate(settings, expired=False)
        return Check("certificate", False, f"{settings.certificate} expires on {until.date()}: {what}")
    return Check("certificate", True, f"valid until {until.date()}")


def _document(document: MembershipDocument) -> Check:
    until = datetime.fromtimestamp(document.expires, UTC)
    text = f"version {document.version}, valid until {until.date()}"
    if until - datetime.now(UTC) < timedelta(seconds=WARNED_BEFORE):
        return Check("membership", False, f"{text}: ask the authority for a new one")
    return Check("membership", True, text)


def _disk(settings: PeerSettings, model_bytes: int) -> Iterator[Check]:
    """Whether the state folder can be written, and has room for checkpoints."""
    folder = settings.state.absolute()
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        yield Check("disk", False, f"{folder} cannot be written: change its owner or peer.state")
        return
    free, needed = shutil.disk_usage(folder).free, _KEPT_MODELS * model_bytes + _SPARE_BYTES
    if free < needed:
        yield Check("disk", False, f"{folder} has {free / 1e6:.0f} MB free, but {needed / 1e6:.0f} MB are needed")
    else:
        yield Check("disk", True, f"{free / 1e9:.1f} GB free")


def _addresses(settings: PeerSettings) -> Iterator[Check]:
    """The addresses that this peer listens on, and those at which it may dial others."""
    running = in_use(settings.state)
    for address in settings.peer.listen:
        yield _listening(address, running)
    members, linked = _members_addresses(settings), _status(settings).get("neighbours", ())
    named: set[str] = set()
    addresses = list(dict.fromkeys([*address_of(settings, insecure=False).connect, *members]))
    with ThreadPoolExecutor(_DIALS) as pool:
        found = pool.map(lambda address: list(_dialled(settings, address, members.get(address))), addresses)
        for address, checks in zip(addresses, found, strict=True):
            for check in checks:
                dials = not check.ok and members.get(address) in linked and not check.subject.startswith(_MEMBER)
                if check.subject not in named:
                    yield replace(check, ok=True, text=f"{members[address]} has dialled this peer") if dials else check
                named.add(check.subject)


def _members_addresses(settings: PeerSettings) -> dict[str, str]:
    """The names of the other members by the addresses at which this peer may dial them."""
    peer, document = settings.peer, settings.document
    if document is None or (peer.mesh == "partial" and peer.connect):  # then peer.connect says which links there are
        return {}
    return {a: name for name in peer.allow if name != peer.name for a in document.members[name].addresses}


def _status(settings: PeerSettings) -> dict[str, Any]:
    """The status of this peer, if it runs."""
    path = settings.state / "status.json"
    known: Any = read_json(path) if in_use(settings.state) and path.is_file() else {}
    return known if isinstance(known, dict) else {}


def _listening(address: str, running: bool) -> Check:
    if running:
        return Check(f"listen {address}", True, "the peer is running")
    host, port = _split(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(found[0], found[1]) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(found[4])
    except OSError as error:
        return Check(f"listen {address}", False, f"{error.strerror}: change peer.listen, or stop what uses the port")
    return Check(f"listen {address}", True, "free")


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _dialled(settings: PeerSettings, address: str, member: str | None) -> Iterator[Check]:
    """Resolve a name, connect and make a handshake with this peer's certificate, each a line.

    member: whose address it is by the membership document, if there is one.
    """
    host, port = _split(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        yield Check(f"name {host}", False, f"{error.strerror}: correct peer.connect, or the name service")
        return
    yield Check(f"name {host}", True, str(found[0][4][0]))
    began = time.monotonic()
    try:
        with socket.create_connection((host, port), _DIAL_SECONDS) as plain:
            seconds = time.monotonic() - began
            name = _handshake(settings, host, plain)
    except TimeoutError:
        yield Check(f"dial {address}", False, "no answer: open the port in the firewalls between the two machines")
    except ssl.SSLError as error:
        yield Check(f"dial {address}", False, _tls_reason(error, host))
    except ConnectionRefusedError:
        yield Check(f"dial {address}", False, "connection refused: start the peer there, or correct peer.connect")
    except (OSError, UserError) as error:
        yield Check(f"dial {address}", False, str(getattr(error, "strerror", None) or error))
    else:
        if name in settings.peer.allow:
            yield Check(f"dial {address}", True, f"{name}, connected in {1000 * seconds:.1f} ms")
        else:
            yield Check(f"dial {address}", False, _not_allowed(settings, name))
        if member not in (None, name):
            what = f"{name} answers, but this is the address of {member} in the membership document"
            remedy = f"ask the authority to correct it: homophily federation add {member} --address HOST:PORT"
            yield Check(f"{_MEMBER}{address}", False, f"{what}: {remedy}")


def _not_allowed(settings: PeerSettings, name: str) -> str:
    """Why a peer that answered is refused, and what to do."""
    absence = settings.absence(name)
    remedies = {"in peer.deny": "remove it there", "not in peer.allow": "add it"}
    remedy = remedies.get(absence, "the authority must add or invite it")
    return f"{name} is {absence}: {remedy}, or correct peer.connect"


def _handshake(settings: PeerSettings, host: str, plain: socket.socket) -> str:
    """Make a handshake as this peer, and return the name in the certificate of the other end."""
    context = ssl.create_default_context(cafile=str(settings.path(settings.peer.ca)))
    context.load_cert_chain(settings.certificate, settings.key)
    with context.wrap_socket(plain, server_hostname=host) as secure:
        other = secure.getpeercert(binary_form=True) or b""
        secure.settimeout(_ALERT_SECONDS)
        try:
            if not secure.recv(1):
                raise UserError("the other end closed the connection: its log says why")
        except TimeoutError:  # it waits for this peer: the certificate was accepted
            pass
    return name_in(x509.load_der_x509_certificate(other))


def _tls_reason(error: ssl.SSLError, host: str) -> str:
    said = str(getattr(error, "verify_message", "") or error.reason or error)
    reasons = {
        "expired": "the certificate of the other end has expired: issue a new one there",
        "not yet valid": "the certificate of the other end is not valid yet: check both clocks",
        "mismatch": f"the certificate of the other end does not name {host}: issue it with --host {host}",
        "issuer certificate": "the certificate of the other end was not issued by the authority in peer.ca",
        "self-signed": "the certificate of the other end was not issued by the authority in peer.ca",
        "signature failure": "the certificate of the other end was not issued by the authority in peer.ca",
        "ALERT": f"the other end refused this peer's certificate ({said}): compare both ca.pem and its clock",
        "WRONG_VERSION": "this is not the port of a peer: it does not answer with TLS",
    }
    return next((text for key, text in reasons.items() if key.lower() in said.lower()), plain_reason(said))


# The other peers


@dataclass
class _Heard:
    """The statuses that came from other peers, with the difference of their clocks in seconds."""

    setup: PeerSetup
    statuses: dict[str, Status] = field(default_factory=dict)
    clocks: dict[str, float] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)

    def receive(self, sealed: bytes) -> None:
        peer = self.setup.settings.peer
        try:
            name, status = open_status(sealed, self.setup.authority, peer.federation)
        except Refused as error:
            self.refused.add(str(error))
            return
        if name != peer.name:
            ahead = (status.time - time.time_ns()) / 1e9
            self.clocks[name] = max(ahead, self.clocks.get(name, ahead))  # a status that was under way looks older
            self.statuses[name] = status


def _members(setup: PeerSetup) -> Iterator[Check]:
    """Who is online, and for each: round trip, bandwidth, clock and settings."""
    peer, heard = setup.settings.peer, _Heard(setup)
    others = [name for name in peer.allow if name != peer.name]
    address = address_of(setup.settings, insecure=False)
    connect = tuple(dict.fromkeys([*address.connect, *_members_addresses(setup.settings)]))
    links = ZenohLinks(replace(address, listen=(), connect=connect, observer=True))
    try:
        links.observe(heard.receive)
        until = time.monotonic() + _LISTEN_SECONDS
        while time.monotonic() < until and len(heard.clocks) < len(others):
            time.sleep(0.1)
        time.sleep(2 * ANNOUNCE_SECONDS if heard.clocks else 0)  # a second status of each, to compare the clocks
        for name in others:
            if name in heard.statuses:
                yield from _member(setup, links, name, heard.statuses[name], heard.clocks[name])
            else:
                yield _unheard(setup.settings, name)
    finally:
        links.close()
    for reason in sorted(heard.refused):
        yield Check("messages", False, f"a message was refused: {reason}")


def _unheard(settings: PeerSettings, name: str) -> Check:
    """A peer that the doctor cannot hear: it may be one that dials this peer, and cannot be dialled."""
    if name in _status(settings).get("reachable", {}):
        return Check(name, True, "connected to the running peer; it cannot be dialled from here")
    return Check(
        name, False, "offline: start it, or add an address of it, or of a peer that reaches it, to peer.connect"
    )


def _member(setup: PeerSetup, links: ZenohLinks, name: str, status: Status, clock: float) -> Iterator[Check]:
    yield Check(name, True, f"online in round {status.round}")
    if name in links.neighbours():
        yield _speed(links, name, status)
    here = "" if status.software == __version__ else f", {__version__} here"
    yield Check(f"{name}: version", True, f"homophily {status.software or 'of protocol version 1'}{here}")
    wrong = abs(clock) > _CLOCK_SECONDS
    side = "ahead of" if clock > 0 else "behind"
    text = f"{abs(clock):.1f} s {side} this machine"
    yield Check(f"{name}: clock", not wrong, f"{text}: set both clocks, for example with NTP" if wrong else text)
    if not status.settings:
        yield Check(f"{name}: settings", True, "not announced: an older version of homophily")
        return
    differing = differing_settings(status.settings, announced_settings(setup))
    for key, (theirs, mine) in differing.items():
        yield Check(f"{name}: settings", False, f"{key} = {theirs}, but {mine} here: give both the same value")
    if not differing:
        yield Check(f"{name}: settings", True, "the same")


def _speed(links: ZenohLinks, name: str, status: Status) -> Check:
    """The round trip of a request that is declined at once, and the rate at which the first chunks of a model come."""
    try:
        began = time.monotonic()
        try:
            links.request(name, f"{name}/model/0/0", _ASK_SECONDS)  # no peer publishes a model of round 0
        except NoAnswer as answer:
            if str(answer) != "not published":
                raise
        trip = time.monotonic() - began
        began, came = time.monotonic(), 0
        if status.trained:
            came = sum(map(len, links.request(name, f"{name}/model/{status.trained}/0", _ASK_SECONDS, 2)))
        rate = f", {came / 1e6 / (time.monotonic() - began):.1f} MB/s over {came / 1e6:.2f} MB" if came else ""
    except NoAnswer as answer:
        return Check(f"{name}: link", False, f"{answer}: look for refused messages in the log of {name}")
    return Check(f"{name}: link", True, f"round trip {1000 * trip:.1f} ms{rate}")
