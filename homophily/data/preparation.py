"""Preprocessing of raw samples before a model sees them. It is stored with the models, which need it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from homophily.data.missing import imputed
from homophily.data.normalise import Scale
from homophily.errors import UserError

_RAW = {"pixels": "whole numbers from 0 to 255", "numbers": "real numbers", "tokens": "whole numbers"}


def raw_kind(x: Tensor) -> str:
    """Return the kind of raw samples by their dtype: "pixels", "numbers" or "tokens"."""
    return "pixels" if x.dtype == torch.uint8 else "numbers" if x.is_floating_point() else "tokens"


@dataclass(frozen=True)
class Preparation:
    """Puts samples on a common scale, then imputes missing values: the peer's own means, or constants of data.scale."""

    raw: str = "numbers"
    scale: Scale = field(default_factory=Scale)
    fill: Tensor | None = None  # [N, ...], imputed values on that scale; None: nothing was missing in training

    def __call__(self, peer: int, x: Tensor) -> Tensor:
        """Return a peer's raw samples [n, ...] as inputs of its model."""
        scaled = self.scale(self._typed(x))
        if not bool(scaled.isnan().any()):
            return scaled
        if self.fill is None:
            raise UserError(
                "x has missing values (NaN), but the training samples had none, so there are no means to impute; "
                "remove or replace the missing values"
            )
        return imputed(scaled, self.fill[peer])

    def _typed(self, x: Tensor) -> Tensor:
        """Return the samples in the dtype of the training samples."""
        whole = not x.is_floating_point() and not x.is_complex()
        if not (whole or (self.raw == "numbers" and x.is_floating_point())):
            raise UserError(f"x: the training samples were {_RAW[self.raw]}, but these are {x.dtype}")
        if self.raw == "numbers":
            return x.float()
        if self.raw == "pixels" and bool(((x < 0) | (x > 255)).any()):
            raise UserError(f"x: pixels are {_RAW['pixels']}, but these are {int(x.min())} to {int(x.max())}")
        return x.to(torch.uint8 if self.raw == "pixels" else torch.int64)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to store in a file, by name; those that are None are left out."""
        held = {"mean": self.scale.mean, "factor": self.scale.factor, "fill": self.fill}
        return {name: tensor for name, tensor in held.items() if tensor is not None}

    @classmethod
    def read(cls, raw: str, tensors: dict[str, Tensor]) -> Preparation:
        """Return the preparation that ``tensors()`` was called on."""
        return cls(raw, Scale(tensors.get("mean"), tensors.get("factor")), tensors.get("fill"))

    def of(self, peer: int) -> Preparation:
        """Return the preparation of one peer alone."""
        return replace(self, fill=self.fill if self.fill is None else self.fill[peer : peer + 1])

    def as_dict(self, peer: int) -> dict[str, Any]:
        """Return the preparation of one peer for a model file: the kind of raw samples, mean, factor and fill."""
        own = self.of(peer).tensors()
        values = {name: (tensor[0] if tensor.dim() else tensor).tolist() for name, tensor in own.items()}
        return {"raw": self.raw, **values}
