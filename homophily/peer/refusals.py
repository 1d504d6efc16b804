"""What was refused: counted by reason, and each reason written to the log once, so that nobody can fill a disk."""

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
    """Counts by reason and by whom it came from, where that is known. Threads may share it."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, why: Exception | str, who: str = "") -> None:
        reason = f"{why} ({who})" if who else str(why)
        with self._lock:
            if reason not in self._counts and len(self._counts) >= _MOST_REASONS:
                reason = "other reasons"
            self._counts[reason] += 1
            first = self._counts[reason] == 1
        if first:
            _log.warning("refused: %s; the next ones are only counted", reason)

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)


def log_to(path: Path) -> logging.Handler:
    """Write the log of peers to a file that stays small; the caller removes the handler."""
    handler = RotatingFileHandler(path, maxBytes=_LOG_BYTES, backupCount=1, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    _log.propagate = False
    return handler
