"""Refusals: counted by reason, and each reason logged once, so that nobody can fill a disk."""

from __future__ import annotations

import logging
import threading
from collections import Counter

_MOST_REASONS = 1000


class Refusals:
    """Counts by reason, and by the peer that it came from, if that is known. Threads may share it."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
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
            self._log.warning("this peer refused: %s; from now on it only counts this in status.json", reason)

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)
