"""Refused messages and connections: counted by reason, and logged once per reason so that nobody can fill the disk."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from logging.handlers import RotatingFileHandler
from pathlib import Path

_MOST_REASONS = 1000
_LOG_BYTES = 1 << 20
_log = logging.getLogger("homophily.peer")


class Refusals:
    """Counts refusals by reason and, if it is known, by the peer that caused them. It is thread-safe."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, reason: Exception | str, peer: str = "") -> None:
        key = f"{reason} ({peer})" if peer else str(reason)
        with self._lock:
            if key not in self._counts and len(self._counts) >= _MOST_REASONS:
                key = "other reasons"
            self._counts[key] += 1
            first = self._counts[key] == 1
        if first:
            _log.warning(
                "this peer refused a message or connection: %s; status.json counts further ones, which are not logged",
                key,
            )

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)


def log_to(path: Path) -> logging.Handler:
    """Write the log of this process's peers to a file of bounded size; the caller removes the returned handler."""
    handler = RotatingFileHandler(path, maxBytes=_LOG_BYTES, backupCount=1, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    _log.propagate = False
    return handler
