"""A bounded pool of threads that answers requests; when it is full, it declines further requests at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class RequestPool:
    """``slots`` threads, and at most ``waiting`` jobs that wait for them."""

    def __init__(self, slots: int, waiting: int) -> None:
        self._room = threading.BoundedSemaphore(slots + waiting)
        self._pool = ThreadPoolExecutor(slots)

    def take(self, job: Callable[[], None]) -> bool:
        """Queue a job; False: the pool is full or closed."""
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
