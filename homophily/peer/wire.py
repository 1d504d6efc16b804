"""The content of blobs, as safetensors: a model after or before training, or a fingerprint.

Every tensor is checked when a blob is unpacked.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from homophily.federation.layout import Layout
from homophily.fingerprints.fingerprint import SAMPLES, SMALL_FEDERATION, Format
from homophily.fingerprints.private import NUMBERS
from homophily.peer.identity import Refused
from homophily.simulation.communication import table_bytes

_TABLE = "table/"
_SAME_NOISE = 1e-6  # two machines compute the same noise, except for its last digits
MAX_SAMPLES = 1 << 40


@dataclass(frozen=True)
class ModelMessage:
    """A model after training and what goes with it. row: [d], the shared parameters; None: the model has diverged."""

    row: Tensor | None
    samples: int
    tables: dict[str, Tensor] = field(default_factory=dict)  # [B] float64: what a method shares, over ``contacts``
    contacts: Tensor | None = None  # [B] int64: ids
    before: Tensor | None = None  # [d]: the same before this round's training, if asked for: a blob of its own

    @property
    def table_bytes(self) -> int:
        """The size of the tables as a simulation counts it."""
        return 0 if self.contacts is None else table_bytes(len(self.contacts), len(self.tables))


@dataclass(frozen=True)
class ExpectedModel:
    """What a model of this federation must look like."""

    parameters: int
    dtype: torch.dtype
    tables: tuple[str, ...]
    network: int  # ``network_number`` of its network and seed
    contacts: int  # entries of the longest table, at most

    @property
    def max_bytes(self) -> int:
        """The size of the largest valid blob."""
        row = self.parameters * self.dtype.itemsize
        return row + table_bytes(self.contacts, len(self.tables)) + 8 + 4096 * (4 + len(self.tables))


def network_number(
    layout: Layout, seed: int, frozen: str, task: str, classes: int | None, constants: str | None = None
) -> int:
    """The same for all peers that can compare and merge: a hash of the names and shapes of the network, the seed of its
    start, what is frozen in it, the kind of task and its number of classes, which fingerprints depend on, and
    the constants of data.scale (None: none are given)."""
    agreed = [layout.to_json(), seed, frozen, task, classes, *([] if constants is None else [constants])]
    text = json.dumps(agreed, sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def pack_model(message: ModelMessage, network: int) -> bytes:
    tensors = {"samples": torch.tensor([message.samples]), "network": torch.tensor([network])}
    if message.row is not None:
        tensors["row"] = message.row
    if message.tables and message.contacts is not None:
        tensors |= {"contacts": message.contacts, **{_TABLE + name: table for name, table in message.tables.items()}}
    return _save(tensors)


def shared_tables(tables: dict[str, Tensor], ids: Tensor, known: Tensor) -> tuple[dict[str, Tensor], Tensor | None]:
    """The part of tables over ``ids`` [B] that travels: the entries about known peers [B] bool, and the peers' ids."""
    mask = known & ~torch.stack([table.isnan() for table in tables.values()]).all(0) if tables else known[:0]
    if not bool(mask.any()):
        return {}, None
    return {name: table[mask].to(torch.float64) for name, table in tables.items()}, ids[mask]


def pack_before(before: Tensor, network: int) -> bytes:
    """Pack a model before training [d]; peers whose metric compares updates fetch it."""
    return _save({"before": before, "network": torch.tensor([network])})


def unpack_before(data: bytes, expected: ExpectedModel) -> Tensor:
    """Raises Refused like ``unpack_model``."""
    tensors = _load(data)
    _check_network(tensors, expected.network)
    before = _finite(_pop(tensors, "before", (expected.parameters,), expected.dtype))
    if tensors:
        raise Refused("unexpected tensor")
    return before


def unpack_model(data: bytes, expected: ExpectedModel) -> ModelMessage:
    """Raises Refused if a tensor is missing, unexpected, of another shape or type, or not finite."""
    tensors = _load(data)
    _check_network(tensors, expected.network)
    samples = _pop(tensors, "samples", (1,), torch.int64)
    row = None
    if "row" in tensors:
        row = _finite(_pop(tensors, "row", (expected.parameters,), expected.dtype))
    tables: dict[str, Tensor] = {}
    contacts = tensors.pop("contacts", None) if expected.tables else None
    if contacts is not None:
        if contacts.dim() != 1 or contacts.dtype != torch.int64 or not 1 <= len(contacts) <= expected.contacts:
            raise Refused("contacts of the wrong shape")
        if bool((contacts[1:] <= contacts[:-1]).any()):
            raise Refused("contacts out of order")
        names = [name for name in expected.tables if _TABLE + name in tensors]
        tables = {name: _pop(tensors, _TABLE + name, (len(contacts),), torch.float64) for name in names}
        if any(bool(table.isinf().any()) for table in tables.values()):
            raise Refused("tensor not finite")
    if tensors:
        raise Refused("unexpected tensor")
    if not 1 <= int(samples) <= MAX_SAMPLES:
        raise Refused("samples out of range")
    return ModelMessage(row, int(samples), tables, contacts)


def pack_print(mean: Tensor, factor: Tensor, count: int, network: int) -> bytes:
    """A fingerprint (mean [d], factor [F, d], both rounded to float16 times a power of two) as it travels.

    A fingerprint of fewer than two samples says nothing, so that only its count travels.
    """
    about = {"count": torch.tensor([count]), "network": torch.tensor([network])}
    if count < 2:
        return save(about)
    scales = [_scale(values) for values in (mean, factor)]
    halves = [(values.double() / scale).half() for values, scale in zip((mean, factor), scales, strict=True)]
    upper = torch.ones(factor.shape, dtype=torch.bool).triu()
    tensors = {"mean": halves[0], "factor": halves[1][upper], "scales": torch.tensor(scales).double()}
    return save({**tensors, **about})


def unpack_print(data: bytes, form: Format, network: int) -> tuple[Tensor, Tensor, int]:
    """The mean [buckets], factor [F, buckets] and count of a fingerprint, exactly as they were packed."""
    buckets = form.buckets
    tensors = _load(data)
    _check_network(tensors, network)
    count = int(_pop(tensors, "count", (1,), torch.int64))
    if not 0 <= count <= SAMPLES:
        raise Refused("samples out of range")
    if count < 2:
        if tensors:
            raise Refused("malformed fingerprint")
        return torch.zeros(buckets), torch.zeros(0, buckets), count
    rows = int(form.freedom(torch.tensor(count)))
    upper = torch.ones(rows, buckets, dtype=torch.bool).triu()
    mean = _finite(_pop(tensors, "mean", (buckets,), torch.float16))
    factor = _finite(_pop(tensors, "factor", (int(upper.sum()),), torch.float16))
    scales = _finite(_pop(tensors, "scales", (2,), torch.float64))
    if tensors or not all(math.frexp(scale)[0] == 0.5 for scale in scales.tolist()):
        raise Refused("malformed fingerprint")
    whole = torch.zeros(rows, buckets, dtype=torch.float64)
    whole[upper] = factor.double() * scales[1]
    return _finite((mean.double() * scales[0]).float()), _finite(whole.float()), count


def pack_released(vector: Tensor, noise: float, network: int) -> bytes:
    """A private fingerprint [2 d + 1], rounded to float16 times a power of two, as it travels. noise: see there."""
    scale = _scale(vector)
    about = {"scale": torch.tensor([scale, noise], dtype=torch.float64), "network": torch.tensor([network])}
    return save({"released": (vector / scale).half(), **about})


def unpack_released(data: bytes, noise: float, network: int) -> Tensor:
    """The vector of a private fingerprint, exactly as it was packed. Raises Refused if it has other noise."""
    tensors = _load(data)
    _check_network(tensors, network)
    halves = _finite(_pop(tensors, "released", (2 * NUMBERS + 1,), torch.float16))
    scale, theirs = _finite(_pop(tensors, "scale", (2,), torch.float64)).tolist()
    if tensors or math.frexp(scale)[0] != 0.5:
        raise Refused("malformed fingerprint")
    if not math.isclose(theirs, noise, rel_tol=_SAME_NOISE):
        raise Refused("fingerprint with other noise ([privacy], rounds or method.renew differ)")
    return _finite(halves.double() * scale)


MAX_FINGERPRINT_BYTES = int(SMALL_FEDERATION.bytes(torch.tensor(SAMPLES))) + 4096


def _check_network(tensors: dict[str, Tensor], network: int) -> None:
    if int(_pop(tensors, "network", (1,), torch.int64)) != network:
        raise Refused("made for another network (model, task, classes, features, frozen weights), seed or data.scale")


def _scale(values: Tensor) -> float:
    """The power of two that brings the largest number to 1 at most."""
    largest = float(values.abs().max()) if values.numel() else 0.0
    return 2.0 ** math.ceil(math.log2(largest)) if largest > 0 else 1.0


def _save(tensors: dict[str, Tensor]) -> bytes:
    return save({name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()})


def _load(data: bytes) -> dict[str, Tensor]:
    try:
        return load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError, RuntimeError):
        raise Refused("not safetensors") from None


def _pop(tensors: dict[str, Tensor], name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    found = tensors.pop(name, None)
    if found is None:
        raise Refused(f"missing {name.partition('/')[0]}")
    if tuple(found.shape) != shape or found.dtype != dtype:
        raise Refused(f"{name.partition('/')[0]} of the wrong shape")
    return found


def _finite(tensor: Tensor) -> Tensor:
    if not bool(tensor.isfinite().all()):
        raise Refused("tensor not finite")
    return tensor
