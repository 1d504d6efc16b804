"""Signed messages: a peer signs what it sends, and every receiver verifies it end to end; TLS protects each hop."""

from __future__ import annotations

import hashlib
import json
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding

from homophily.errors import UserError
from homophily.peer.certificates import common_name_in, name_in, read_certificate, read_key
from homophily.peer.protocol import SPOKEN

MAX_SEALED_BYTES = 64 << 10  # bytes of a sealed message
_MAX_KNOWN_CERTIFICATES = 4096


class Refused(Exception):
    """Data from the network is invalid. The message is a short reason by which refusals are counted."""


def peer_id(name: str) -> int:
    """A real peer's id: the first 8 bytes of the SHA-256 of its name, without the sign."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1


class Identity:
    """A peer's own name, key and certificate."""

    def __init__(self, name: str, certificate: Path, key: Path) -> None:
        self.name = name
        found, self._key = read_certificate(certificate), read_key(key)
        if name_in(found) != name:
            raise UserError(f"{certificate} is the certificate of {name_in(found)!r}, but peer.name is {name!r}")
        if found.public_key() != self._key.public_key():
            raise UserError(f"{key} is not the private key of the certificate {certificate}")
        self._certificate = b64encode(found.public_bytes(Encoding.DER)).decode()
        self.expires = found.not_valid_after_utc

    def seal(self, body: Mapping[str, Any]) -> bytes:
        """A message that anyone can check: the body as a string, its signature and the certificate to check it by."""
        text = json.dumps({**body, "origin": self.name, "protocol": SPOKEN}, separators=(",", ":"))
        signature = b64encode(self._key.sign(text.encode())).decode()
        return json.dumps({"body": text, "signature": signature, "certificate": self._certificate}).encode()


class Authority:
    """Opens sealed messages of the peers whose names are allowed and whose certificates the authority has issued."""

    def __init__(
        self,
        certificate: Path,
        allowed: Collection[str],
        absence: Callable[[str], str] = lambda name: "not in peer.allow",
    ) -> None:
        """absence: why a name is not allowed, as the end of "a name ..."."""
        self._certificate, self._absence = read_certificate(certificate), absence
        self._allowed = {name: name for name in allowed}  # common names of certificates, by peer
        self._revoked: frozenset[str] = frozenset()
        self._until = inf
        self._known: dict[
            str, tuple[str, Ed25519PublicKey, datetime]
        ] = {}  # name, key and expiry, by verified certificate

    def apply(self, common_names: Mapping[str, str], revoked: Collection[str], until: float) -> None:
        """Trust the certificates with these common names, by peer, except revoked serial numbers; until: a time."""
        self._allowed, self._revoked, self._until = dict(common_names), frozenset(revoked), until
        self._known = {}

    def open(self, data: bytes) -> dict[str, Any]:
        """The body of a sealed message, which holds the name of its origin. Raises Refused."""
        if len(data) > MAX_SEALED_BYTES:
            raise Refused("sealed message too large")
        message = _json_object(data)
        text, signature, certificate = (_string(message, key) for key in ("body", "signature", "certificate"))
        name, key = self._signer(certificate)
        try:
            key.verify(b64decode(signature, validate=True), text.encode())
        except (InvalidSignature, ValueError):
            raise Refused("wrong signature") from None
        body = _json_object(text.encode())
        if body.get("origin") != name:
            raise Refused("signed by a peer that is not its origin")
        check_protocol(body.pop("protocol", [1, 1]))
        return body

    def _signer(self, certificate: str) -> tuple[str, Ed25519PublicKey]:
        known = self._known.get(certificate)
        if known is None:
            if len(self._known) >= _MAX_KNOWN_CERTIFICATES:
                self._known.clear()
            known = self._known[certificate] = self._verified(certificate)
        if time.time() > self._until:
            raise Refused(f"membership document expired on {datetime.fromtimestamp(self._until, UTC).date()}")
        name, key, until = known
        if datetime.now(UTC) > until:
            raise Refused(f"certificate of {name} expired on {until.date()}")
        return name, key

    def _verified(self, certificate: str) -> tuple[str, Ed25519PublicKey, datetime]:
        try:
            found = x509.load_der_x509_certificate(b64decode(certificate, validate=True))
            found.verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion):
            raise Refused("certificate not issued by this authority") from None
        name, key = name_in(found), found.public_key()
        serial = f"{found.serial_number:x}"
        if serial in self._revoked or self._allowed.get(name, common_name_in(found)) != common_name_in(found):
            raise Refused(f"certificate {serial} of {name} is revoked")
        if name not in self._allowed:
            raise Refused(f"name {self._absence(name)}")
        if not isinstance(key, Ed25519PublicKey):
            raise Refused("certificate not usable")
        if datetime.now(UTC) < found.not_valid_before_utc:
            raise Refused(f"certificate of {name} not valid yet: check the clock")
        return name, key, found.not_valid_after_utc


def check_protocol(spoken: Any) -> None:
    """Raises Refused if this peer cannot read a message with this field protocol."""
    numbers = isinstance(spoken, list) and len(spoken) == 2 and all(type(each) is int for each in spoken)
    if not numbers or not 1 <= spoken[0] <= spoken[1]:
        raise Refused("malformed protocol version")
    if spoken[0] > SPOKEN[1] or spoken[1] < SPOKEN[0]:
        raise Refused(f"protocol version {spoken[1]}, but this peer has version {SPOKEN[1]}: update the older one")


def _json_object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise Refused("not JSON") from None
    if not isinstance(found, dict):
        raise Refused("not a JSON object")
    return found


def _string(message: Mapping[str, Any], key: str) -> str:
    value = message.get(key)
    if not isinstance(value, str):
        raise Refused(f"missing {key}")
    return value
