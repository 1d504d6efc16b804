"""The baselines every comparison needs: alone, anyone, the same few, and the truth."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from homophily.errors import UserError
from homophily.methods.base import Method, Now, methods
from homophily.randomness import Purpose
from homophily.sets import pick


@methods("local")
class Local(Method):
    """Trains alone and meets nobody."""

    def meet(self, now: Now) -> Tensor:
        return torch.zeros_like(now.known)


@methods("random")
@dataclass(frozen=True)
class Random(Method):
    """Merges with k fresh uniform peers each round."""

    k: int = 4

    def meet(self, now: Now) -> Tensor:
        return pick(now.known, self.k, now.draw(Purpose.MEET))


@methods("fix-topology")
@dataclass(frozen=True)
class FixTopology(Method):
    """Merges with the same k uniform peers, drawn once, in every round."""

    k: int = 4

    def meet(self, now: Now) -> Tensor:
        return pick(now.known, self.k, now.draw(Purpose.MEET, round=0))


@methods("oracle")
@dataclass(frozen=True)
class Oracle(Method):
    """Merges with k fresh uniform peers of its own true cluster each round (an upper bound: nobody knows the truth)."""

    k: int = 4

    def meet(self, now: Now) -> Tensor:
        if now.view.same is None:
            raise UserError("method.name = 'oracle' needs data with known clusters, and this data has none")
        return pick(now.known & now.view.same, self.k, now.draw(Purpose.MEET))
