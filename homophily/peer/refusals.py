"""Refused messages and connections: counted by reason, and logged once per reason so that nobody can fill the disk."""

from __future__ import annotations

import logging
import threading
from collections import Counter

_MOST_REASONS = 1000


class Refusals:
    """Counts refusals by reason and, if it is known, by the peer that caused them. It is thread-safe."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, reason: Exception | str, peer: str = "", times: int = 1) -> None:
        key = f"{reason} ({peer})" if peer else str(reason)
        with self._lock:
            if key not in self._counts and len(self._counts) >= _MOST_REASONS:
                key = "other reasons"
            self._counts[key] = self._counts.pop(key, 0) + times  # the last key is the last reason
            first = self._counts[key] == times
        if first:
            self._log.warning(
                "this peer refused a message or connection: %s; status.json counts further ones, which are not logged",
                key,
            )

    def counts(self) -> dict[str, int]:
        """How often each reason occurred, in the order in which they last occurred."""
        with self._lock:
            return dict(self._counts)
