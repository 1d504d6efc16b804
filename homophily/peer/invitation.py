"""An invitation to a federation: a token for the new peer, and the short code by which two people compare keys.

The peer commits to a nonce before the authority sends its own, and shows its nonce only afterwards. So nobody who is
between the two can search for a key that gives the same code: each try has one chance in a million.
"""

from __future__ import annotations

import hashlib
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from homophily.errors import UserError
from homophily.peer.certificates import is_name
from homophily.peer.membership_document import is_address

NONCE_BYTES = 32
_PREFIX = "homophily-"
_CODE_DIGITS = 6


@dataclass(frozen=True)
class Invitation:
    """What a token holds. authority: addresses of its service; fingerprint: of its certificate; expires: a time."""

    federation: str
    name: str
    authority: tuple[str, ...]
    fingerprint: str
    secret: str
    expires: int
    settings: Mapping[str, Any]

    def token(self) -> str:
        text = json.dumps(asdict(self), separators=(",", ":"))
        return _PREFIX + urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def read(cls, token: str) -> Invitation:
        """Raises UserError."""
        text = "".join(token.split()).removeprefix(_PREFIX)
        try:
            values = json.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            found = cls(**{**values, "authority": tuple(values["authority"])})
        except (ValueError, TypeError, KeyError, RecursionError):
            raise UserError("the token is incomplete or damaged: copy all of it, from homophily- on") from None
        if not found._well_formed():
            raise UserError("the token is damaged: ask the authority for a new invitation")
        return found

    def _well_formed(self) -> bool:
        texts = (self.federation, self.name, self.fingerprint, self.secret, *self.authority)
        return (
            all(isinstance(text, str) for text in texts)
            and is_name(self.federation)
            and is_name(self.name)
            and all(map(is_address, self.authority))
            and len(self.authority) > 0
            and type(self.expires) is int
            and isinstance(self.settings, dict)
        )


def secret_digest(secret: str) -> str:
    """What the authority stores of an invitation's secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def fingerprint(certificate: x509.Certificate) -> str:
    return certificate.fingerprint(hashes.SHA256()).hex()


def commitment(nonce: bytes, request: str) -> str:
    """Binds a peer to its nonce and request before it knows the nonce of the authority."""
    return hashlib.sha256(b"homophily join 1\n" + nonce + request.encode()).hexdigest()


def short_code(authority: str, request: str, peer_nonce: bytes, authority_nonce: bytes) -> str:
    """The code that both sides compute. authority: its fingerprint; request: with the peer's public key."""
    parts = f"homophily code 1\n{authority}\n".encode() + peer_nonce + authority_nonce + request.encode()
    return f"{int.from_bytes(hashlib.sha256(parts).digest(), 'big') % 10**_CODE_DIGITS:0{_CODE_DIGITS}}"
