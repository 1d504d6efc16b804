"""Inputs with several named fields (such as input_ids and attention_mask), held as one tensor of all their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from homophily.errors import UserError

MASK, TOKENS = "attention_mask", "input_ids"  # as Hugging Face calls them
_EXACT = 1 << 24  # float32 holds all whole numbers up to this


@dataclass(frozen=True)
class Field:
    """One field: its name, its shape per sample, and its dtype: int64, bool or float32."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Fields:
    """The fields of an input, in the order of their columns."""

    fields: tuple[Field, ...]

    @classmethod
    def of(cls, parts: Mapping[str, Tensor]) -> Fields:
        """The fields of samples {name: [n, ...]}."""
        return cls(tuple(Field(n, tuple(t.shape[1:]), str(t.dtype).removeprefix("torch.")) for n, t in parts.items()))

    @property
    def names(self) -> list[str]:
        return [field.name for field in self.fields]

    @property
    def whole(self) -> bool:
        """Whether all fields hold whole numbers, so that the one tensor is int64, not float32."""
        return all(field.dtype != "float32" for field in self.fields)

    def pack(self, parts: Mapping[str, Tensor], where: str) -> Tensor:
        """Return samples {name: [n, ...]} as one tensor [n, columns]. where: what error messages call them."""
        found = Fields.of(parts)
        if set(found.fields) != set(self.fields):
            raise UserError(f"{where} has the fields {found}, but the fields must be {self}")
        for name, part in parts.items():
            if not self.whole and not part.is_floating_point() and int(part.long().abs().max()) > _EXACT:
                raise UserError(
                    f"{where}: the field {name!r} has whole numbers above {_EXACT:,}, but other fields have floats, "
                    "and float32 does not hold larger whole numbers exactly"
                )
        dtype = torch.int64 if self.whole else torch.float32
        return torch.cat([parts[name].reshape(len(parts[name]), -1).to(dtype) for name in self.names], 1)

    def unpack(self, x: Tensor) -> dict[str, Tensor]:
        """Return each field [..., *shape] of samples [..., columns]; floats keep the dtype of x."""
        parts = x.split([field.size for field in self.fields], dim=-1)
        return {
            field.name: _typed(part.reshape(*x.shape[:-1], *field.shape), field.dtype)
            for field, part in zip(self.fields, parts, strict=True)
        }

    def described(self, x: Tensor) -> Tensor:
        """Return the part of samples [n, columns] that shows how the data of peers differ, for fingerprints.

        This is the field of floats (all of them in a row if there are several), else the tokens: ``input_ids`` or the
        first field, -1 where ``attention_mask`` is 0.
        """
        parts = self.unpack(x)
        floats = [parts[field.name] for field in self.fields if field.dtype == "float32"]
        if floats:
            return floats[0] if len(floats) == 1 else torch.cat([part.flatten(1) for part in floats], 1)
        tokens = parts.get(TOKENS, parts[self.names[0]]).long()
        mask = parts.get(MASK)
        return tokens if mask is None or mask.shape != tokens.shape else torch.where(mask > 0, tokens, -1)

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(field) for field in self.fields]

    @classmethod
    def from_json(cls, data: Sequence[Mapping[str, Any]]) -> Fields:
        return cls(tuple(Field(one["name"], tuple(one["shape"]), one["dtype"]) for one in data))

    def __str__(self) -> str:
        return ", ".join(f"{field.name} {field.dtype} {list(field.shape)}" for field in self.fields)


def _typed(part: Tensor, dtype: str) -> Tensor:
    if dtype == "float32":
        return part
    return part.bool() if dtype == "bool" else part.long()
