"""What raw samples go through before a model sees them; kept with the models, which are of no use without it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from homophily.data.missing import filled
from homophily.data.normalise import Scale
from homophily.errors import UserError

_RAW = {"pixels": "whole numbers from 0 to 255", "numbers": "real numbers", "tokens": "whole numbers"}


def raw_kind(x: Tensor) -> str:
    """What raw samples are, by their type."""
    return "pixels" if x.dtype == torch.uint8 else "numbers" if x.is_floating_point() else "tokens"


@dataclass(frozen=True)
class Preparation:
    """A common scale, then each peer's own values for what is missing."""

    raw: str = "numbers"
    scale: Scale = field(default_factory=Scale)
    fill: Tensor | None = None  # [N, ...], on that scale; None: nothing was missing

    def __call__(self, peer: int, x: Tensor) -> Tensor:
        """A peer's raw samples [n, ...] as its model takes them."""
        scaled = self.scale(self._typed(x))
        if not bool(scaled.isnan().any()):
            return scaled
        if self.fill is None:
            raise UserError("x: it has missing values, and in training nothing was missing that could be filled in now")
        return filled(scaled, self.fill[peer])

    def _typed(self, x: Tensor) -> Tensor:
        """Of the type that the training samples had."""
        whole = not x.is_floating_point() and not x.is_complex()
        if not (whole or (self.raw == "numbers" and x.is_floating_point())):
            raise UserError(f"x: the training samples were {_RAW[self.raw]}, and these are {x.dtype}")
        if self.raw == "numbers":
            return x.float()
        if self.raw == "pixels" and bool(((x < 0) | (x > 255)).any()):
            raise UserError(f"x: pixels are {_RAW['pixels']}, and these are {int(x.min())} to {int(x.max())}")
        return x.to(torch.uint8 if self.raw == "pixels" else torch.int64)

    def tensors(self) -> dict[str, Tensor]:
        """As a file holds it; what there is not is left out."""
        held = {"mean": self.scale.mean, "factor": self.scale.factor, "fill": self.fill}
        return {name: tensor for name, tensor in held.items() if tensor is not None}

    @classmethod
    def read(cls, raw: str, tensors: dict[str, Tensor]) -> Preparation:
        """The same the other way round."""
        return cls(raw, Scale(tensors.get("mean"), tensors.get("factor")), tensors.get("fill"))

    def of(self, peer: int) -> Preparation:
        """One peer's alone."""
        return replace(self, fill=self.fill if self.fill is None else self.fill[peer : peer + 1])

    def as_dict(self, peer: int) -> dict[str, Any]:
        """For the file of one model: what to subtract from a sample, to multiply it by, and then to fill in."""
        own = self.of(peer).tensors()
        numbers = {name: (tensor[0] if tensor.dim() else tensor).tolist() for name, tensor in own.items()}
        return {"raw": self.raw, **numbers}
