"""The authority's service: it takes requests for certificates, renews them, and hands out the membership document."""

from __future__ import annotations

import json
import secrets
import socket
import ssl
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from homophily.errors import UserError
from homophily.peer import admission, certificates
from homophily.peer.channel import SILENCE_SECONDS, Channel, ChannelBroken
from homophily.peer.federation_folder import DOCUMENT, current, prolong, read_ledger
from homophily.peer.invitation import NONCE_BYTES, commitment, fingerprint, secret_digest, short_code

_HANDSHAKE_SECONDS = 10.0
_POLL_SECONDS = 0.5
_PROLONG_SECONDS = 3600.0  # between two looks at the end of the document
_MOST_CONNECTIONS = 128
_MOST_PER_ADDRESS = 32  # connections, so that one machine cannot keep all others out
_MOST_BYTES = 64 << 10  # of a message to the service


class AuthorityService:
    """Serves an authority's folder at some addresses until it is closed."""

    def __init__(self, folder: Path, listen: list[str], report: Callable[[str], None]) -> None:
        """report: called with a line for people, about each request and renewal."""
        self._folder, self._report = folder, report
        self._federation = read_ledger(folder).federation
        self._authority = certificates.read_certificate(folder / "ca.pem")
        self._context = _context(folder)
        self._closed = threading.Event()
        self._connections: Counter[str] = Counter()  # by the address that they come from
        self._counting = threading.Lock()
        self._sockets = [_listening(address) for address in listen]
        self.addresses = ["{}:{}".format(*each.getsockname()[:2]) for each in self._sockets]
        for each in self._sockets:
            threading.Thread(target=self._accept, args=(each,), daemon=True).start()
        threading.Thread(target=self._prolong, daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        for each in self._sockets:
            each.close()

    def wait(self) -> None:
        """Return when the service is closed."""
        self._closed.wait()

    def _prolong(self) -> None:
        """Sign the document again before it expires: without a change of members it would end after a year."""
        while not self._closed.is_set():
            try:
                made = prolong(self._folder)
            except UserError as error:
                self._report(f"the membership document could not be signed again: {error}; trying every hour")
            else:
                if made is not None:
                    until = datetime.fromtimestamp(made.expires, UTC).date()
                    self._report(f"signed version {made.version} of the membership document, valid until {until}")
            self._closed.wait(_PROLONG_SECONDS)

    def _accept(self, listening: socket.socket) -> None:
        while not self._closed.is_set():
            try:
                plain, source = listening.accept()
            except TimeoutError:
                continue
            except OSError:
                if not self._closed.is_set():
                    time.sleep(_POLL_SECONDS)  # for example no file descriptor is left
                continue
            if not self._has_room_for(source[0]):
                plain.close()
                continue
            threading.Thread(target=self._serve, args=(plain, source[0]), daemon=True).start()

    def _has_room_for(self, source: str) -> bool:
        """Whether one more connection from an address is served; if so, it counts from now on."""
        with self._counting:
            full = self._connections.total() >= _MOST_CONNECTIONS
            if full or self._connections[source] >= _MOST_PER_ADDRESS:
                return False
            self._connections[source] += 1
            return True

    def _leaves(self, source: str) -> None:
        with self._counting:
            self._connections[source] -= 1
            if not self._connections[source]:
                del self._connections[source]

    def _serve(self, plain: socket.socket, source: str) -> None:
        try:
            plain.settimeout(_HANDSHAKE_SECONDS)
            with Channel(self._context.wrap_socket(plain, server_side=True), _MOST_BYTES) as channel:
                try:
                    self._answer(channel, channel.receive(), source)
                except UserError as error:
                    self._report(f"refused a request from {source}: {error}")
                    channel.send(error=str(error))
        except (OSError, ChannelBroken):
            pass  # a stranger, or a peer that went away and asks again
        finally:
            plain.close()
            self._leaves(source)

    def _answer(self, channel: Channel, message: dict[str, Any], source: str) -> None:
        kind = message.get("kind")
        if kind == "authority":
            channel.send(certificate=_pem(self._authority))
        elif kind == "join":
            self._join(channel, message, source)
        elif kind in ("document", "renew"):
            present = channel.certificate()
            if present is None:
                raise UserError("this needs the certificate of a peer")
            self._document(channel, message) if kind == "document" else self._renew(channel, present)
        else:
            raise UserError("unknown request: the two versions of homophily differ")

    def _document(self, channel: Channel, message: dict[str, Any]) -> None:
        version = message.get("version")
        newer = not isinstance(version, int) or current(self._folder).version > version
        channel.send(document=(self._folder / DOCUMENT).read_text() if newer else None)

    def _renew(self, channel: Channel, present: x509.Certificate) -> None:
        made = admission.renew(self._folder, present)
        until = made.not_valid_after_utc.date()
        self._report(f"renewed the certificate of {certificates.name_in(present)} until {until}")
        channel.send(certificate=_pem(made))

    def _join(self, channel: Channel, message: dict[str, Any], source: str) -> None:
        """Check an invitation, agree on a code, and wait for the person who confirms it."""
        request, secret, promised = _strings(message, "request", "secret", "commitment")
        asked, digest = _parsed(request), secret_digest(secret)
        name = str(asked.get("name"))
        _, key = admission.certificate_request(str(asked.get("csr")))
        addresses = admission.check_addresses(asked.get("addresses"))
        made = admission.answer(read_ledger(self._folder), digest, name, key)
        if made is None:
            own = secrets.token_bytes(NONCE_BYTES)
            channel.send(nonce=own.hex())
            (text,) = _strings(channel.receive(), "nonce")
            nonce = _nonce(text)
            if commitment(nonce, request) != promised:
                raise UserError("the nonce is not the one that was committed to")
            code = short_code(fingerprint(self._authority), request, nonce, own)
            filed = {"csr": asked["csr"], "addresses": addresses, "code": code, "source": source}
            admission.file_request(self._folder, digest, filed, key)
            self._report(
                f"{name} asks for a certificate, from {source}, with the addresses {', '.join(addresses) or 'none'}: "
                f"let its operator read out the code, and type: homophily federation confirm {name} CODE"
            )
            made = self._confirmed(channel, digest, name, key)
        channel.send(certificate=_pem(made), document=(self._folder / DOCUMENT).read_text())
        self._report(f"{name} has its certificate, valid until {made.not_valid_after_utc.date()}")

    def _confirmed(self, channel: Channel, digest: str, name: str, key: bytes) -> x509.Certificate:
        """The certificate, as soon as a person has confirmed the code."""
        told = time.monotonic()
        while not self._closed.is_set():
            made = admission.answer(read_ledger(self._folder), digest, name, key)
            if made is not None:
                return made
            if time.monotonic() - told > SILENCE_SECONDS / 3:
                channel.send(waiting=True)
                told = time.monotonic()
            time.sleep(_POLL_SECONDS)
        raise ChannelBroken("the service stops")


def _context(folder: Path) -> ssl.SSLContext:
    """TLS with a key of its own, certified by the authority; peers may show their certificates."""
    key, (_, authority) = Ed25519PrivateKey.generate(), certificates.authority(folder)
    days = max(1, (authority.not_valid_after_utc - datetime.now(UTC)).days)
    made = certificates.sign_service(folder, key.public_key(), days)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(cafile=str(folder / "ca.pem"))
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:  # only its owner may read it
        file.write(certificates.key_text(key) + made.public_bytes(Encoding.PEM))
        file.flush()
        context.load_cert_chain(file.name)
    return context


def _listening(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(where)
        made.listen(64)
        made.settimeout(_POLL_SECONDS)
    except OSError as error:
        raise UserError(f"--listen: cannot listen on {address}: {error.strerror}") from error
    return made


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()


def _strings(message: dict[str, Any], *keys: str) -> list[str]:
    found = [message.get(key) for key in keys]
    if not all(isinstance(each, str) for each in found):
        raise ChannelBroken("malformed message")
    return [str(each) for each in found]


def _parsed(request: str) -> dict[str, Any]:
    try:
        found = json.loads(request)
    except (ValueError, RecursionError):
        raise ChannelBroken("malformed request") from None
    if not isinstance(found, dict):
        raise ChannelBroken("malformed request")
    return found


def _nonce(text: str) -> bytes:
    try:
        nonce = bytes.fromhex(text)
    except ValueError:
        raise ChannelBroken("malformed nonce") from None
    if len(nonce) != NONCE_BYTES:
        raise ChannelBroken("malformed nonce")
    return nonce
