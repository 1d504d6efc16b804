"""Who may read: on loopback every process of this machine; elsewhere whoever has the token. Nobody may write."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie

from homophily.errors import UserError

VARIABLE = "HOMOPHILY_LIVE_TOKEN"
COOKIE = "homophily-live"
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_LEAST = 16  # characters of a token


@dataclass(frozen=True)
class Refusal:
    status: HTTPStatus
    why: str


class Access:
    """The names under which a server may be addressed, and its token."""

    def __init__(self, host: str) -> None:
        """host: where the server listens. Outside loopback the token comes from the environment, or is drawn."""
        self.host = host
        self.token = None if is_loopback(host) else _token()
        self._anywhere = host in ("0.0.0.0", "::")

    @property
    def shown_token(self) -> str | None:
        """The token as it is printed: by the name of the variable that sets it, since output is often logged."""
        return f"${VARIABLE}" if self.token is not None and VARIABLE in os.environ else self.token

    @property
    def cookie(self) -> str:
        """What the browser keeps instead of the token."""
        return hashlib.sha256(f"cookie {self.token}".encode()).hexdigest()

    def refusal(self, method: str, headers: Mapping[str, str], token: str | None) -> Refusal | None:
        """Why a request is refused, or None. headers: with names in small letters; token: of the address."""
        if method != "GET":
            return Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "this server only answers GET")
        if not self._known(headers.get("host", "")):
            return Refusal(HTTPStatus.MISDIRECTED_REQUEST, "this server has another name")  # DNS rebinding
        if self.token is None or self.is_token(token):
            return None
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(bearer.strip()):
            return None
        if hmac.compare_digest(_cookie(headers.get("cookie", "")).encode(), self.cookie.encode()):
            return None
        return Refusal(HTTPStatus.UNAUTHORIZED, "a token is needed: open the address that the command printed")

    def is_token(self, given: str | None) -> bool:
        """Whether this is the token; the comparison takes the same time for every wrong one."""
        if self.token is None or given is None:
            return False
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())

    def _known(self, header: str) -> bool:
        name = host_of(header)
        if name in _LOOPBACK or name == self.host.lower():
            return True
        if not self._anywhere:
            return False
        return _is_address(name) or name in (socket.gethostname().lower(), socket.getfqdn().lower())


def host_of(header: str) -> str:
    """The name in a Host header, without the port and the brackets of an IPv6 address."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def is_loopback(host: str) -> bool:
    return host.lower() == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def split_address(text: str, option: str) -> tuple[str, int]:
    """HOST:PORT as a host and a port; an IPv6 address stands in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UserError(f"{option} {text}: must be HOST:PORT, for example 127.0.0.1:9464")
    return host.removeprefix("[").removesuffix("]"), int(port)


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0: any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(64)
    except OSError as error:
        listening.close()
        raise UserError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from error
    return listening


def url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _token() -> str:
    given = os.environ.get(VARIABLE)
    if given is None:
        return secrets.token_urlsafe(24)
    if len(given) < _LEAST:
        raise UserError(f"{VARIABLE}: must have at least {_LEAST} characters")
    return given


def _cookie(header: str) -> str:
    try:
        found = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value
