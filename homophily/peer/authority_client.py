"""What a member asks the authority's service: the newest membership document, and a new certificate."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from homophily.atomic_io import write_text
from homophily.errors import UserError
from homophily.peer import certificates
from homophily.peer.channel import Channel, ChannelBroken, dial, verified
from homophily.peer.identity import Refused
from homophily.peer.membership_document import MAX_DOCUMENT_BYTES, MembershipDocument, open_document
from homophily.peer.settings import PeerSettings

MOST_BYTES = 2 * MAX_DOCUMENT_BYTES + (64 << 10)  # of a message from the service
RENEWED_BEFORE = timedelta(days=30)  # the end of a certificate
_DOCUMENT_SECONDS = 15.0  # between two questions for a newer document
_RENEWAL_SECONDS = 3600.0  # between two tries to renew a certificate


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except ChannelBroken as error:
        raise UserError(f"the connection to the authority broke: {error}; run the same command again") from None


def sent(channel: Channel, **message: Any) -> None:
    """Send a message to the service. Raises UserError if the connection broke."""
    with _explained():
        channel.send(**message)


def received(channel: Channel) -> dict[str, Any]:
    """The next message of the service. Raises UserError with what it refused, or why there is none."""
    with _explained():
        found = channel.receive()
    if "error" in found:
        raise UserError(str(found["error"]))
    return found


def _ask(settings: PeerSettings, document: MembershipDocument, **message: Any) -> dict[str, Any]:
    authority = settings.path(settings.peer.ca).read_text()
    context = verified(authority, (settings.certificate, settings.key))
    with dial(document.authority, context, MOST_BYTES) as channel:
        sent(channel, **message)
        return received(channel)


def newer_document(settings: PeerSettings, document: MembershipDocument) -> bytes | None:
    """A document that the authority has and that is newer than this one."""
    found = _ask(settings, document, kind="document", version=document.version).get("document")
    return None if found is None else str(found).encode()


def caught_up(settings: PeerSettings, document: MembershipDocument) -> tuple[PeerSettings, bytes | None]:
    """The settings under a newer document of the authority, and that document; None: it has none.

    Raises UserError or OSError if the service cannot be reached, or the new document contradicts the peer's file.
    """
    data = newer_document(settings, document)
    if data is None:
        return settings, None
    try:
        newer = open_document(data, certificates.read_certificate(settings.path(settings.peer.ca)), document.federation)
    except Refused as error:
        raise UserError(f"the authority sent a membership document that cannot be used: {error}") from None
    return settings.under(newer), data


def begun(settings: PeerSettings) -> tuple[PeerSettings, bytes | None]:
    """The settings with which a new state folder begins: the document of the peer's file may be years old."""
    document = settings.document
    if document is None or not document.authority or settings.stored_document.exists():
        return settings, None
    try:
        return caught_up(settings, document)
    except (UserError, OSError):  # the service need not run always
        return settings, None


def renew_certificate(settings: PeerSettings, document: MembershipDocument) -> None:
    """Replace a peer's certificate with a new one for the same key. Raises UserError."""
    issuer = certificates.read_certificate(settings.path(settings.peer.ca))
    text = str(_ask(settings, document, kind="renew").get("certificate"))
    try:
        made = certificates.issued_to(text, issuer, settings.peer.name, certificates.read_key(settings.key))
    except ValueError as error:
        raise UserError(f"the authority sent a certificate that cannot be used: {error}") from None
    write_text(settings.certificate, made)


class AuthorityClient:
    """Asks the authority's service in a thread of its own, as long as a peer runs."""

    def __init__(
        self,
        settings: PeerSettings,
        document: Callable[[], MembershipDocument],
        on_document: Callable[[bytes], None],
        on_renewal: Callable[[], None],
        log: logging.Logger,
    ) -> None:
        """document: the one that applies; on_document: called with newer ones; on_renewal: after a new certificate."""
        self._settings, self._document = settings, document
        self._on_document, self._on_renewal, self._log = on_document, on_renewal, log
        self._stopped = threading.Event()
        self._failed = ""  # the last reason why a renewal failed
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(1.0)

    def _work(self) -> None:
        tried = -_RENEWAL_SECONDS
        while not self._stopped.is_set():
            document = self._document()
            if document.authority:
                if time.monotonic() - tried >= _RENEWAL_SECONDS and self._due():
                    tried = time.monotonic()
                    self._renew(document)
                try:
                    found = newer_document(self._settings, document)
                    if found is not None:
                        self._on_document(found)
                except (UserError, OSError):
                    pass  # the service need not run always: other peers have the document, too
            self._stopped.wait(_DOCUMENT_SECONDS)

    def _due(self) -> bool:
        try:
            expires = certificates.read_certificate(self._settings.certificate).not_valid_after_utc
        except UserError:
            return False
        return expires - datetime.now(UTC) < RENEWED_BEFORE

    def _renew(self, document: MembershipDocument) -> None:
        path = self._settings.certificate
        try:
            renew_certificate(self._settings, document)
        except (UserError, OSError) as error:
            if str(error) != self._failed:
                self._failed = str(error)
                self._log.warning("the certificate %s could not be renewed: %s; trying every hour", path, error)
            return
        until = certificates.read_certificate(path).not_valid_after_utc.date()
        self._log.info("the certificate %s was renewed; it is valid until %s", path, until)
        self._on_renewal()
