"""The log of a peer: a logger under the peer's name, written to a file of bounded size."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path

from homophily.atomic_io import writing

_LOG_BYTES = 1 << 20


def peer_logger(name: str) -> logging.Logger:
    """The logger of the peer with this name, a child of ``homophily.peer``: several peers may share a process."""
    return logging.getLogger(f"homophily.peer.{name}")


@contextmanager
def logged_to(path: Path, log: logging.Logger) -> Iterator[None]:
    """Write a peer's log to a file, for the time of the block."""
    with writing(path):
        handler = RotatingFileHandler(path, maxBytes=_LOG_BYTES, backupCount=1, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()
