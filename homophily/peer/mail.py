"""Parcels on their way: one's own on a shelf, others' fetched chunk by chunk from the neighbour nearest to the origin.

A chunk that was fetched for one is kept for the next, so that a model crosses a link once however many want it. Every
chunk is checked against the manifest that its origin signed, at every hop.
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

from homophily.peer.identity import Authority, Identity, Refused
from homophily.peer.links import Links, Question, Unanswered
from homophily.peer.manifest import KINDS, Kind, Manifest, chunks_of, manifest_of, opened
from homophily.peer.members import Members
from homophily.peer.refusals import Refusals

_PATH = re.compile(r"([a-z0-9-]{1,63})/([a-z]{1,8})/([0-9]{1,12})/(manifest|[0-9]{1,6})")
_KEPT_ROUNDS = 2
_MANIFESTS = 256  # that are remembered as opened
_SHORT_PAUSE = 0.05
_HANDS = 64  # chunks of all parcels that are fetched at a time, at most


@dataclass(frozen=True)
class Parcel:
    """Which parcel: whose, of what kind and round."""

    origin: str
    kind: Kind
    round: int


Part = tuple[Parcel, int]  # a chunk by its number; -1: the manifest
_MANIFEST = -1


def _path(part: Part) -> str:
    parcel, number = part
    return f"{parcel.origin}/{parcel.kind}/{parcel.round}/{'manifest' if number == _MANIFEST else number}"


def part_of(path: str) -> Part:
    """What a path asks for. Raises Refused."""
    found = _PATH.fullmatch(path)
    origin, kind, round, part = found.groups() if found is not None else ("", "", "", "")
    if kind not in KINDS:
        raise Refused("malformed request")
    return Parcel(origin, kind, int(round)), _MANIFEST if part == "manifest" else int(part)


class Mail:
    """Fetches, serves and passes on. ``most``: bytes a parcel of a kind may have."""

    def __init__(
        self,
        federation: str,
        identity: Identity,
        authority: Authority,
        most: dict[Kind, int],
        refusals: Refusals,
        *,
        timeout: float,
        slots: int,
        waiting: int,
        window: int,
        cache_bytes: int,
    ) -> None:
        self._federation, self._identity, self._authority, self._most = federation, identity, authority, most
        self._timeout, self._slots, self._waiting, self._window = timeout, slots, waiting, window
        self._shelf: dict[Parcel, tuple[bytes, list[bytes]]] = {}
        self._cache: OrderedDict[Part, bytes] = OrderedDict()
        self._cached, self._cache_bytes = 0, cache_bytes
        self._coming: dict[Part, Future[bytes]] = {}
        self._lock = threading.Lock()
        self._hands = ThreadPoolExecutor(_HANDS)
        self._desks: dict[int, _Desk] = {}
        self._manifest_in = lru_cache(_MANIFESTS)(self._opened)  # every chunk is checked against one
        self.refusals = refusals
        self.links: Links
        self.members: Members

    # One's own

    def publish(self, kind: Kind, round: int, data: bytes) -> None:
        """Put a parcel on the shelf, for whoever asks; those of earlier rounds but one are taken off."""
        mine = Parcel(self._identity.name, kind, round)
        sealed = manifest_of(data, self._federation, kind, round, self._identity)
        with self._lock:
            self._shelf[mine] = sealed, chunks_of(data)
            rounds = sorted(parcel.round for parcel in self._shelf if parcel.kind == kind)
            for old in rounds[:-_KEPT_ROUNDS]:
                del self._shelf[Parcel(self._identity.name, kind, old)]

    # Others'

    def fetch(self, parcel: Parcel, deadline: float) -> bytes:
        """A whole parcel, checked; tried once more, over another way if there is one. Raises Unanswered or Refused."""
        try:
            return self._fetch(parcel, deadline)
        except (Unanswered, Refused) as error:
            if time.monotonic() > deadline:
                raise
            if isinstance(error, Refused):
                self._forget(parcel)  # who was restarted may have made it anew
            time.sleep(_SHORT_PAUSE)
            return self._fetch(parcel, deadline)

    def _fetch(self, parcel: Parcel, deadline: float) -> bytes:
        numbers = range(len(self._manifest(parcel, deadline).chunks))
        mine, *lanes = [numbers[lane :: self._window] for lane in range(min(self._window, len(numbers)))]

        def fetched(lane: Sequence[int]) -> list[bytes]:
            return [self._part((parcel, number), deadline) for number in lane]

        others = [self._hands.submit(fetched, lane) for lane in lanes]
        try:
            got = [fetched(mine), *(other.result() for other in others)]
        finally:
            wait(others)
        return b"".join(got[number % self._window][number // self._window] for number in numbers)

    def _manifest(self, parcel: Parcel, deadline: float, detours: bool = True) -> Manifest:
        return self._manifest_in(parcel, self._part((parcel, _MANIFEST), deadline, detours))

    def _opened(self, parcel: Parcel, sealed: bytes) -> Manifest:
        """A manifest, which may be genuine and yet of another parcel: someone plays it back."""
        found = opened(sealed, self._authority, self._federation, self._most[parcel.kind])
        if (found.origin, found.kind, found.round) != (parcel.origin, parcel.kind, parcel.round):
            raise Refused("manifest of another parcel")
        return found

    def _part(self, part: Part, deadline: float, detours: bool = True) -> bytes:
        """From the shelf, the cache, or a neighbour; whoever asks for what is on its way waits for it."""
        with self._lock:
            if part[0].origin == self._identity.name:
                return self._own(part)
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
            data = self._ask(part, deadline, detours)
        except BaseException as error:
            with self._lock:
                del self._coming[part]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._coming[part]
            if part[1] == _MANIFEST or not self.members.full:  # where everyone asks the origin itself
                self._keep(part, data)
        mine.set_result(data)
        return data

    def _own(self, part: Part) -> bytes:
        parcel, number = part
        if parcel not in self._shelf:
            raise Unanswered("not there")
        sealed, chunks = self._shelf[parcel]
        if number >= len(chunks):
            raise Refused("malformed request")
        return sealed if number == _MANIFEST else chunks[number]

    def _ask(self, part: Part, deadline: float, detours: bool) -> bytes:
        """The neighbour nearest to the origin, and if it fails another.

        Only who wants a parcel takes detours: one who passes it on might lead them back to whoever asked.
        """
        parcel, number = part
        manifest = self._manifest(parcel, deadline, detours) if number != _MANIFEST else None
        if manifest is not None and number >= len(manifest.chunks):
            raise Refused("malformed request")
        failed: list[str] = []
        why: Exception = Unanswered("no way")
        while (neighbour := self.members.towards(parcel.origin, failed)) is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Unanswered("too late")
            try:
                data = self.links.ask(neighbour, _path(part), min(left, self._timeout))
                if manifest is not None:
                    manifest.check_chunk(number, data)
                else:
                    self._manifest_in(parcel, data)
                return data
            except (Unanswered, Refused) as error:
                why = error
                failed.append(neighbour)
                if isinstance(error, Refused):
                    self.refusals.add(error, neighbour)
            if not detours:
                break
        raise why

    def _keep(self, part: Part, data: bytes) -> None:
        """No longer than its origin keeps it on the shelf, and no more than there is room for."""
        parcel, number = part
        if number == _MANIFEST:
            alike = [part for part in self._cache if (part[0].origin, part[0].kind) == (parcel.origin, parcel.kind)]
            for gone in [part for part in alike if part[0].round <= parcel.round - _KEPT_ROUNDS]:
                self._cached -= len(self._cache.pop(gone))
        self._cache[part] = data
        self._cached += len(data)
        while self._cached > self._cache_bytes:
            _, old = self._cache.popitem(last=False)
            self._cached -= len(old)

    def _forget(self, parcel: Parcel) -> None:
        with self._lock:
            for part in [part for part in self._cache if part[0] == parcel]:
                self._cached -= len(self._cache.pop(part))

    # Serving

    def asked(self, question: Question) -> None:
        """Have it answered at the desk for its distance, or decline. Must not block: the network's threads call it."""
        try:
            part = part_of(question.path)
            distance = self._distance(part[0].origin)
        except Refused as error:
            self.refusals.add(error)
            question.decline(str(error))
            return
        with self._lock:
            desk = self._desks.get(distance)
            if desk is None:
                desk = self._desks[distance] = _Desk(self._slots, self._waiting)
        if not desk.take(lambda: self._answer(question, part)):
            self.refusals.add("too many requests")
            question.decline("busy")

    def _distance(self, origin: str) -> int:
        """Desks are apart by distance to the origin: what waits at one waits for a nearer one, so never in a circle."""
        if origin == self._identity.name:
            return 0
        hops = self.members.hops().get(origin)
        if hops is None:
            raise Refused("nobody by that name")
        return hops

    def _answer(self, question: Question, part: Part) -> None:
        try:
            question.answer(self._part(part, time.monotonic() + self._timeout, detours=False))
        except (Unanswered, Refused) as error:
            question.decline(str(error))

    def close(self) -> None:
        self._hands.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for desk in self._desks.values():
                desk.close()


class _Desk:
    """So many threads, and so many jobs that may wait for them."""

    def __init__(self, slots: int, waiting: int) -> None:
        self._room = threading.BoundedSemaphore(slots + waiting)
        self._pool = ThreadPoolExecutor(slots)

    def take(self, job: Callable[[], None]) -> bool:
        if not self._room.acquire(blocking=False):
            return False
        try:
            self._pool.submit(job).add_done_callback(lambda done: self._room.release())
        except RuntimeError:  # closed
            self._room.release()
            return False
        return True

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def fetch_all(mail: Mail, parcels: Sequence[Parcel], deadline: float, at_once: int) -> dict[Parcel, bytes | Exception]:
    """All parcels, several at a time: the data of each, or why there is none."""

    def one(parcel: Parcel) -> bytes | Exception:
        try:
            return mail.fetch(parcel, deadline)
        except (Unanswered, Refused) as error:
            return error

    if not parcels:
        return {}
    pool = ThreadPoolExecutor(min(at_once, len(parcels)))
    try:
        return dict(zip(parcels, pool.map(one, parcels), strict=True))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # who is told to stop does not wait for the network
