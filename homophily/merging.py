"""Weights of a merge: how much each partner's row, and one's own, counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from homophily.registry import Registry


@dataclass(frozen=True)
class Gathering:
    """Who merges: for each peer its partners and itself in ascending id, [P, K], padded."""

    ids: Tensor  # [P, K] int64
    there: Tensor  # [P, K] bool: not padding, not sick
    own: Tensor  # [P, K] bool: oneself


Weights = Callable[[Gathering], Tensor]

merges: Registry[Weights] = Registry("merge")


@merges("uniform")
def uniform(gathering: Gathering) -> Tensor:
    """Everyone counts the same: 1 / (k + 1)."""
    there = gathering.there.to(torch.float64)
    return there / there.sum(1, keepdim=True).clamp(min=1.0)
