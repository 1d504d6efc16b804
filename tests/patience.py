"""How long tests wait for what other processes and threads do."""

import time
from collections.abc import Callable
from typing import Any

PATIENCE = 240.0  # seconds; only what hangs, or a very busy machine, comes to an end by it
MINUTE = 60.0  # seconds, in which docs/threat-model.md promises that a revoked or removed member is refused


def eventually(true: Callable[[], Any], seconds: float = 15.0) -> bool:
    """Whether something becomes true within so many seconds."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def until(done: Callable[[], Any], what: str) -> None:
    """Wait until something is so."""
    assert eventually(done, PATIENCE), f"in vain: {what}"
