"""A file of entries that is appended round by round, whole after a crash, and thinned above a limit.

Bytes, little endian: a header of 16 (``HMPHREC1``, ``every``, and a CRC-32 of both), then the entries. An entry is 12
bytes (length of the content, round, and a CRC-32 of these two and the content) and its content: arrays by name in the
safetensors format. docs/run-folder.md describes the file and the rule by which it is thinned.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from homophily.atomic_io import write_bytes, writing
from homophily.errors import UserError

Arrays = Mapping[str, np.ndarray[Any, Any]]
_MAGIC = b"HMPHREC1"
_HEADER, _CHECK, _ENTRY = struct.Struct("<8sI"), struct.Struct("<I"), struct.Struct("<II")
_START = _HEADER.size + _CHECK.size
_LARGEST = 64 << 20  # bytes of a file that is read


@dataclass(frozen=True)
class Entry:
    """The entry of a round, as its bytes in the file."""

    round: int
    frame: bytes

    @classmethod
    def of(cls, round: int, arrays: Arrays) -> Entry:
        content = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
        head = _ENTRY.pack(len(content), round)
        return cls(round, b"".join((head, _CHECK.pack(zlib.crc32(content, zlib.crc32(head))), content)))

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        return dict(sorted(load(self.frame[_ENTRY.size + _CHECK.size :]).items()))


@dataclass(frozen=True)
class Content:
    """What a file holds: ``every``, the complete entries, and their length with the header; the rest is incomplete."""

    every: int
    entries: list[Entry]
    length: int


def read_entries(path: Path) -> Content:
    """The complete entries of a file; a last one that is incomplete is left out. A missing file has no entries.

    Raises a UserError if the file is damaged.
    """
    try:
        if path.stat().st_size > _LARGEST:
            raise UserError(f"{path} is damaged: it has more than {_LARGEST >> 20} MiB")
        data = path.read_bytes()
    except FileNotFoundError:
        return Content(1, [], 0)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    if len(data) < _START or not data.strip(b"\0"):
        return Content(1, [], 0)  # its first write was interrupted
    magic, every = _HEADER.unpack_from(data)
    (check,) = _CHECK.unpack_from(data, _HEADER.size)
    if magic != _MAGIC or check != zlib.crc32(data[: _HEADER.size]) or every < 1:
        raise UserError(f"{path} is damaged, or of another version: its header is not one of a record file")
    entries, at = [], _START
    while (frame := _whole_frame(data, at)) is not None:
        entries.append(frame)
        at += len(frame.frame)
    if not _interrupted(data, at):
        raise UserError(f"{path} is damaged after {at} bytes")
    if any(second.round <= first.round for first, second in pairwise(entries)):
        raise UserError(f"{path} is damaged: its rounds do not ascend")
    return Content(every, entries, at)


def decoded(path: Path, entry: Entry) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an entry of ``path`` by name; raises a UserError if its content is not safetensors."""
    try:
        return entry.arrays()
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise UserError(f"{path} is damaged in the entry of round {entry.round}: {error}") from error


def _whole_frame(data: bytes, at: int) -> Entry | None:
    """The entry that begins ``at`` these bytes; None if it is incomplete or its check fails."""
    if at + _ENTRY.size + _CHECK.size > len(data):
        return None
    length, round = _ENTRY.unpack_from(data, at)
    end = at + _ENTRY.size + _CHECK.size + length
    if end > len(data) or not length:
        return None
    (check,) = _CHECK.unpack_from(data, at + _ENTRY.size)
    content = at + _ENTRY.size + _CHECK.size
    if check != zlib.crc32(data[content:end], zlib.crc32(data[at : at + _ENTRY.size])):
        return None
    return Entry(round, data[at:end])


def _interrupted(data: bytes, at: int) -> bool:
    """Whether an interrupted write explains what follows the last whole entry: a part of one, or blocks of zeros."""
    rest = len(data) - at
    if rest < _ENTRY.size + _CHECK.size or not data[at:].strip(b"\0"):
        return True
    length, _ = _ENTRY.unpack_from(data, at)
    return bool(rest <= _ENTRY.size + _CHECK.size + length)


def thinned(entries: Iterable[Entry], every: int) -> list[Entry]:
    """The first entry in each window of ``every`` rounds: 1 to every, every + 1 to 2 every, and so on."""
    kept: list[Entry] = []
    for entry in entries:
        if not kept or _window(entry.round, every) > _window(kept[-1].round, every):
            kept.append(entry)
    return kept


def _window(round: int, every: int) -> int:
    return (round - 1) // every


class RecordFile:
    """The writing side of a file. Entries wait in memory until ``flush``.

    If the file would pass ``limit`` bytes, ``every`` is doubled until the first entry of each ``every`` rounds fits. An
    entry of more than half the limit is left out. Which entries remain depends on the entries alone, so a resumed run
    has the same file as one that was not interrupted.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self.path, self.limit = path, limit
        self._waiting: list[tuple[int, Arrays]] = []
        self._opened = False  # whether the three numbers are those of the file
        self._every, self._last, self._size = 1, 0, 0

    def add(self, round: int, arrays: Arrays) -> None:
        """Add the entry of a round. The arrays must not change until ``flush``."""
        self._waiting.append((round, arrays))

    def flush(self) -> None:
        """Write the entries that wait, unless the file holds another one of their window."""
        if not self._waiting:
            return
        self._open()
        self._opened = False  # read the file again if it cannot be written
        fresh: list[Entry] = []
        for round, arrays in self._waiting:
            if self._last and _window(round, self._every) <= _window(self._last, self._every):
                continue
            entry = Entry.of(round, arrays)
            if len(entry.frame) > self.limit // 2:
                continue
            fresh.append(entry)
            self._last, self._size = round, self._size + len(entry.frame)
            if self._size > self.limit:
                self._thin(fresh)
                fresh = []
        self._append(fresh)
        self._waiting, self._opened = [], True

    def _open(self) -> None:
        if not self._opened:
            found = read_entries(self.path)
            self._every, self._size, self._opened = found.every, max(found.length, _START), True
            self._last = found.entries[-1].round if found.entries else 0

    def _thin(self, fresh: list[Entry]) -> None:
        """Rewrite the file with fewer entries, of those that it holds and the fresh ones."""
        entries = [*read_entries(self.path).entries, *fresh]
        while self._size > self.limit:
            self._every *= 2
            entries = thinned(entries, self._every)
            self._size = _START + sum(len(entry.frame) for entry in entries)
        with writing(self.path):
            self.path.parent.mkdir(exist_ok=True)
        write_bytes(self.path, _header(self._every) + b"".join(entry.frame for entry in entries))
        self._last = entries[-1].round

    def _append(self, fresh: list[Entry]) -> None:
        with writing(self.path):
            self.path.parent.mkdir(exist_ok=True)
            length = self.path.stat().st_size if self.path.exists() else 0
            start = b"" if length else _header(self._every)
            try:
                with self.path.open("ab") as file:
                    file.write(start + b"".join(entry.frame for entry in fresh))
            except OSError:
                with suppress(OSError):
                    os.truncate(self.path, length)  # remove the incomplete entries
                raise

    def cut(self, last: int) -> None:
        """Remove the entries of rounds after ``last``, and an incomplete one."""
        found = read_entries(self.path)
        later = sum(len(entry.frame) for entry in found.entries if entry.round > last)
        if self.path.exists():
            with writing(self.path):
                os.truncate(self.path, found.length - later)
        self._opened, self._waiting = False, []


def _header(every: int) -> bytes:
    head = _HEADER.pack(_MAGIC, every)
    return head + _CHECK.pack(zlib.crc32(head))
