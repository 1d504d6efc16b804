"""Peers for tests: an authority with keys and certificates, and links that are function calls."""

from __future__ import annotations

import json
import threading
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from functools import cached_property
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from homophily.peer import certificates
from homophily.peer.blob_transfer import BlobTransfer
from homophily.peer.identity import Authority, Identity
from homophily.peer.logs import peer_logger
from homophily.peer.membership import Members, Status
from homophily.peer.refusals import Refusals
from homophily.peer.transport import NoAnswer, Payload

FEDERATION = "clinics"
MOST = 4 << 20  # bytes of a blob


class People:
    """An authority in a folder, and whoever it knows, by name."""

    def __init__(self, folder: Path, names: Sequence[str] = ("alice", "bob", "carol", "dave", "erin")) -> None:
        self.folder, self.names = folder, tuple(names)
        certificates.init(folder)

    def identity(self, name: str, days: int = 365) -> Identity:
        certificate = self.folder / f"{name}.pem"
        if not certificate.exists():
            certificates.issue(self.folder, name, ["127.0.0.1"], days)
        return Identity(name, certificate, self.folder / f"{name}.key")

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @cached_property
    def authority(self) -> Authority:
        return Authority(self.ca, self.names)


def parts(sealed: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sealed)
    return found


def sealed_by(key: Ed25519PrivateKey, certificate: str, body: dict[str, Any] | str) -> bytes:
    """Signed by one of us, whatever it says."""
    text = body if isinstance(body, str) else json.dumps(body)
    signature = b64encode(key.sign(text.encode("utf-8", "surrogatepass"))).decode()
    return json.dumps({"body": text, "signature": signature, "certificate": certificate}).encode()


class _Request:
    def __init__(self, path: str) -> None:
        self.path = path
        self.reply: Future[list[bytes]] = Future()

    def answer(self, *data: Payload) -> None:
        held = [each for each in data if isinstance(each, bytes)]
        assert len(held) == len(data)
        self.reply.set_result(held)

    def decline(self, why: str) -> None:
        self.reply.set_exception(NoAnswer(why))


Tamper = Callable[[str, bytes], bytes | None]  # what a relay makes of a message: path, data; None: leaves it out


class Village:
    """Transfers of several peers whose links are calls: who is linked with whom, who alters what it passes on."""

    def __init__(self, people: People, links: Sequence[tuple[str, str]], slots: int = 4, **more: Any) -> None:
        self.people = people
        self._near: dict[str, frozenset[str]] = {name: frozenset() for pair in links for name in pair}
        for a, b in links:
            self._near[a] |= {b}
            self._near[b] |= {a}
        self.tampering: dict[str, Tamper] = {}
        self.crossed: Counter[tuple[str, str, str]] = Counter()  # who asked whom for what
        self._lock = threading.Lock()
        keys = {"timeout": 5.0, "slots": slots, "waiting": 64, "pulls": 4, "window": 4, "cache_bytes": 8 << 20, **more}
        self.transfer = {name: self._transfer(name, keys) for name in self._near}

    def _transfer(self, name: str, keys: dict[str, Any]) -> BlobTransfer:
        most: Any = {"model": MOST, "before": MOST, "print": MOST}
        members = Members(name, list(self._near), False, lambda: self._near[name])
        for other in self._near:
            members.connected(other)
            members.update(other, Status(time=1, neighbours=tuple(sorted(self._near[other]))))
        identity, authority = self.people.identity(name), self.people.authority
        return BlobTransfer(
            FEDERATION, identity, authority, most, _Links(self, name), members, Refusals(peer_logger(name)), **keys
        )

    def near(self, name: str) -> frozenset[str]:
        return self._near[name]

    def request(self, me: str, neighbour: str, path: str, timeout: float) -> list[bytes]:
        with self._lock:
            self.crossed[me, neighbour, path] += 1
        question = _Request(path)
        self.transfer[neighbour].handle_request(question)
        try:
            data = question.reply.result(timeout)
        except Late:
            raise NoAnswer("no answer") from None
        tamper = self.tampering.get(neighbour)
        passed = data if tamper is None else [made for each in data if (made := tamper(path, each)) is not None]
        if not passed:
            raise NoAnswer("no answer")
        return passed

    def close(self) -> None:
        for transfer in self.transfer.values():
            transfer.close()


class _Links:
    def __init__(self, village: Village, me: str) -> None:
        self._village, self._me = village, me

    def prepare(self, data: bytes) -> bytes:
        return data

    def broadcast(self, data: bytes) -> None:
        raise AssertionError("a transfer tells nobody anything")

    def request(self, neighbour: str, path: str, timeout: float, most: int = 1) -> list[bytes]:
        assert neighbour in self._village.near(self._me), "only direct neighbours are asked"
        return self._village.request(self._me, neighbour, path, timeout)[:most]

    def neighbours(self) -> frozenset[str]:
        return self._village.near(self._me)

    def close(self) -> None:
        pass


def soon(seconds: float = 10.0) -> float:
    return time.monotonic() + seconds


def question(path: str) -> _Request:
    return _Request(path)
