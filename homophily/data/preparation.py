"""What raw samples go through before a model sees them; kept with the models, which are of no use without it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from homophily.data.missing import filled
from homophily.data.normalise import Scale
from homophily.errors import UserError


@dataclass(frozen=True)
class Preparation:
    """A common scale, then each peer's own values for what is missing."""

    scale: Scale = field(default_factory=Scale)
    fill: Tensor | None = None  # [N, ...], on that scale; None: nothing was missing

    def __call__(self, peer: int, x: Tensor) -> Tensor:
        """A peer's raw samples [n, ...] as its model takes them."""
        ready = self.scale(x)
        if not bool(ready.isnan().any()):
            return ready
        if self.fill is None:
            raise UserError("x: it has missing values, and in training nothing was missing that could be filled in now")
        return filled(ready, self.fill[peer])

    def tensors(self) -> dict[str, Tensor]:
        """As a file holds it; what there is not is left out."""
        held = {"mean": self.scale.mean, "factor": self.scale.factor, "fill": self.fill}
        return {name: tensor for name, tensor in held.items() if tensor is not None}

    @classmethod
    def read(cls, tensors: dict[str, Tensor]) -> Preparation:
        """The same the other way round."""
        return cls(Scale(tensors.get("mean"), tensors.get("factor")), tensors.get("fill"))

    def of(self, peer: int) -> Preparation:
        """One peer's alone."""
        return replace(self, fill=self.fill if self.fill is None else self.fill[peer : peer + 1])

    def told(self, peer: int) -> dict[str, Any]:
        """For the file of one model: what to subtract from a sample, to multiply it by, and then to fill in."""
        own = self.of(peer).tensors()
        return {name: (tensor[0] if tensor.dim() else tensor).tolist() for name, tensor in own.items()}
