"""Signed messages: a peer signs what it sends, and others check it end to end, while TLS ends at every hop."""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding

from homophily.errors import UserError
from homophily.peer.certificates import name_in, read_certificate, read_key

MOST_SEALED = 64 << 10  # bytes of a sealed message
_KNOWN_CERTIFICATES = 4096


class Refused(Exception):
    """Data from the network is not what it must be. The message is a short reason that can be counted."""


def number_of(name: str) -> int:
    """A real peer's id: the first 8 bytes of the SHA-256 of its name, without the sign."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1


class Identity:
    """A peer's own name, key and certificate."""

    def __init__(self, name: str, certificate: Path, key: Path) -> None:
        self.name = name
        found, self._key = read_certificate(certificate), read_key(key)
        if name_in(found) != name:
            raise UserError(f"{certificate} is the certificate of {name_in(found)!r}, and this peer is {name!r}")
        if found.public_key() != self._key.public_key():
            raise UserError(f"{key} is not the key that {certificate} belongs to")
        self._certificate = b64encode(found.public_bytes(Encoding.DER)).decode()
        self.ends = found.not_valid_after_utc  # when it expires

    def seal(self, body: Mapping[str, Any]) -> bytes:
        """A message that anyone can check: the body as a string, its signature and the certificate to check it by."""
        text = json.dumps({**body, "origin": self.name}, separators=(",", ":"))
        signature = b64encode(self._key.sign(text.encode())).decode()
        return json.dumps({"body": text, "signature": signature, "certificate": self._certificate}).encode()


class Authority:
    """Opens sealed messages of the peers whose names are allowed and whose certificates the authority has issued."""

    def __init__(self, certificate: Path, allowed: Collection[str]) -> None:
        self._certificate = read_certificate(certificate)
        self._allowed = frozenset(allowed)
        self._known: dict[str, tuple[str, Ed25519PublicKey, datetime]] = {}  # by valid certificate

    def open(self, data: bytes) -> dict[str, Any]:
        """The body of a sealed message, which holds the name of its origin. Raises Refused."""
        if len(data) > MOST_SEALED:
            raise Refused("sealed message too large")
        message = _table(data)
        text, signature, certificate = (_text(message, key) for key in ("body", "signature", "certificate"))
        name, key = self._speaker(certificate)
        try:
            key.verify(b64decode(signature, validate=True), text.encode())
        except (InvalidSignature, ValueError):
            raise Refused("wrong signature") from None
        body = _table(text.encode())
        if body.get("origin") != name:
            raise Refused("signed by a peer that is not its origin")
        return body

    def _speaker(self, certificate: str) -> tuple[str, Ed25519PublicKey]:
        known = self._known.get(certificate)
        if known is None:
            if len(self._known) >= _KNOWN_CERTIFICATES:
                self._known.clear()
            known = self._known[certificate] = self._checked(certificate)
        name, key, until = known
        if datetime.now(UTC) > until:
            raise Refused(f"certificate of {name} expired")
        return name, key

    def _checked(self, certificate: str) -> tuple[str, Ed25519PublicKey, datetime]:
        try:
            found = x509.load_der_x509_certificate(b64decode(certificate, validate=True))
            found.verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion):
            raise Refused("certificate not issued by this authority") from None
        name, key = name_in(found), found.public_key()
        if name not in self._allowed:
            raise Refused("name not in peer.allow")
        if not isinstance(key, Ed25519PublicKey):
            raise Refused("certificate not usable")
        if datetime.now(UTC) < found.not_valid_before_utc:
            raise Refused(f"certificate of {name} not valid yet: is the clock right?")
        return name, key, found.not_valid_after_utc


def _table(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise Refused("not JSON") from None
    if not isinstance(found, dict):
        raise Refused("not a JSON object")
    return found


def _text(message: Mapping[str, Any], key: str) -> str:
    value = message.get(key)
    if not isinstance(value, str):
        raise Refused(f"missing {key}")
    return value
