"""Packs users' inputs with named fields, ``PeerData(x={"input_ids": ..., "attention_mask": ...})``, into one tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from homophily.data.fields import MASK, Fields
from homophily.data.normalise import as_floats
from homophily.data.padding import padded
from homophily.data.peer_data import PeerData
from homophily.data.task_kinds import IGNORED
from homophily.data.user_data import as_tensor
from homophily.errors import UserError

_KEYS = ("x", "validation_x", "test_x")


def packed(peers: Sequence[PeerData], length: int | None, pad: float) -> tuple[Sequence[PeerData], Fields | None]:
    """Return the peers with one tensor as inputs, and its fields; None: inputs have no named fields.

    length, pad: as for inputs without fields; lists of tokens are padded, masks with 0.
    """
    given = [(i, key, getattr(peer, key)) for i, peer in enumerate(peers) for key in _KEYS]
    named = [(i, key, x) for i, key, x in given if isinstance(x, Mapping)]
    if not named:
        return peers, None
    for i, key, x in given:
        if x is not None and not isinstance(x, Mapping):
            raise UserError(f"{_label(peers, i)}: {key} has no named fields, but {key} or x of other peers has")
    lengths = _lengths([x for _, _, x in named], length)
    parts = {(i, key): tensors(x, f"{_label(peers, i)}: {key}", lengths, pad) for i, key, x in named}
    fields = Fields.of(next(iter(parts.values())))
    changed: list[dict[str, Any]] = [{} for _ in peers]
    for (i, key), part in parts.items():
        changed[i][key] = fields.pack(part, f"{_label(peers, i)}: {key}")
        targets = f"{key[:-1]}y"
        y = getattr(peers[i], targets)
        if lengths and _has_lists(y):  # classes of positions
            changed[i][targets] = padded(y, max(lengths.values()), IGNORED)
    return [replace(peer, **keys) for peer, keys in zip(peers, changed, strict=True)], fields


def tensors(
    x: Mapping[str, Any], where: str, lengths: Mapping[str, int] | None = None, pad: float = 0
) -> dict[str, Tensor]:
    """Return every field as int64, bool or float32 [n, ...]; pixels (uint8) become floats from 0 to 1.

    lengths: of the fields that are padded.
    """
    if not x or not all(isinstance(name, str) for name in x):
        raise UserError(f"{where}: the names of its fields must be strings, and there must be at least one")
    out = {}
    for name, values in x.items():
        if lengths and name in lengths:
            values = padded(values, lengths[name], 0 if name == MASK else pad)
        tensor = as_floats(as_tensor(f"{where}: {name}", values))
        if not tensor.dim():
            raise UserError(f"{where}: {name} must have one row per sample, not a single number")
        if bool(tensor.isinf().any()):
            raise UserError(f"{where}: {name} contains infinite values")
        out[name] = tensor
    counts = {name: len(tensor) for name, tensor in out.items()}
    if len(set(counts.values())) > 1:
        raise UserError(f"{where}: its fields have different numbers of samples: {counts}")
    return out


def _has_lists(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(hasattr(one, "__len__") for one in values)


def _lengths(inputs: Sequence[Mapping[str, Any]], length: int | None) -> dict[str, int]:
    """Return the length to which each field of lists of different lengths is padded. length: if it is given."""
    found: dict[str, set[int]] = {}
    for x in inputs:
        for name, values in x.items():
            if _has_lists(values):
                found.setdefault(name, set()).update(len(one) for one in values)
    return {name: length or max(lengths) for name, lengths in found.items() if len(lengths) > 1}


def _label(peers: Sequence[PeerData], number: int) -> str:
    name = peers[number].name
    return f"peer {name!r}" if name else f"peer {number}"
