"""Keeps the newest membership document of a running peer: from other peers, or from the file peer.membership."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from homophily.atomic_io import write_bytes
from homophily.errors import UserError
from homophily.peer.identity import Refused
from homophily.peer.membership_document import MembershipDocument, open_document
from homophily.peer.refusals import Refusals

_LOOK_SECONDS = 2.0  # between two looks at the file
_OFFER_SECONDS = 5.0  # between two offers of the document to neighbours, for one of at most 20 kB
_BYTES_PER_SECOND = 4096  # of a larger document
_WAITING = 64  # documents that wait to be checked
WARNED_BEFORE = 30 * 86400  # seconds before the end of a document


def newest(paths: list[Path], authority: x509.Certificate, federation: str) -> tuple[bytes, MembershipDocument]:
    """The newest of the valid documents in some files. Raises UserError if there is none."""
    found: list[tuple[bytes, MembershipDocument]] = []
    reasons: list[str] = []
    for path in paths:
        try:
            data = path.read_bytes()
            found.append((data, open_document(data, authority, federation)))
        except OSError as error:
            reasons.append(f"cannot read {path}: {error.strerror}")
        except Refused as error:
            reasons.append(f"{path}: {error}")
    if not found:
        raise UserError(f"peer.membership: there is no valid membership document: {reasons[0]}")
    return max(found, key=lambda each: each[1].version)


class MembershipKeeper:
    """Checks documents in a thread of its own, stores a newer one and applies it, and offers it to neighbours."""

    def __init__(
        self,
        known: tuple[bytes, MembershipDocument],
        authority: x509.Certificate,
        stored: Path,
        watched: Path,
        apply: Callable[[MembershipDocument], None],
        offer: Callable[[bytes], None],
        refusals: Refusals,
        log: logging.Logger,
    ) -> None:
        """stored: where the newest is written; watched: a file that the operator may replace; apply: called with each
        newer document; offer: sends a document to all neighbours."""
        self._data, self.document = known
        self._authority, self._stored, self._watched = authority, stored, watched
        self._apply, self._offer, self._refusals, self._log = apply, offer, refusals, log
        self._received: queue.Queue[bytes] = queue.Queue(_WAITING)
        self._stopped, self._again = threading.Event(), threading.Event()
        self._seen = b""  # the last content of the watched file
        self._warned = 0  # the version whose end was announced
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        write_bytes(self._stored, self._data)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(5.0)

    def receive(self, data: bytes) -> None:
        """Take a document from the network, without waiting; with too many of them it is dropped, and offered again."""
        if data != self._data:
            try:
                self._received.put_nowait(data)
            except queue.Full:
                self._refusals.add("too many membership documents")

    def apply_again(self) -> None:
        """Apply the present document once more, for example with a new certificate."""
        self._again.set()

    def _work(self) -> None:
        offered = looked = 0.0
        while not self._stopped.is_set():
            now = time.monotonic()
            if now - offered >= max(_OFFER_SECONDS, len(self._data) / _BYTES_PER_SECOND):
                self._offer(self._data)
                offered = now
            if now - looked >= _LOOK_SECONDS:
                self._look()
                self._warn_of_end()
                looked = now
            if self._again.is_set():
                self._again.clear()
                self._apply(self.document)
            try:
                older = self.consider(self._received.get(timeout=0.2))
            except queue.Empty:
                continue
            if older and time.monotonic() - offered >= 1.0:  # the neighbour was away: it need not wait for the next
                offered = 0.0

    def _look(self) -> None:
        """Read the watched file if it has changed."""
        try:
            data = self._watched.read_bytes()
        except OSError:
            return
        if data != self._seen:
            self._seen = data
            self.consider(data)

    def _warn_of_end(self) -> None:
        document = self.document
        if document.expires - time.time() < WARNED_BEFORE and self._warned != document.version:
            self._warned = document.version
            self._log.warning(
                "the membership document version %d expires on %s: ask the authority for a new one",
                document.version,
                datetime.fromtimestamp(document.expires, UTC).date(),
            )

    def consider(self, data: bytes) -> bool:
        """Store and apply a document if it is newer than the known one. Returns whether it is older."""
        try:
            found = open_document(data, self._authority, self.document.federation)
            if found.version == self.document.version and found != self.document:
                raise Refused("two membership documents of one version")
        except Refused as error:
            self._refusals.add(error)
            return False
        if found.version <= self.document.version:
            return found.version < self.document.version
        try:
            write_bytes(self._stored, data)
        except UserError as error:  # for example a full disk: tried again with the next offer
            self._log.error("the membership document version %d cannot be stored: %s", found.version, error)
            return False
        self._data, self.document = data, found
        self._log.info(
            "membership document version %d of %s applies: %s",
            found.version,
            datetime.fromtimestamp(found.issued, UTC).date(),
            ", ".join(sorted(found.members)) or "no members",
        )
        self._offer(data)
        self._apply(found)
        return False
