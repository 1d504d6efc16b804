"""Manifests: the origin of a blob signs its manifest, and every chunk is checked against it before it is parsed."""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, dataclass
from typing import Any, Literal

from homophily.peer.identity import MAX_SEALED_BYTES, Authority, Identity, Refused

BlobKind = Literal["model", "before", "print"]
KINDS: tuple[BlobKind, ...] = ("model", "before", "print")
CHUNK = 1 << 20  # bytes that travel at a time
MAX_BLOB_BYTES = 900 * CHUNK  # of a blob: its manifest, with a hash for each chunk, is a sealed message
MAX_ROUNDS = 1 << 40
_END = b"\n"  # sealed messages never contain it
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Manifest:
    """The origin of a blob, its kind, round and size, and the SHA-256 of each of its chunks."""

    federation: str
    origin: str
    kind: BlobKind
    round: int
    size: int
    chunks: tuple[str, ...]

    def check_chunk(self, number: int, data: bytes | memoryview) -> None:
        """Raises Refused if a chunk is not what the origin signed."""
        if number >= len(self.chunks) or len(data) != min(CHUNK, self.size - number * CHUNK):
            raise Refused("chunk of the wrong size")
        if _hash(data) != self.chunks[number]:
            raise Refused("altered chunk")


def signed_pieces(data: bytes, federation: str, kind: BlobKind, round: int, identity: Identity) -> list[bytes]:
    """This peer's blob as messages: the sealed manifest on a line, followed by a chunk."""
    chunks = [memoryview(data)[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
    made = Manifest(federation, identity.name, kind, round, len(data), tuple(map(_hash, chunks)))
    line = identity.seal(asdict(made)) + _END
    return [line + chunk for chunk in chunks]


def split_piece(piece: bytes) -> tuple[bytes, memoryview]:
    """Split a message into the sealed manifest and the chunk, both unverified. Raises Refused."""
    end = piece.find(_END, 0, MAX_SEALED_BYTES + 1)
    if end < 0:
        raise Refused("missing manifest")
    return piece[:end], memoryview(piece)[end + 1 :]


def open_manifest(sealed: bytes, authority: Authority, federation: str, max_bytes: int) -> Manifest:
    """Open a sealed manifest and check every field. max_bytes: the size that the blob may have. Raises Refused."""
    body = authority.open(sealed)
    kind, chunks = body.get("kind"), body.get("chunks")
    if body.get("federation") != federation:
        raise Refused("message of another federation")
    if kind not in KINDS or not _is_count(body.get("round"), MAX_ROUNDS):
        raise Refused("malformed manifest")
    if not _is_count(body.get("size"), 1 << 62) or body["size"] < 1:
        raise Refused("malformed manifest")
    if body["size"] > max_bytes:
        raise Refused("blob too large")
    if not isinstance(chunks, list) or len(chunks) != -(-body["size"] // CHUNK):
        raise Refused("malformed manifest")
    if not all(isinstance(text, str) and _SHA256.fullmatch(text) for text in chunks):
        raise Refused("malformed manifest")
    return Manifest(federation, body["origin"], kind, body["round"], body["size"], tuple(chunks))


def _is_count(value: Any, highest: int) -> bool:
    return type(value) is int and 0 <= value <= highest


def _hash(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()
