"""The membership document: who belongs to a federation, which certificates are revoked, which settings all share.

The authority signs it with the key of its certificate. The newest valid version wins, wherever a peer got it from.
"""

from __future__ import annotations

import json
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from homophily.peer.certificates import is_name
from homophily.peer.identity import Refused

MAX_DOCUMENT_BYTES = 512 << 10
_ADDRESS = re.compile(r"(?:[a-zA-Z0-9.-]+|\[[0-9a-fA-F:.]+\]):([0-9]{1,5})")
_PURPOSE = b"homophily membership 1\n"  # the authority's key also signs certificates
_CLOCK_SKEW = 24 * 3600  # seconds
MAX_MEMBERS = 4096
_SERIAL = re.compile(r"[0-9a-f]{1,40}")


@dataclass(frozen=True)
class Member:
    """addresses: host:port at which other peers reach it; generation: of its certificates, 1 until one is revoked."""

    addresses: tuple[str, ...] = ()
    generation: int = 1


@dataclass(frozen=True)
class MembershipDocument:
    """One version of the membership. issued, expires: seconds since 1970; settings: keys of a config, as tables."""

    federation: str
    version: int
    issued: int
    expires: int
    members: Mapping[str, Member]
    revoked: tuple[str, ...] = ()  # serial numbers in hexadecimal
    settings: Mapping[str, Any] = field(default_factory=dict)
    authority: tuple[str, ...] = ()  # addresses of the authority's service

    @property
    def common_names(self) -> dict[str, str]:
        """The common name that the certificate of each member must have."""
        return {name: common_name(name, member.generation) for name, member in self.members.items()}

    def dialled_by(self, name: str, allowed: Collection[str]) -> list[str]:
        """The addresses that a member dials: of two members that can be reached, only one dials the other.

        allowed: the members that it does not deny.
        """
        reachable = bool(self.members[name].addresses) if name in self.members else False
        known = self.members.keys() & set(allowed)
        others = sorted(other for other in known if other != name and (other < name or not reachable))
        return [address for other in others for address in self.members[other].addresses]


def is_address(text: Any) -> bool:
    """Whether this is host:port."""
    found = _ADDRESS.fullmatch(text) if isinstance(text, str) else None
    return found is not None and 0 < int(found[1]) < 65536


def common_name(name: str, generation: int) -> str:
    """The common name of a peer's certificates. It changes when one is revoked, so that links can tell them apart."""
    return name if generation == 1 else f"{name}.{generation}"


def sign_document(document: MembershipDocument, key: Ed25519PrivateKey) -> bytes:
    text = json.dumps(asdict(document), sort_keys=True)
    signature = b64encode(key.sign(_PURPOSE + text.encode())).decode()
    return (json.dumps({"body": text, "signature": signature}) + "\n").encode()


def open_document(data: bytes, authority: x509.Certificate, federation: str) -> MembershipDocument:
    """Check the signature and every field. Raises Refused. An expired document opens: it may have a successor."""
    if len(data) > MAX_DOCUMENT_BYTES:
        raise Refused("membership document too large")
    try:
        message = json.loads(data)
        text, signature = message["body"].encode(), b64decode(message["signature"], validate=True)
        key = authority.public_key()
        if not isinstance(key, Ed25519PublicKey):
            raise Refused("membership document not signed by this authority")
        key.verify(signature, _PURPOSE + text)
    except InvalidSignature:
        raise Refused("membership document not signed by this authority") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Refused("malformed membership document") from None
    body = json.loads(text)
    if body.get("federation") != federation:
        raise Refused("membership document of another federation")
    try:
        members = {
            name: Member(tuple(member["addresses"]), member["generation"]) for name, member in body["members"].items()
        }
        found = MembershipDocument(**{**body, "members": members, "revoked": tuple(body["revoked"])})
        found = replace(found, authority=tuple(found.authority))
    except (KeyError, TypeError, AttributeError):
        raise Refused("malformed membership document") from None
    if not _well_formed(found):
        raise Refused("malformed membership document")
    if found.issued > time.time() + _CLOCK_SKEW:
        raise Refused("membership document of the future: check the clock")
    return found


def _well_formed(document: MembershipDocument) -> bool:
    numbers = (document.version, document.issued, document.expires, *(m.generation for m in document.members.values()))
    return (
        all(type(number) is int and number >= 1 for number in numbers)
        and len(document.members) <= MAX_MEMBERS
        and all(map(is_name, document.members))
        and all(is_address(a) for m in document.members.values() for a in m.addresses)
        and all(map(is_address, document.authority))
        and all(isinstance(serial, str) and _SERIAL.fullmatch(serial) for serial in document.revoked)
        and isinstance(document.settings, dict)
    )
