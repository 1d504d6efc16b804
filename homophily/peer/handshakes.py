"""Failed handshakes and dials: zenoh reports them only in its log, which goes to the standard output."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import zenoh

from homophily.peer.refusals import Refusals

_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
_FAILED = re.compile(rb" WARN .*zenoh_link_tls::unicast: (.*?)(?:\. Hint: .*)?$")
_DIALS = rb" zenoh::net::runtime::orchestrator: "
_UNREACHED = re.compile(_DIALS + rb"Unable to connect to configured peer \w+/(\S+)! (.*?)(?: at /.*)?$")
_LINK = re.compile(rb"^Can not create a new \w+ link bound to .*?: (?:\[\S+: )?")  # before the reason
_LONGEST, _REASON = 1 << 16, 80  # bytes of a line, and of a reason
_PATIENCE, _FORGOTTEN = 5.0, 30.0  # seconds: others may still be starting; a dial is retried at least every two


@contextmanager
def counted(refusals: Refusals, log: logging.Logger) -> Iterator[None]:
    """Count failed handshakes and log failed dials. It must begin before the first link is opened.

    For a process that is one peer and nothing else: its whole standard output passes through here.
    """
    if sys.stdout is None:  # it was closed
        yield
        return
    zenoh.init_log_from_env_or("zenoh_link_tls=warn,zenoh::net::runtime::orchestrator=debug")
    sys.stdout.flush()
    screen = os.dup(1)
    reading, writing = os.pipe()
    os.dup2(writing, 1)
    os.close(writing)
    passing = threading.Thread(target=_pass_on, args=(reading, screen, refusals, log), daemon=True)
    passing.start()
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(screen, 1)  # which ends the pipe
        passing.join(1.0)
        os.close(screen)


def _pass_on(reading: int, screen: int, refusals: Refusals, log: logging.Logger) -> None:
    dials, wanted = _Dials(log), "RUST_LOG" in os.environ
    with os.fdopen(reading, "rb") as lines, suppress(OSError):
        while line := lines.readline(_LONGEST):
            text = _COLOUR.sub(b"", line).rstrip()
            if failed := _FAILED.search(text):
                refusals.add(f"handshake: {_words(failed[1])}")
            elif unreached := _UNREACHED.search(text):
                dials.failed(_words(unreached[1]), _words(_LINK.sub(b"", unreached[2])))
            elif wanted or _DIALS not in text:
                os.write(screen, line)


def _words(reason: bytes) -> str:
    return reason[:_REASON].decode("ascii", "replace")


class _Dials:
    """Logs once why an address cannot be reached, and again if the reason changes or it was reached in between."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._failing: dict[str, tuple[float, float, str]] = {}  # by address: since when, when last, what was said

    def failed(self, address: str, why: str) -> None:
        if "CONNECTION_TO_SELF" in why:  # a list of all addresses holds this peer's own, too
            return
        if "MAX_LINKS" in why:
            why = "another process with this peer's name is connected there already"
        now = time.monotonic()
        since, last, said = self._failing.get(address, (now, now, ""))
        if now - last > _FORGOTTEN:
            since, said = now, ""
        if now - since > _PATIENCE and why != said:
            self._log.warning("connection to %s failed: %s; retrying every 2 s", address, why)
            said = why
        self._failing[address] = since, now, said
