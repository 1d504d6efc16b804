"""What a parcel is, said and signed by whoever made it: everything is checked against this before it is looked into."""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, dataclass
from typing import Any, Literal

from homophily.peer.identity import Authority, Identity, Refused

Kind = Literal["model", "print"]
KINDS: tuple[Kind, ...] = ("model", "print")
CHUNK = 1 << 20  # bytes that travel at a time
MOST_ROUNDS = 1 << 40
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Manifest:
    """A parcel's origin, what it holds, of which round, its size, and the SHA-256 of each of its chunks."""

    federation: str
    origin: str
    kind: Kind
    round: int
    size: int
    chunks: tuple[str, ...]

    def check_chunk(self, number: int, data: bytes) -> None:
        """Raises Refused where a chunk is not what the origin signed."""
        last = number == len(self.chunks) - 1
        if len(data) != (self.size - number * CHUNK if last else CHUNK) or _hash(data) != self.chunks[number]:
            raise Refused("altered chunk")


def manifest_of(data: bytes, federation: str, kind: Kind, round: int, identity: Identity) -> bytes:
    """The sealed manifest of a parcel of one's own."""
    hashes = tuple(_hash(chunk) for chunk in chunks_of(data))
    made = Manifest(federation, identity.name, kind, round, len(data), hashes)
    return identity.seal(asdict(made))


def chunks_of(data: bytes) -> list[bytes]:
    return [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]


def opened(sealed: bytes, authority: Authority, federation: str, most: int) -> Manifest:
    """A manifest as received, every field checked; most: bytes a parcel may have. Raises Refused."""
    body = authority.open(sealed)
    kind, chunks = body.get("kind"), body.get("chunks")
    if body.get("federation") != federation:
        raise Refused("of another federation")
    if kind not in KINDS or not _whole(body.get("round"), MOST_ROUNDS):
        raise Refused("malformed manifest")
    if not _whole(body.get("size"), 1 << 62) or body["size"] < 1:
        raise Refused("malformed manifest")
    if body["size"] > most:
        raise Refused("parcel too large")
    if not isinstance(chunks, list) or len(chunks) != -(-body["size"] // CHUNK):
        raise Refused("malformed manifest")
    if not all(isinstance(text, str) and _SHA256.fullmatch(text) for text in chunks):
        raise Refused("malformed manifest")
    return Manifest(federation, body["origin"], kind, body["round"], body["size"], tuple(chunks))


def _whole(value: Any, most: int) -> bool:
    return type(value) is int and 0 <= value <= most


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
