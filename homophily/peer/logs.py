"""The log of a peer: a logger under the peer's name, written to files of bounded size and, if wanted, to stderr."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path

from homophily.atomic_io import writing
from homophily.errors import UserError

_LOGGERS = "homophily.peer."


@dataclass(frozen=True)
class LogSettings:
    """How a peer's log is written. A file of more than ``bytes`` is renamed, and ``older`` renamed files are kept."""

    as_json: bool = False  # a JSON object per line
    to_stderr: bool = False  # as well as to the file
    bytes: int = 1 << 20
    older: int = 1


def peer_logger(name: str) -> logging.Logger:
    """The logger of the peer with this name, a child of ``homophily.peer``: several peers may share a process."""
    return logging.getLogger(f"{_LOGGERS}{name}")


class JsonLines(logging.Formatter):
    """A record as one line: a JSON object with time (UTC), level, peer and message."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "peer": record.name.removeprefix(_LOGGERS),
            "message": record.getMessage(),
        }
        return json.dumps(fields, ensure_ascii=False)


@contextmanager
def logged_to(path: Path, log: logging.Logger, settings: LogSettings = LogSettings()) -> Iterator[None]:  # noqa: B008
    """Write a peer's log to a file, for the time of the block."""
    with writing(path):
        handlers: list[logging.Handler] = [
            RotatingFileHandler(path, maxBytes=settings.bytes, backupCount=settings.older, encoding="utf-8")
        ]
    if settings.to_stderr:
        handlers.append(logging.StreamHandler())
    for handler in handlers:
        handler.setFormatter(JsonLines() if settings.as_json else logging.Formatter("%(asctime)s %(message)s"))
        log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        for handler in handlers:
            log.removeHandler(handler)
            handler.close()


@contextmanager
def peer_log(path: Path, name: str, settings: LogSettings) -> Iterator[None]:
    """Write a peer's log to a file, and at the end why it stops, if it fails or is interrupted."""
    log = peer_logger(name)
    with logged_to(path, log, settings):
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            interrupted = "interrupted; the same command resumes it from its state folder"
            why = str(error) if isinstance(error, UserError) else repr(error)
            log.error("%s stops: %s", name, interrupted if isinstance(error, KeyboardInterrupt) else why)
            raise
