"""Readers of the canonical data formats: idx, CIFAR's binary batches, comma-separated numbers."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import torch
from torch import Tensor

from homophily.errors import UserError

_GZIP_MAGIC = b"\x1f\x8b"
_IDX_BYTES = b"\x00\x00\x08"  # the start of an idx file of unsigned bytes; the next byte counts the dimensions
_CIFAR_IMAGE = (3, 32, 32)


def read_idx(path: Path) -> Tensor:
    """Return the content of an idx file of unsigned bytes, gzipped or not, as uint8 in the shape of its header."""
    data = _content(path)
    if data[:3] != _IDX_BYTES:
        raise UserError(f"{path}: not an idx file of unsigned bytes (it starts with {data[:4].hex() or 'nothing'})")
    dimensions = data[3] if len(data) > 3 else 0
    start = 4 + 4 * dimensions
    shape = [int.from_bytes(data[at : at + 4], "big") for at in range(4, start, 4)]
    if dimensions == 0 or len(data) < start or len(data) - start != math.prod(shape) or len(data) == start:
        raise UserError(f"{path}: truncated or damaged: {len(data)} bytes do not fit its shape {shape}")
    return torch.frombuffer(bytearray(data[start:]), dtype=torch.uint8).reshape(shape)


def read_cifar(path: Path, classes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return the images uint8 [n, 3, 32, 32] and labels int64 [n, k] of a CIFAR binary file.

    classes: the number of classes for each of the k label bytes.
    """
    data = _content(path)
    row = len(classes) + math.prod(_CIFAR_IMAGE)
    if not data or len(data) % row:
        raise UserError(f"{path}: truncated or damaged: its size of {len(data)} bytes is not a multiple of {row}")
    rows = torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(-1, row)
    labels = rows[:, : len(classes)].to(torch.int64)
    for highest, count in zip(labels.amax(dim=0).tolist(), classes, strict=True):
        if highest >= count:
            raise UserError(f"{path}: contains the label {highest}, but there are {count} classes, from 0")
    return rows[:, len(classes) :].reshape(-1, *_CIFAR_IMAGE), labels


def read_numbers(path: Path, columns: int) -> Tensor:
    """Return comma-separated numbers as float64 [rows, columns]; a question mark is a missing value (NaN)."""
    rows = []
    for number, line in enumerate(_content(path).decode("ascii", "replace").splitlines(), start=1):
        fields = line.split(",")
        try:
            rows.append([math.nan if field.strip() == "?" else float(field) for field in fields])
        except ValueError:
            raise UserError(f"{path}: line {number} contains something other than numbers and question marks") from None
        if len(fields) != columns:
            raise UserError(f"{path}: line {number} has {len(fields)} values instead of {columns}")
    if not rows:
        raise UserError(f"{path}: the file is empty")
    return torch.tensor(rows, dtype=torch.float64)


def _content(path: Path) -> bytes:
    """Return the bytes of a file, decompressed if it is gzipped."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data.startswith(_GZIP_MAGIC) else data
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
