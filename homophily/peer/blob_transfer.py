"""Parcels on their way: one's own on a shelf, others' fetched two chunks at a time from who is nearest to the origin.

What was fetched for one is kept for the next, so that a model crosses a link once however many want it. Every chunk is
checked against the manifest that its origin signed, at every hop.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from homophily.peer.identity import Authority, Identity, Refused
from homophily.peer.manifest import CHUNK, KINDS, BlobKind, Manifest, opened, parted, pieces_of
from homophily.peer.membership import Members
from homophily.peer.refusals import Refusals
from homophily.peer.request_pool import RequestPool
from homophily.peer.transport import Links, Load, Question, Unanswered

T = TypeVar("T")
_PATH = re.compile(r"([a-z0-9-]{1,63})/([a-z]{1,8})/([0-9]{1,12})/([0-9]{1,6})")
_KEPT_ROUNDS = 2
_MANIFESTS = 256  # that are remembered as opened
_SHORT_PAUSE = 0.05
_HANDS = 64  # pieces of all parcels that are fetched at a time, at most
_TWO = 2  # chunks that one request brings, a message each


@dataclass(frozen=True)
class BlobId:
    """Which parcel: whose, of what kind and round."""

    origin: str
    kind: BlobKind
    round: int


Part = tuple[BlobId, int]  # the first two chunks of a parcel, the next two, and so on


@dataclass(frozen=True)
class _Piece:
    """What came for a part, as it travels, and what was found in it."""

    data: tuple[bytes, ...]
    manifest: Manifest
    chunks: tuple[memoryview, ...]

    @property
    def size(self) -> int:
        return sum(map(len, self.data))


def _path(part: Part) -> str:
    blob, number = part
    return f"{blob.origin}/{blob.kind}/{blob.round}/{number}"


def part_of(path: str) -> Part:
    """What a path asks for. Raises Refused."""
    found = _PATH.fullmatch(path)
    origin, kind, round, number = found.groups() if found is not None else ("", "", "", "")
    if kind not in KINDS:
        raise Refused("malformed request")
    return BlobId(origin, kind, int(round)), int(number)


class BlobTransfer:
    """Fetches, serves and passes on. ``most``: bytes a parcel of a kind may have."""

    def __init__(
        self,
        federation: str,
        identity: Identity,
        authority: Authority,
        most: dict[BlobKind, int],
        links: Links,
        members: Members,
        refusals: Refusals,
        *,
        timeout: float,
        slots: int,
        waiting: int,
        pulls: int,
        window: int,
        cache_bytes: int,
    ) -> None:
        self._federation, self.identity, self._authority, self._most = federation, identity, authority, most
        self._timeout, self._slots, self._waiting, self._window = timeout, slots, waiting, window
        self._published: dict[BlobId, list[Load]] = {}
        self._cache: OrderedDict[Part, _Piece] = OrderedDict()
        self._cached, self._cache_bytes = 0, cache_bytes
        self._coming: dict[Part, Future[_Piece]] = {}
        self._lock = threading.Lock()
        self._pullers, self._hands = ThreadPoolExecutor(pulls), ThreadPoolExecutor(_HANDS)
        self._pools: dict[int, RequestPool] = {}
        self._manifest_in = lru_cache(_MANIFESTS)(self._opened)  # every chunk is checked against one
        self.links, self.members, self.refusals = links, members, refusals

    # One's own

    def publish(self, kind: BlobKind, round: int, data: bytes) -> None:
        """Put a parcel on the shelf, for whoever asks; those of earlier rounds but one are taken off."""
        mine = BlobId(self.identity.name, kind, round)
        pieces = [self.links.ready(piece) for piece in pieces_of(data, self._federation, kind, round, self.identity)]
        with self._lock:
            self._published[mine] = pieces
            rounds = sorted(blob.round for blob in self._published if blob.kind == kind)
            for old in rounds[:-_KEPT_ROUNDS]:
                del self._published[BlobId(self.identity.name, kind, old)]

    def _own(self, part: Part) -> list[Load]:
        blob, number = part
        with self._lock:
            pieces = self._published.get(blob)
        if pieces is None:
            raise Unanswered("not there")
        wanted = pieces[_TWO * number : _TWO * (number + 1)]
        if not wanted:
            self.refusals.add("malformed request")
            raise Refused("malformed request")
        return wanted

    # Others'

    def fetch_all(
        self, blobs: Sequence[BlobId], unpack: Callable[[bytes], T], deadline: float
    ) -> dict[BlobId, T | Refused | Unanswered]:
        """What is in each parcel, or why it cannot be had. Several come at a time, and go as soon as unpacked."""

        def one(blob: BlobId) -> T | Refused | Unanswered:
            try:
                return unpack(self.fetch(blob, deadline))
            except (Unanswered, Refused) as error:
                return error

        return dict(zip(blobs, self._pullers.map(one, blobs), strict=True))

    def fetch(self, blob: BlobId, deadline: float) -> bytes:
        """A whole parcel, checked; tried once more, over another way if there is one. Raises Unanswered or Refused."""
        try:
            return self._fetch(blob, deadline)
        except (Unanswered, Refused) as error:
            if time.monotonic() > deadline:
                raise
            if isinstance(error, Refused):
                self._forget(blob)  # who was restarted may have made it anew
            time.sleep(_SHORT_PAUSE)
            return self._fetch(blob, deadline)

    def _fetch(self, blob: BlobId, deadline: float) -> bytes:
        first = self._piece((blob, 0), deadline)
        rest = range(1, -(-len(first.manifest.chunks) // _TWO))
        mine, *lanes = [rest[lane :: self._window] for lane in range(max(1, min(self._window, len(rest))))]

        def fetched(lane: Sequence[int]) -> list[_Piece]:
            return [self._piece((blob, number), deadline) for number in lane]

        others = [self._hands.submit(fetched, lane) for lane in lanes]
        try:
            got = [fetched(mine), *(other.result() for other in others)]
        finally:
            wait(others)
        pieces = [first, *(got[at % self._window][at // self._window] for at in range(len(rest)))]
        if any(piece.manifest != first.manifest for piece in pieces):
            raise Refused("chunks of two parcels")
        return b"".join(chunk for piece in pieces for chunk in piece.chunks)

    def _opened(self, blob: BlobId, sealed: bytes) -> Manifest:
        """A manifest, which may be genuine and yet of another parcel: someone plays it back."""
        found = opened(sealed, self._authority, self._federation, self._most[blob.kind])
        if (found.origin, found.kind, found.round) != (blob.origin, blob.kind, blob.round):
            raise Refused("manifest of another parcel")
        return found

    def _piece(self, part: Part, deadline: float, detours: bool = True) -> _Piece:
        """From the cache or a neighbour; whoever asks for what is on its way waits for it."""
        with self._lock:
            if part in self._cache:
                self._cache.move_to_end(part)
                return self._cache[part]
            coming = self._coming.get(part)
            if coming is None:
                mine = self._coming[part] = Future()
        if coming is not None:
            try:
                return coming.result(max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                raise Unanswered("too late") from None
        try:
            piece = self._ask(part, deadline, detours)
        except BaseException as error:
            with self._lock:
                del self._coming[part]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._coming[part]
            if not self.members.full:  # where everyone asks the origin itself
                self._keep(part, piece)
        mine.set_result(piece)
        return piece

    def _ask(self, part: Part, deadline: float, detours: bool) -> _Piece:
        """The neighbour nearest to the origin, and if it fails another.

        Only who wants a parcel takes detours: one who passes it on might lead them back to whoever asked.
        """
        failed: list[str] = []
        why: Exception = Unanswered("no way")
        while (neighbour := self.members.towards(part[0].origin, failed)) is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Unanswered("too late")
            try:
                return self._checked(part, self.links.ask(neighbour, _path(part), min(left, self._timeout), _TWO))
            except (Unanswered, Refused) as error:
                why = error
                failed.append(neighbour)
                if isinstance(error, Refused):
                    self.refusals.add(error, neighbour)
            if not detours:
                break
        raise why

    def _checked(self, part: Part, data: list[bytes]) -> _Piece:
        """What came, every byte as its origin signed it. Raises Refused."""
        blob, number = part
        seals, chunks = zip(*map(parted, data), strict=True)
        manifest = self._manifest_in(blob, seals[0])
        if any(seal != seals[0] for seal in seals):
            raise Refused("chunks of two parcels")
        for at, chunk in enumerate(chunks, start=_TWO * number):
            manifest.check_chunk(at, chunk)
        if len(chunks) < min(_TWO, len(manifest.chunks) - _TWO * number):
            raise Refused("chunk left out")
        return _Piece(tuple(data), manifest, chunks)

    def _keep(self, part: Part, piece: _Piece) -> None:
        """No longer than its origin keeps it on the shelf, and no more than there is room for."""
        blob, number = part
        if number == 0:
            alike = [part for part in self._cache if (part[0].origin, part[0].kind) == (blob.origin, blob.kind)]
            for gone in [part for part in alike if part[0].round <= blob.round - _KEPT_ROUNDS]:
                self._cached -= self._cache.pop(gone).size
        self._cache[part] = piece
        self._cached += piece.size
        while self._cached > self._cache_bytes:
            _, old = self._cache.popitem(last=False)
            self._cached -= old.size

    def _forget(self, blob: BlobId) -> None:
        with self._lock:
            for part in [part for part in self._cache if part[0] == blob]:
                self._cached -= self._cache.pop(part).size

    # Serving

    def asked(self, question: Question) -> None:
        """Have it answered at the desk for its distance, or decline. Must not block: the network's threads call it."""
        try:
            part = part_of(question.path)
            if part[1] * _TWO * CHUNK >= self._most[part[0].kind]:
                raise Refused("malformed request")  # no parcel is that large
            distance = self._distance(part[0].origin)
        except Refused as error:
            self.refusals.add(error)
            question.decline(str(error))
            return
        with self._lock:
            pool = self._pools.get(distance)
            if pool is None:
                pool = self._pools[distance] = RequestPool(self._slots, self._waiting)
        if not pool.take(lambda: self._answer(question, part)):
            self.refusals.add("too many requests")
            question.decline("busy")

    def _distance(self, origin: str) -> int:
        """Desks are apart by distance to the origin: what waits at one waits for a nearer one, so never in a circle."""
        if origin == self.identity.name:
            return 0
        hops = self.members.hops().get(origin)
        if hops is None:
            raise Refused("nobody by that name")
        return hops

    def _answer(self, question: Question, part: Part) -> None:
        try:
            if part[0].origin == self.identity.name:
                question.answer(*self._own(part))
            else:
                question.answer(*self._piece(part, time.monotonic() + self._timeout, detours=False).data)
        except (Unanswered, Refused) as error:
            question.decline(str(error))

    def close(self) -> None:
        for executor in (self._hands, self._pullers):
            executor.shutdown(wait=False, cancel_futures=True)  # who is told to stop does not wait for the network
        with self._lock:
            for pool in self._pools.values():
                pool.close()
