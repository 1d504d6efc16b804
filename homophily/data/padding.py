"""Padding of samples that are sequences of different lengths, so that one tensor holds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from homophily.data.peer_data import Array, PeerData
from homophily.data.task_kinds import IGNORED
from homophily.errors import UserError

_PREFIXES = ("", "validation_", "test_")


def padded(sequences: Sequence[Any], length: int | None = None, pad: float = 0) -> Tensor:
    """Return sequences, each [its length, ...], as one tensor [n, length, ...] that is padded at the end.

    sequences: tensors, arrays or lists of whole numbers or of real numbers.
    length: None: that of the longest sequence.
    pad: the value of the padding.
    Raises UserError if a sequence is longer than ``length``, or if sequences differ in more than their length.
    """
    return _padded([_tensor(one, f"sequence {i}") for i, one in enumerate(sequences)], length, pad, "sequence")


def aligned(peers: Sequence[PeerData], length: int | None, pad: float) -> tuple[Sequence[PeerData], int | None]:
    """Return the peers with samples of one length, and that length; None: nothing was padded.

    length: given by the config; None: tokens of different lengths are padded to the longest sample of all peers. Rows
    of real numbers are padded only to a given length, because a row may be too short by mistake. Targets that are as
    long as their inputs are padded with -100, which losses ignore.
    """
    found = [_Field(i, peer, prefix) for i, peer in enumerate(peers) for prefix in _PREFIXES]
    fields = [field for field in found if field.x is not None]
    if length is None:
        if not any(_are_ragged_tokens(field.x, f"{field.name}x") for field in fields):
            return peers, None
        length = max(max(_lengths(field.x), default=1) for field in fields)
    changed: list[dict[str, Any]] = [{} for _ in peers]
    if any(isinstance(field.x, Mapping) for field in fields):
        raise UserError("data.length: inputs with named fields are not padded; pad each with homophily.data.padded")
    for field in fields:
        x = _samples(field.x, f"{field.name}x")
        if not x:
            raise UserError(f"{field.name}x has no samples")
        changed[field.number][f"{field.prefix}x"] = _padded(x, length, pad, f"{field.name}x: sample")
        if field.y is None or _lengths(field.y) != [len(one) for one in x]:
            _refuse_other_lengths(field, x)
            continue
        y = _samples(field.y, f"{field.name}y")
        if not y[0].is_floating_point():
            changed[field.number][f"{field.prefix}y"] = _padded(y, length, IGNORED, f"{field.name}y: sample")
    return [replace(peer, **fields) for peer, fields in zip(peers, changed, strict=True)], length


@dataclass(frozen=True)
class _Field:
    """The inputs and targets of one peer's training, validation or test samples."""

    number: int  # of the peer
    peer: PeerData
    prefix: str

    @property
    def x(self) -> Any:
        return getattr(self.peer, f"{self.prefix}x")

    @property
    def y(self) -> Any:
        return getattr(self.peer, f"{self.prefix}y")

    @property
    def name(self) -> str:
        """What error messages call it, without x or y."""
        return f"peer {self.peer.name!r}: {self.prefix}" if self.peer.name else f"peer {self.number}: {self.prefix}"


def _refuse_other_lengths(field: _Field, x: Sequence[Tensor]) -> None:
    """Raise a UserError if targets are ragged, so one for each position, but not as long as their inputs."""
    lengths = _lengths(field.y) if field.y is not None else []
    if len(set(lengths)) < 2 or len(lengths) != len(x):
        return
    i = next(i for i, one in enumerate(x) if len(one) != lengths[i])
    raise UserError(
        f"{field.name}y: sample {i} has {lengths[i]} targets, but {field.prefix}x has {len(x[i])} positions"
    )


def _are_ragged_tokens(values: Array, where: str) -> bool:
    """Whether samples are lists of whole numbers that differ in length."""
    if not isinstance(values, list | tuple) or len({*_lengths(values)}) < 2:
        return False
    longest = _tensor(max((one for one in values if _has_length(one)), key=len), where)
    return not longest.is_floating_point()


def _lengths(values: Array) -> list[int]:
    """Return the length of every sample; [] if samples are single numbers or strings."""
    if isinstance(values, list | tuple):
        return [len(one) for one in values if _has_length(one)]
    shape = np.shape(values)
    return [int(shape[1])] * int(shape[0]) if len(shape) > 1 else []


def _has_length(one: Any) -> bool:
    return isinstance(one, list | tuple) or bool(getattr(one, "shape", ()))


def _samples(values: Array, where: str) -> list[Tensor]:
    return [_tensor(one, f"{where}: sample {i}") for i, one in enumerate(_rows(values))]


def _rows(values: Array) -> Iterator[Any]:
    yield from values if isinstance(values, list | tuple | Tensor) else np.asarray(values)


def _tensor(values: Any, where: str) -> Tensor:
    """Return a sequence as int64 or float32; uint8 and bool stay as they are."""
    try:
        array = values if isinstance(values, Tensor) else np.asarray(values)
        if isinstance(array, np.ndarray) and array.dtype.kind == "U":
            raise ValueError("it is text; turn text into tokens, whole numbers")
        found = array.detach().cpu() if isinstance(array, Tensor) else torch.tensor(array)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where} is not an array of numbers: {error}") from None
    if not found.dim():
        raise UserError(f"{where} is a single number, not a sequence")
    if found.is_floating_point():
        return found.float()
    return found if found.dtype in (torch.uint8, torch.bool) else found.long()


def _padded(sequences: list[Tensor], length: int | None, pad: float, where: str) -> Tensor:
    """Return one tensor. where: what error messages call a sequence, before its number."""
    if not sequences:
        raise UserError(f"there is no {where}")
    first = next((one for one in sequences if len(one)), sequences[0])
    for i, one in enumerate(sequences):
        if one.shape[1:] != first.shape[1:]:
            shapes = f"{list(one.shape)} and {list(first.shape)}"
            raise UserError(f"{where} {i}: sequences may differ only in their length, not as {shapes}")
        if length is not None and len(one) > length:
            raise UserError(f"{where} {i} has the length {len(one)}, but data.length is {length}: shorten it")
    longest = max(map(len, sequences)) if length is None else length
    whole = torch.promote_types(first.dtype, torch.float32) if any(s.is_floating_point() for s in sequences) else None
    dtype = whole or first.dtype
    if not dtype.is_floating_point and pad != int(pad):
        raise UserError(f"data.pad = {pad}: must be a whole number, because the samples are whole numbers")
    out = torch.full((len(sequences), longest, *first.shape[1:]), pad, dtype=dtype)
    for row, one in zip(out, sequences, strict=True):
        row[: len(one)] = one
    return out
