"""The channel between a peer and the authority's service: JSON objects over TLS 1.3."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509

from homophily.errors import UserError
from homophily.peer.certificates import SERVICE_HOST

SILENCE_SECONDS = 30.0  # without a whole message, after which a channel is given up
_CONNECT_SECONDS = 10.0


class ChannelBroken(Exception):
    """The other end closed the connection, was silent for too long, or sent no message of this protocol."""


class Channel:
    """Messages over one connection. most: bytes of a received message."""

    def __init__(self, connection: ssl.SSLSocket, most: int) -> None:
        self._connection, self._most = connection, most

    def send(self, **message: Any) -> None:
        data = json.dumps(message).encode()
        try:
            self._connection.settimeout(SILENCE_SECONDS)
            self._connection.sendall(len(data).to_bytes(4, "big") + data)
        except OSError as error:
            raise ChannelBroken(_reason(error)) from error

    def receive(self) -> dict[str, Any]:
        until = time.monotonic() + SILENCE_SECONDS
        size = int.from_bytes(self._exactly(4, until), "big")
        if size > self._most:
            raise ChannelBroken("message too large")
        try:
            found = json.loads(self._exactly(size, until))
            json.dumps(found, ensure_ascii=False).encode()  # refuses halves of surrogate pairs, which are no text
        except (ValueError, RecursionError):
            raise ChannelBroken("malformed message") from None
        if not isinstance(found, dict):
            raise ChannelBroken("malformed message")
        return found

    def _exactly(self, size: int, until: float) -> bytes:
        data = b""
        while len(data) < size:
            try:
                self._connection.settimeout(max(until - time.monotonic(), 0.001))
                part = self._connection.recv(min(size - len(data), 65536))
            except OSError as error:
                raise ChannelBroken(_reason(error)) from error
            if not part:
                raise ChannelBroken("the connection was closed")
            data += part
        return data

    def certificate(self) -> x509.Certificate | None:
        """The certificate of the other end, which TLS has verified; None: it showed none."""
        found = self._connection.getpeercert(binary_form=True)
        return None if found is None else x509.load_der_x509_certificate(found)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    return str(getattr(error, "verify_message", "") or error.strerror or error)


def unverified() -> ssl.SSLContext:
    """For the first question, whose answer is compared with a fingerprint."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def verified(authority: str, own: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    """authority: its certificate in PEM form; own: certificate and key of the peer that dials, if it has any."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=authority)
    if own is not None:
        context.load_cert_chain(*own)
    return context


def dial(addresses: Sequence[str], context: ssl.SSLContext, most: int) -> Channel:
    """A channel to the first of the addresses that answers. Raises UserError with the reason of the first."""
    reasons: list[tuple[str, str]] = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            plain = socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS)
            try:
                return Channel(context.wrap_socket(plain, server_hostname=SERVICE_HOST), most)
            except BaseException:
                plain.close()
                raise
        except OSError as error:
            reasons.append((address, _reason(error)))
    address, reason = reasons[0]
    raise UserError(
        f"the authority at {address} cannot be reached: {reason}; nothing was lost: try again when "
        "homophily federation serve runs there"
    )
