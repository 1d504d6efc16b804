"""The layout of a network as a row of parameters: which tensor is in which columns, and which columns are sent.

A row contains everything that differs between peers: the trainable parameters, then the parameters that get no
gradient, then the float buffers of the state dict. Every other buffer (integers, masks, non-persistent caches) is
*kept*: it stays with its peer outside the row and is never merged. *Frozen* parameters (``requires_grad=False``), and
buffers of frozen modules that do not change in training, are the same for all peers: they are not in the row and are
never merged, sent, counted as communication or compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from homophily.atomic_io import DTYPES
from homophily.errors import UserError
from homophily.models.freezing import in_frozen_module
from homophily.models.keyed_dropout import KeyedDropout
from homophily.models.lora import factor_pairs
from homophily.models.patterns import selected

Kept = dict[str, Tensor]


@dataclass(frozen=True)
class Column:
    """The columns of one tensor in a row."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    trainable: bool
    parameter: bool
    personal: bool  # never merged, never sent


@dataclass(frozen=True)
class Layout:
    """The columns of all tensors of a network in a row of ``width`` values."""

    columns: tuple[Column, ...]
    kept: tuple[str, ...]  # names of the buffers outside the row
    frozen: tuple[str, ...]  # names of the tensors that are the same for all peers
    aliases: Mapping[str, str]  # other state-dict names of the same tensor (tied weights)
    saved: frozenset[str]  # names in the state dict
    dtype: torch.dtype
    factors: tuple[tuple[str, str], ...] = ()  # LoRA factors A and B whose products are merged

    @classmethod
    def of(
        cls,
        module: nn.Module,
        personal: Iterable[str] = (),
        unused: Iterable[str] = (),
        changing: Iterable[str] | None = None,
        products: bool = False,
    ) -> Layout:
        """Return the layout of ``module``.

        personal: name patterns of tensors that are never merged; unused: parameters that get no gradient; changing:
        buffers that training changes (None: any buffer may change); products: LoRA factors are merged by their
        products.
        """
        unused = set(unused)
        parameters = dict(module.named_parameters())
        keyed = {f"{n}.key" if n else "key" for n, m in module.named_modules() if isinstance(m, KeyedDropout)}
        buffers = {name: b for name, b in module.named_buffers() if name not in keyed}
        saved = dict(module.state_dict(keep_vars=True))
        floats = {
            name: buffer
            for name, buffer in buffers.items()
            if buffer.is_floating_point() and name in saved and bool(buffer.isfinite().all())
        }
        steady = set() if changing is None else buffers.keys() - set(changing)
        frozen: dict[str, Tensor] = {n: p for n, p in parameters.items() if not p.requires_grad}
        frozen |= {n: t for n, t in buffers.items() if n in steady and in_frozen_module(module, n.rpartition(".")[0])}
        trained = {n: p for n, p in parameters.items() if n not in frozen and n not in unused}
        rest = {n: t for n, t in [*parameters.items(), *floats.items()] if n not in trained and n not in frozen}
        dtype = _one_dtype([*trained.values(), *rest.values()])
        _check_stored(buffers | frozen)
        own = selected(list(personal), floats | parameters, "model.personal")
        if trained and trained.keys() <= own:
            raise UserError(
                "model.personal: the patterns match all trained parameters of the network, so nothing is left to "
                "merge; leave some out, or set method = 'local' without model.personal"
            )
        columns, at = [], 0
        for name, tensor in [*trained.items(), *rest.items()]:
            stop = at + tensor.numel()
            columns.append(
                Column(name, tuple(tensor.shape), at, stop, name in trained, name in parameters, name in own)
            )
            at = stop
        first = {id(tensor): name for name, tensor in [*parameters.items(), *buffers.items()]}
        aliases = {name: first[id(t)] for name, t in saved.items() if id(t) in first and first[id(t)] != name}
        kept = tuple(n for n in buffers if n not in floats and n not in frozen)
        factors = _shared_factors(columns) if products else ()
        return cls(tuple(columns), kept, tuple(frozen), aliases, frozenset(saved), dtype, factors)

    @property
    def width(self) -> int:
        return self.columns[-1].stop

    @property
    def trainable(self) -> int:
        """How many values of a row are trained; they come first in the row."""
        return max((c.stop for c in self.columns if c.trainable), default=0)

    def mask(self, *, shared: bool | None = None, parameter: bool | None = None) -> Tensor:
        """Return [D] bool: the columns that are shared (or not) and parameters (or not); None: either."""
        out = torch.zeros(self.width, dtype=torch.bool)
        for c in self.columns:
            out[c.start : c.stop] = shared in (None, not c.personal) and parameter in (None, c.parameter)
        return out

    @cached_property
    def has_personal(self) -> bool:
        """Whether some tensors are personal, so never sent."""
        return any(column.personal for column in self.columns)

    @cached_property
    def sent_parameters(self) -> int:
        """How many values of a row are sent."""
        return int(self.mask(shared=True).sum())

    @property
    def model_bytes(self) -> int:
        """Bytes that are sent for one model."""
        return self.sent_parameters * self.dtype.itemsize

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """Return each tensor of the rows [P, D] as a view [P, *shape]; of a single row [D] as [*shape]."""
        lead = rows.shape[:-1]
        return {c.name: rows[..., c.start : c.stop].view(*lead, *c.shape) for c in self.columns}

    def read(self, module: nn.Module) -> tuple[Tensor, Kept]:
        """Return the row [D] and the kept buffers of a module with this layout."""
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        row = torch.cat([tensors[c.name].detach().reshape(-1) for c in self.columns])
        return row, {name: tensors[name].detach().clone() for name in self.kept}

    def read_into(self, row: Tensor, kept: Kept, module: nn.Module) -> None:
        """Copy a module with this layout into a row [D] and its kept buffers."""
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for name, place in [*self.views(row).items(), *kept.items()]:
                place.copy_(tensors[name])

    def frozen_values(self, module: nn.Module) -> dict[str, Tensor]:
        """Return the frozen tensors of a module with this layout, by name."""
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        return {name: tensors[name].detach() for name in self.frozen}

    def frozen_hash(self, module: nn.Module) -> str:
        """Return the SHA-256 of names, dtypes, shapes and values of the frozen tensors; "" if there are none."""
        found = hashlib.sha256()
        for name, value in self.frozen_values(module).items():
            found.update(f"{name} {value.dtype} {list(value.shape)} ".encode())
            found.update(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return found.hexdigest() if self.frozen else ""

    def write(self, row: Tensor, kept: Kept, module: nn.Module) -> None:
        """Copy a row [D] and its kept buffers into a module with this layout."""
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for name, value in [*self.views(row).items(), *kept.items()]:
                tensors[name].copy_(value)

    def state_dict(self, row: Tensor, kept: Kept, frozen: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the state dict of a row, kept buffers and frozen tensors; tied weights occur under all their names."""
        tensors = self.views(row) | kept | dict(frozen)
        named = {name: tensors[name] for name in tensors if name in self.saved}
        named |= {alias: tensors[name] for alias, name in self.aliases.items()}
        return {name: tensor.detach().clone().contiguous() for name, tensor in named.items()}

    def to_json(self) -> dict[str, Any]:
        return {
            "columns": [asdict(c) for c in self.columns],
            "kept": list(self.kept),
            "frozen": list(self.frozen),
            "aliases": dict(self.aliases),
            "saved": sorted(self.saved),
            "dtype": str(self.dtype).removeprefix("torch."),
            **({"factors": [list(pair) for pair in self.factors]} if self.factors else {}),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Layout:
        columns = tuple(Column(**{**c, "shape": tuple(c["shape"])}) for c in data["columns"])
        dtype = getattr(torch, data["dtype"])
        kept, frozen = tuple(data["kept"]), tuple(data["frozen"])
        factors = tuple((a, b) for a, b in data.get("factors", []))
        return cls(columns, kept, frozen, data["aliases"], frozenset(data["saved"]), dtype, factors)


def _shared_factors(columns: list[Column]) -> tuple[tuple[str, str], ...]:
    """Return the names of the LoRA factors; raise a UserError if one of a pair is personal."""
    pairs = factor_pairs(column.name for column in columns)
    personal = {column.name for column in columns if column.personal}
    for name in (name for pair in pairs for name in pair if name in personal):
        raise UserError(
            f"model.personal: {name} is a LoRA factor, and model.lora.merge = 'product' merges both factors"
        )
    return tuple(pairs)


def _check_stored(tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise UserError(f"model: {name} has the type {tensor.dtype}, which a run folder cannot store")


def _one_dtype(tensors: list[Tensor]) -> torch.dtype:
    dtypes = {t.dtype for t in tensors}
    if not tensors:
        raise UserError("model: the network has no parameters")
    if len(dtypes) > 1:
        raise UserError(f"model: all parameters must have the same dtype, not {', '.join(sorted(map(str, dtypes)))}")
    return dtypes.pop()
