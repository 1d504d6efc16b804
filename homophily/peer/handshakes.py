"""Handshakes that failed: zenoh tells of them nowhere but in its log, and that goes to the standard output."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import zenoh

from homophily.peer.refusals import Refusals

_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
_FAILED = re.compile(rb" WARN .*zenoh_link_tls::unicast: (.*?)(?:\. Hint: .*)?$")
_LONGEST, _REASON = 1 << 16, 80  # bytes of a line, and of a reason


@contextmanager
def counted(refusals: Refusals) -> Iterator[None]:
    """Count them from now on, where no link is open yet.

    For a process that is one peer and nothing else: all that it writes to the standard output passes through here.
    """
    if sys.stdout is None:  # it was closed
        yield
        return
    zenoh.init_log_from_env_or("zenoh_link_tls=warn")
    sys.stdout.flush()
    screen = os.dup(1)
    reading, writing = os.pipe()
    os.dup2(writing, 1)
    os.close(writing)
    passing = threading.Thread(target=_pass_on, args=(reading, screen, refusals), daemon=True)
    passing.start()
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(screen, 1)  # which ends the pipe
        passing.join(1.0)
        os.close(screen)


def _pass_on(reading: int, screen: int, refusals: Refusals) -> None:
    with os.fdopen(reading, "rb") as lines, suppress(OSError):
        while line := lines.readline(_LONGEST):
            failed = _FAILED.search(_COLOUR.sub(b"", line).rstrip())
            if failed is not None:
                refusals.add(f"handshake: {failed[1][:_REASON].decode('ascii', 'replace')}")
            else:
                os.write(screen, line)
