"""Where requests are answered: so many at a time, and so many may wait. What is too much is turned away at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class RequestPool:
    """So many threads, and so many jobs that may wait for them."""

    def __init__(self, slots: int, waiting: int) -> None:
        self._room = threading.BoundedSemaphore(slots + waiting)
        self._pool = ThreadPoolExecutor(slots)

    def take(self, job: Callable[[], None]) -> bool:
        if not self._room.acquire(blocking=False):
            return False
        try:
            self._pool.submit(job).add_done_callback(lambda done: self._room.release())
        except RuntimeError:  # closed
            self._room.release()
            return False
        return True

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
