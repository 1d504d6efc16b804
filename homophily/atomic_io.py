"""Atomic file writes: a crash or a full disk never leaves a partially written file."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from homophily.errors import InUseError, UserError

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

_SHARDS = "shards"  # the index of a folder: its files of tensors, in order
_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # of types, in a safetensors file  # fmt: skip
DTYPES = tuple(_NAMES)  # that can be stored
_LOCK_TRIES, _LOCK_PAUSE = 5, 0.01  # seconds between two tries


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise a UserError if writing to ``path`` fails; the previous content of ``path`` is kept."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UserError(f"cannot write {path}: {reason}; what was written before is kept") from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``folder``, created if missing; raise InUseError if another process holds it."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:  # this operating system has no flock, so the folder is not locked
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        if not _lock_exclusively(handle):
            raise InUseError(f"{folder} is in use by another process")
        yield
    finally:
        os.close(handle)


def _lock_exclusively(handle: int) -> bool:
    """Try a few times: ``in_use`` of another process holds a lock for an instant."""
    for _ in range(_LOCK_TRIES):
        with suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_LOCK_PAUSE)
    return False


def in_use(folder: Path) -> bool:
    """Whether another process holds the lock on ``folder``."""
    if fcntl is None or not folder.is_dir():
        return False
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def write_text(path: Path, text: str, *, flush: bool = True) -> None:
    """Write a text file atomically: a reader sees either the old content or the new."""
    write_bytes(path, text.encode(), flush=flush)


def write_bytes(path: Path, content: bytes, *, flush: bool = True) -> None:
    """Write a file atomically. flush: to the disk; without it, a crash of the machine may lose the new content."""
    with _replacing(path, flush) as file:
        file.write(content)


@contextmanager
def _replacing(path: Path, flush: bool = True) -> Iterator[BinaryIO]:
    """A file to write, which replaces ``path`` at the end of the block, or is removed after an error."""
    partial = path.with_name(path.name + ".part")
    with writing(path):
        try:
            with partial.open("wb") as file:
                yield file
                if flush:
                    file.flush()
                    os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, atomically; numbers that are not finite become null."""
    write_text(path, json.dumps(plain(value), indent=2, ensure_ascii=False) + "\n")


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file atomically."""
    partial = path.with_name(path.name + ".part")  # a folder: safetensors leaves temporary files when killed
    with writing(path):
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir()
            file = partial / "tensors"
            save_file({name: _copied(t) for name, t in tensors.items()}, file, metadata)
            file.chmod(partial.stat().st_mode & 0o666)  # safetensors makes it readable by its owner only
            sync(file)
            file.replace(path)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@dataclass(frozen=True)
class Stacked:
    """Tensors that come in parts, each with some of their rows, so that they need not be in memory together."""

    parts: Iterable[Mapping[str, Tensor]]
    rows: Mapping[str, int]  # of all parts together


def write_stacked(path: Path, tensors: Stacked) -> None:
    """Write a safetensors file of tensors that come in parts, atomically; one part at a time is in memory."""
    places: dict[str, int] | None = None
    with _replacing(path) as file:
        for part in tensors.parts:
            places = _head(file, part, tensors.rows) if places is None else places
            for name, table in part.items():
                raw = raw_bytes(table.detach().cpu()).numpy()
                file.seek(places[name])
                file.write(raw.data)
                places[name] += len(raw)


def raw_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a tensor of any type: [B] uint8, on its device."""
    flat = tensor.contiguous().flatten()
    # One element counts as contiguous with any stride, but a view of its bytes needs the stride 1.
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8)


def _head(file: BinaryIO, first: Mapping[str, Tensor], rows: Mapping[str, int]) -> dict[str, int]:
    """Write the head of a safetensors file; returns where in the file each tensor begins. first: the first part."""
    begin, end = {}, 0
    about: dict[str, Any] = {}
    for name, table in sorted(first.items(), key=lambda item: (-item[1].element_size(), item[0])):  # aligned
        shape = [rows[name], *table.shape[1:]]
        begin[name], end = end, end + math.prod(shape) * table.element_size()
        about[name] = {"dtype": _NAMES[table.dtype], "shape": shape, "data_offsets": [begin[name], end]}
    head = json.dumps(about).encode()
    head += b" " * (-len(head) % 8)
    file.write(len(head).to_bytes(8, "little") + head)
    return {name: 8 + len(head) + place for name, place in begin.items()}


def _copied(tensor: Tensor) -> Tensor:
    """Return a contiguous copy on the CPU that shares no memory with other tensors, as safetensors requires."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def write_folder(path: Path, shards: Iterable[dict[str, Tensor]], numbers: dict[str, Any]) -> None:
    """Write tensors, a file for each shard, and ``numbers`` into a new folder, which appears complete or not at all."""
    partial = path.with_name(path.name + ".part")
    with writing(path):
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
            files = []
            for number, tensors in enumerate(shards):
                files.append(f"state-{number}.safetensors" if number else "state.safetensors")
                write_tensors(partial / files[-1], tensors)
            write_json(partial / "state.json", {**numbers, _SHARDS: files})
            partial.replace(path)
            sync(path.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def read_folder(
    path: Path, rows: slice | None = None, whole: Callable[[str], bool] = lambda name: False
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the numbers that write_folder wrote to ``path``; the shards' tensors are concatenated.

    rows: return and read these rows only, of all tensors but those whose names are ``whole``; None: all.
    """
    numbers = read_json(path / "state.json")
    found: dict[str, list[Tensor]] = {}
    seen: dict[str, int] = {}  # rows of the shards before
    try:
        for file in numbers.pop(_SHARDS):
            with _reading(path / file), safe_open(path / file, framework="pt") as shard:
                for name in shard.keys():  # noqa: SIM118 (it is not a mapping)
                    if rows is None or whole(name):
                        part = shard.get_tensor(name)
                    else:
                        part = _rows(shard.get_slice(name), rows, seen, name)
                    found.setdefault(name, []).append(part)
        return {name: _joined(parts) for name, parts in found.items()}, numbers
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError) as error:
        raise UserError(f"{path} is damaged, or of another version: {error}") from error


def shard_files(path: Path) -> list[Path]:
    """The files of tensors that write_folder wrote to ``path``, in order."""
    numbers = read_json(path / "state.json")
    try:
        return [path / file for file in numbers[_SHARDS]]
    except (KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged, or of another version: {error}") from error


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _rows(table: Any, rows: slice, seen: dict[str, int], name: str) -> Tensor:
    """The wanted rows of one shard's part of a tensor, which may be none. seen: rows of earlier shards, by name."""
    first, count = seen.get(name, 0), table.get_shape()[0]
    seen[name] = first + count
    start, stop = (min(max(row - first, 0), count) for row in (rows.start, rows.stop))
    part: Tensor = table[start:stop] if start < stop else table[:1][:0]
    return part


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raise a UserError if the file cannot be read or parsed."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name; raise a UserError if it cannot be read or is damaged."""
    with _reading(path):
        return load_file(path)


class TensorFile:
    """An open safetensors file, of which single rows are read. It stays readable if the file is removed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with _reading(path):
            self._file = cast("Any", safe_open(path, framework="pt"))
            self.names = frozenset(self._file.keys())

    def rows(self, name: str) -> int:
        """How many rows a tensor has."""
        with self._found(name):
            return int(self._file.get_slice(name).get_shape()[0])

    def row(self, name: str, number: int) -> Tensor:
        with self._found(name):
            found: Tensor = self._file.get_slice(name)[number : number + 1][0]
            return found

    @contextmanager
    def _found(self, name: str) -> Iterator[None]:
        if name not in self.names:
            raise UserError(f"{self.path} is damaged, or of another version: it has no {name}")
        with _reading(self.path):
            yield


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata strings of a safetensors file."""
    with _reading(path), safe_open(path, framework="pt") as file:
        return file.metadata() or {}


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise UserError(f"{path} is damaged: {error}") from error


def plain(value: Any) -> Any:
    """Return ``value`` as JSON can hold it: NaN and infinities become None, tuples become lists."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


def sync(path: Path) -> None:
    """Flush a file or folder to disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
