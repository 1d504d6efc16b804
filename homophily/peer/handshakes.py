"""Failed TLS handshakes and failed connections to the addresses in peer.connect, read from zenoh's log.

zenoh reports them only there, and writes its log to the standard output.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

import zenoh

from homophily.peer.refusals import Refusals

_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
_HANDSHAKE_FAILED = re.compile(rb" WARN .*zenoh_link_tls::unicast: (.*?)(?:\. Hint: .*)?$")
_ORCHESTRATOR = rb" zenoh::net::runtime::orchestrator: "  # the part of zenoh that connects to peers
_CONNECT_FAILED = re.compile(_ORCHESTRATOR + rb"Unable to connect to configured peer \w+/(\S+)! (.*?)(?: at /.*)?$")
_LINK_PREFIX = re.compile(rb"^Can not create a new \w+ link bound to .*?: (?:\[\S+: )?")  # before the reason
_EXPIRED = re.compile(r"certificate expired: .* not valid after (\d+)")
_NOT_YET = re.compile(r"certificate not valid yet: .* not valid before (\d+)")
_WRONG_HOST = re.compile(r'certificate not valid for name "([^"]+)"')
_ALERT = re.compile(r"received fatal alert: (\w+)")
_LINE_BYTES, _RAW_BYTES, _REASON_CHARS = 1 << 16, 400, 100  # at most, of a line and of a reason before and after
_GRACE_SECONDS = 5.0  # a peer that starts has this long before a failed connection to it is logged
_FRESH_SECONDS = 6.0  # zenoh retries every 2 s: after this time without a failure, the address was reached
_FORGET_SECONDS = 30.0  # zenoh retries every 2 s: an address without a failure for this long was reached in between


@contextmanager
def watch_handshakes(refusals: Refusals, log: logging.Logger) -> Iterator[ConnectFailures]:
    """Count failed handshakes and log failed connections. It must begin before the first link is opened.

    Use it only in a process that runs one peer and nothing else: it reads the whole standard output.
    """
    failures = ConnectFailures(log)
    if sys.stdout is None:  # it was closed
        yield failures
        return
    zenoh.init_log_from_env_or("zenoh_link_tls=warn,zenoh::net::runtime::orchestrator=debug")
    sys.stdout.flush()
    stdout = os.dup(1)
    reading, writing = os.pipe()
    os.dup2(writing, 1)
    os.close(writing)
    reader = threading.Thread(target=_read_log, args=(reading, stdout, refusals, failures), daemon=True)
    reader.start()
    try:
        yield failures
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)  # closes the pipe
        reader.join(1.0)
        os.close(stdout)


def _read_log(reading: int, stdout: int, refusals: Refusals, failures: ConnectFailures) -> None:
    """Take zenoh's reports out of the standard output, and pass all other lines on."""
    show_all = "RUST_LOG" in os.environ
    with os.fdopen(reading, "rb") as lines, suppress(OSError):
        while line := lines.readline(_LINE_BYTES):
            text = _COLOUR.sub(b"", line).rstrip()
            if handshake := _HANDSHAKE_FAILED.search(text):
                refusals.add(f"handshake: {plain_reason(_decoded(handshake[1]))}")
            elif connect := _CONNECT_FAILED.search(text):
                reason = _decoded(_LINK_PREFIX.sub(b"", connect[2]))
                failures.add(_decoded(connect[1]), plain_reason(reason))
            elif show_all or _ORCHESTRATOR not in text:
                os.write(stdout, line)


def _decoded(raw: bytes) -> str:
    return raw[:_RAW_BYTES].decode("ascii", "replace")


def plain_reason(raw: str) -> str:
    """What zenoh or its TLS library reports, in plain words and without the current time, so that it can be counted."""
    if found := _EXPIRED.search(raw):
        return f"certificate expired on {_date(found[1])}"
    if found := _NOT_YET.search(raw):
        return f"certificate not valid before {_date(found[1])}: check the clocks of both machines"
    if found := _WRONG_HOST.search(raw):
        return f"certificate does not name {found[1]}: issue it with --host {found[1]}"[:_REASON_CHARS]
    if "BadSignature" in raw or "UnknownIssuer" in raw:
        return "certificate not issued by the authority in peer.ca"
    if found := _ALERT.search(raw):
        return f"the other end rejected this peer with the TLS alert {found[1]}"[:_REASON_CHARS]
    if "MAX_LINKS" in raw:
        return "another process with this peer's name is already connected there: stop one of the two"
    if "deadline has elapsed" in raw:
        return "no answer to the TLS handshake"
    return raw[:_REASON_CHARS]


def _date(seconds: str) -> str:
    return datetime.fromtimestamp(min(int(seconds[:12]), 253402300799), UTC).date().isoformat()


class ConnectFailures:
    """Logs once why an address cannot be reached, and again if the reason changes or it was reached in between."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._by_address: dict[str, tuple[float, float, str]] = {}  # first failure, last failure, reason logged
        self._reasons: dict[str, str] = {}  # of the last failure

    def add(self, address: str, reason: str) -> None:
        if "CONNECTION_TO_SELF" in reason:  # peer.connect may list all peers, this one among them
            return
        now = time.monotonic()
        first, last, logged = self._by_address.get(address, (now, now, ""))
        if now - last > _FORGET_SECONDS:
            first, logged = now, ""
        if now - first > _GRACE_SECONDS and reason != logged:
            self._log.warning("connection to %s failed: %s; retrying every 2 s", address, reason)
            logged = reason
        self._by_address[address] = first, now, logged
        self._reasons[address] = reason

    def current(self) -> dict[str, str]:
        """Why the last try to reach an address failed, for those without a success since."""
        now = time.monotonic()
        return {
            address: self._reasons[address]
            for address, (_, last, logged) in list(self._by_address.items())
            if logged and now - last <= _FRESH_SECONDS
        }
