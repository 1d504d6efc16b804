"""The transfer of blobs between peers: a peer publishes its own, and fetches those of others two chunks at a time.

A chunk comes from the neighbour nearest to its origin, and every peer caches what it fetched or passed on, so that a
model crosses a link once however many peers want it. At every hop each chunk is checked against the manifest that its
origin signed.
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
from homophily.peer.manifest import CHUNK, KINDS, BlobKind, Manifest, open_manifest, signed_pieces, split_piece
from homophily.peer.membership import Members
from homophily.peer.refusals import Refusals
from homophily.peer.request_pool import RequestPool
from homophily.peer.transport import Links, NoAnswer, Payload, Request

T = TypeVar("T")
_PATH = re.compile(r"([a-z0-9-]{1,63})/([a-z]{1,8})/([0-9]{1,12})/([0-9]{1,6})")
_KEPT_ROUNDS = 2
_CACHED_MANIFESTS = 256  # checked manifests that are cached
_RETRY_SECONDS = 0.05
_MAX_CHUNK_THREADS = 64  # for all blobs together
_CHUNKS_PER_REQUEST = 2  # each is a message of the answer


@dataclass(frozen=True)
class BlobId:
    """Identifies a blob by its origin, kind and round."""

    origin: str
    kind: BlobKind
    round: int


Part = tuple[BlobId, int]  # the first two chunks of a blob, the next two, and so on


@dataclass(frozen=True)
class _Piece:
    """A part of a blob: its messages, and the manifest and the chunks in them."""

    data: tuple[bytes, ...]
    manifest: Manifest
    chunks: tuple[memoryview, ...]

    @property
    def size(self) -> int:
        return sum(map(len, self.data))


def _path(part: Part) -> str:
    blob, number = part
    return f"{blob.origin}/{blob.kind}/{blob.round}/{number}"


def parse_request(path: str) -> Part:
    """The part that a request's path names. Raises Refused."""
    found = _PATH.fullmatch(path)
    origin, kind, round, number = found.groups() if found is not None else ("", "", "", "")
    if kind not in KINDS:
        raise Refused("malformed request")
    return BlobId(origin, kind, int(round)), int(number)


class BlobTransfer:
    """Publishes this peer's blobs, fetches those of others, and answers and relays requests."""

    def __init__(
        self,
        federation: str,
        identity: Identity,
        authority: Authority,
        max_bytes: dict[BlobKind, int],
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
        """max_bytes: size limit for each kind of blob; timeout: seconds for a request over one hop; slots, waiting:
        requests for each distance that are answered at a time, and that may wait; pulls, window: blobs that are fetched
        at a time, and concurrent requests for each; cache_bytes: size of the cache of other peers' chunks."""
        self._federation, self.identity, self._authority, self._max_bytes = federation, identity, authority, max_bytes
        self._timeout, self._slots, self._waiting, self._window = timeout, slots, waiting, window
        self.bytes_served = 0  # own blobs and relayed ones, since the start
        self.published: dict[BlobId, list[Payload]] = {}
        self._cache: OrderedDict[Part, _Piece] = OrderedDict()
        self._cached, self._cache_bytes = 0, cache_bytes
        self._in_flight: dict[Part, Future[_Piece]] = {}
        self._lock = threading.Lock()
        self._blob_threads, self._chunk_threads = ThreadPoolExecutor(pulls), ThreadPoolExecutor(_MAX_CHUNK_THREADS)
        self._pools: dict[int, RequestPool] = {}
        self._manifest_in = lru_cache(_CACHED_MANIFESTS)(
            self._open_manifest
        )  # one for each blob, which all its chunks repeat
        self.links, self.members, self.refusals = links, members, refusals

    # This peer's own blobs

    def publish(self, kind: BlobKind, round: int, data: bytes) -> None:
        """Let others fetch a blob. The last two rounds of each kind stay published."""
        mine = BlobId(self.identity.name, kind, round)
        pieces = [
            self.links.prepare(piece) for piece in signed_pieces(data, self._federation, kind, round, self.identity)
        ]
        with self._lock:
            self.published[mine] = pieces
            rounds = sorted(blob.round for blob in self.published if blob.kind == kind)
            for old in rounds[:-_KEPT_ROUNDS]:
                del self.published[BlobId(self.identity.name, kind, old)]

    def _own_part(self, part: Part) -> list[Payload]:
        blob, number = part
        with self._lock:
            pieces = self.published.get(blob)
        if pieces is None:
            raise NoAnswer("not published")
        wanted = pieces[_CHUNKS_PER_REQUEST * number : _CHUNKS_PER_REQUEST * (number + 1)]
        if not wanted:
            self.refusals.add("malformed request")
            raise Refused("malformed request")
        return wanted

    # Blobs of others

    def fetch_all(
        self, blobs: Sequence[BlobId], unpack: Callable[[bytes], T], deadline: float
    ) -> dict[BlobId, T | Refused | NoAnswer]:
        """The content of each blob, or why it could not be fetched. Several are fetched and unpacked at a time."""

        def one(blob: BlobId) -> T | Refused | NoAnswer:
            try:
                return unpack(self.fetch(blob, deadline))
            except (NoAnswer, Refused) as error:
                return error

        return dict(zip(blobs, self._blob_threads.map(one, blobs), strict=True))

    def fetch(self, blob: BlobId, deadline: float) -> bytes:
        """A whole blob, checked; tried twice, if possible over two routes. Raises NoAnswer or Refused."""
        try:
            return self._fetch(blob, deadline)
        except (NoAnswer, Refused) as error:
            if time.monotonic() > deadline:
                raise
            if isinstance(error, Refused):
                self._drop_cached(blob)  # a peer that was restarted may have made it anew
            time.sleep(_RETRY_SECONDS)
            return self._fetch(blob, deadline)

    def _fetch(self, blob: BlobId, deadline: float) -> bytes:
        first = self._get_part((blob, 0), deadline)
        rest = range(1, -(-len(first.manifest.chunks) // _CHUNKS_PER_REQUEST))
        mine, *lanes = [rest[lane :: self._window] for lane in range(max(1, min(self._window, len(rest))))]

        def fetched(lane: Sequence[int]) -> list[_Piece]:
            return [self._get_part((blob, number), deadline) for number in lane]

        others = [self._chunk_threads.submit(fetched, lane) for lane in lanes]
        try:
            got = [fetched(mine), *(other.result() for other in others)]
        finally:
            wait(others)
        pieces = [first, *(got[at % self._window][at // self._window] for at in range(len(rest)))]
        if any(piece.manifest != first.manifest for piece in pieces):
            raise Refused("chunks of different blobs")
        return b"".join(chunk for piece in pieces for chunk in piece.chunks)

    def _open_manifest(self, blob: BlobId, sealed: bytes) -> Manifest:
        """Open a manifest. Raises Refused if it is a valid manifest of another blob, which a relay may replay."""
        found = open_manifest(sealed, self._authority, self._federation, self._max_bytes[blob.kind])
        if (found.origin, found.kind, found.round) != (blob.origin, blob.kind, blob.round):
            raise Refused("manifest of another blob")
        return found

    def _get_part(self, part: Part, deadline: float, detours: bool = True) -> _Piece:
        """A part from the cache or a neighbour; a second request for one that is being fetched waits for the first."""
        with self._lock:
            if part in self._cache:
                self._cache.move_to_end(part)
                return self._cache[part]
            pending = self._in_flight.get(part)
            if pending is None:
                mine = self._in_flight[part] = Future()
        if pending is not None:
            try:
                return pending.result(max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                raise NoAnswer("deadline passed") from None
        try:
            piece = self._request_part(part, deadline, detours)
        except BaseException as error:
            with self._lock:
                del self._in_flight[part]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._in_flight[part]
            if not self.members.full:  # in a full mesh everyone asks the origin itself
                self._cache_part(part, piece)
        mine.set_result(piece)
        return piece

    def _request_part(self, part: Part, deadline: float, detours: bool) -> _Piece:
        """Request a part from the neighbour nearest to the origin, and from another one if that fails.

        Only the peer that wants the blob takes detours: one that relays it might ask the peer that asked it.
        """
        failed: list[str] = []
        reason: Exception = NoAnswer("no route")
        while (neighbour := self.members.next_hop(part[0].origin, failed)) is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise NoAnswer("deadline passed")
            try:
                return self._verified(
                    part, self.links.request(neighbour, _path(part), min(left, self._timeout), _CHUNKS_PER_REQUEST)
                )
            except (NoAnswer, Refused) as error:
                reason = error
                failed.append(neighbour)
                if isinstance(error, Refused):
                    self.refusals.add(error, neighbour)
            if not detours:
                break
        raise reason

    def _verified(self, part: Part, data: list[bytes]) -> _Piece:
        """The part in these messages, verified against the signed manifest. Raises Refused."""
        blob, number = part
        seals, chunks = zip(*map(split_piece, data), strict=True)
        manifest = self._manifest_in(blob, seals[0])
        if any(seal != seals[0] for seal in seals):
            raise Refused("chunks of different blobs")
        for at, chunk in enumerate(chunks, start=_CHUNKS_PER_REQUEST * number):
            manifest.check_chunk(at, chunk)
        if len(chunks) < min(_CHUNKS_PER_REQUEST, len(manifest.chunks) - _CHUNKS_PER_REQUEST * number):
            raise Refused("missing chunk")
        return _Piece(tuple(data), manifest, chunks)

    def _cache_part(self, part: Part, piece: _Piece) -> None:
        """Cache a part, no longer than its origin publishes it, and no more than ``cache_bytes`` in all."""
        blob, number = part
        if number == 0:
            same_origin = [part for part in self._cache if (part[0].origin, part[0].kind) == (blob.origin, blob.kind)]
            for expired in [part for part in same_origin if part[0].round <= blob.round - _KEPT_ROUNDS]:
                self._cached -= self._cache.pop(expired).size
        self._cache[part] = piece
        self._cached += piece.size
        while self._cached > self._cache_bytes:
            _, old = self._cache.popitem(last=False)
            self._cached -= old.size

    def _drop_cached(self, blob: BlobId) -> None:
        with self._lock:
            for part in [part for part in self._cache if part[0] == blob]:
                self._cached -= self._cache.pop(part).size

    # Serving

    def handle_request(self, request: Request) -> None:
        """Queue a request in the pool for its distance, or decline it. Must not block: network threads call it."""
        try:
            part = parse_request(request.path)
            if part[1] * _CHUNKS_PER_REQUEST * CHUNK >= self._max_bytes[part[0].kind]:
                raise Refused("malformed request")  # no blob is that large
            distance = self._distance(part[0].origin)
        except Refused as error:
            self.refusals.add(error)
            request.decline(str(error))
            return
        with self._lock:
            pool = self._pools.get(distance)
            if pool is None:
                pool = self._pools[distance] = RequestPool(self._slots, self._waiting)
        if not pool.take(lambda: self._answer(request, part)):
            self.refusals.add("too many requests")
            request.decline("busy")

    def _distance(self, origin: str) -> int:
        """Hops to the origin. Each distance has its own pool, so that relayed requests cannot deadlock in a circle."""
        if origin == self.identity.name:
            return 0
        hops = self.members.hops().get(origin)
        if hops is None:
            raise Refused("unknown origin")
        return hops

    def _answer(self, request: Request, part: Part) -> None:
        try:
            if part[0].origin == self.identity.name:
                data: Sequence[Payload] = self._own_part(part)
            else:
                data = self._get_part(part, time.monotonic() + self._timeout, detours=False).data
            request.answer(*data)
            with self._lock:
                self.bytes_served += sum(map(len, data))
        except (NoAnswer, Refused) as error:
            request.decline(str(error))

    def close(self) -> None:
        for executor in (self._chunk_threads, self._blob_threads):
            executor.shutdown(wait=False, cancel_futures=True)  # a peer that stops does not wait for the network
        with self._lock:
            for pool in self._pools.values():
                pool.close()
