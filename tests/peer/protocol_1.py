"""How peers of protocol version 1 read sealed messages: a frozen copy of their code. Do not change it."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from datetime import UTC, datetime
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.x509.oid import NameOID

STATUS_FIELDS = {"time", "trained", "merged", "printed", "finished", "neighbours", "plan"}
SHA256 = re.compile(r"[0-9a-f]{64}")


class Refused(Exception):
    pass


def open_sealed(data: bytes, ca: bytes, allowed: set[str]) -> dict[str, Any]:
    if len(data) > 64 << 10:
        raise Refused("sealed message too large")
    message = json.loads(data)
    text, signature, certificate = (message[key] for key in ("body", "signature", "certificate"))
    found = x509.load_der_x509_certificate(b64decode(certificate, validate=True))
    found.verify_directly_issued_by(x509.load_pem_x509_certificate(ca))
    name, key = str(found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value), found.public_key()
    if name not in allowed:
        raise Refused("name not in peer.allow")
    if not isinstance(key, Ed25519PublicKey):
        raise Refused("certificate not usable")
    if not found.not_valid_before_utc <= datetime.now(UTC) <= found.not_valid_after_utc:
        raise Refused("certificate not valid")
    key.verify(b64decode(signature, validate=True), text.encode())
    body: dict[str, Any] = json.loads(text)
    if body.get("origin") != name:
        raise Refused("signed by a peer that is not its origin")
    return body


def open_status(sealed: bytes, ca: bytes, allowed: set[str], federation: str) -> dict[str, Any]:
    body = open_sealed(sealed, ca, allowed)
    status: dict[str, Any] = body["status"]
    if body.get("federation") != federation:
        raise Refused("message of another federation")
    if not isinstance(status, dict) or set(status) != STATUS_FIELDS:
        raise Refused("malformed status")
    for key in ("time", "trained", "merged", "printed"):
        if type(status[key]) is not int or not -1 <= status[key] <= 1 << 62:
            raise Refused("malformed status")
    if type(status["finished"]) is not bool or not isinstance(status["neighbours"], list):
        raise Refused("malformed status")
    if not isinstance(status["plan"], str) or len(status["plan"]) > 200 or not status["plan"].isprintable():
        raise Refused("malformed status")
    return status


def open_piece(piece: bytes, ca: bytes, allowed: set[str], federation: str) -> tuple[dict[str, Any], bytes]:
    sealed, _, chunk = piece.partition(b"\n")
    body = open_sealed(sealed, ca, allowed)
    if body.get("federation") != federation:
        raise Refused("message of another federation")
    if body.get("kind") not in ("model", "before", "print") or type(body.get("round")) is not int:
        raise Refused("malformed manifest")
    chunks = body.get("chunks")
    if not isinstance(chunks, list) or len(chunks) != -(-body["size"] // (1 << 20)):
        raise Refused("malformed manifest")
    if not all(isinstance(text, str) and SHA256.fullmatch(text) for text in chunks):
        raise Refused("malformed manifest")
    return body, chunk
