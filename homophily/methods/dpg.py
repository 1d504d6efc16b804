"""DPG: in a partially connected network, weigh the similarity of a peer against its distance in hops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from homophily.federation import peer_sets as sets
from homophily.methods.base import (
    Amount,
    LossesOf,
    LossOn,
    Method,
    MetricName,
    Partners,
    Reach,
    RoundContext,
    UpdateShare,
    methods,
)
from homophily.randomness import Purpose


@dataclass(frozen=True)
class _Dpg(Method):
    metric: MetricName = "loss"
    k: Partners = 4
    alpha: UpdateShare = 0.5
    on: LossOn = "own"
    losses: LossesOf = "train"
    hops: Reach = 2
    rho: ClassVar[float]
    unknown = torch.nan

    def _probability(self, now: RoundContext) -> Tensor:
        """The probability of each peer [P, B]: uniform at first, and again if every entry has become 0."""
        uniform = now.known.to(torch.float64) / now.known.sum(1, keepdim=True).clamp(min=1)
        p = now.recall("probability", self.unknown)
        p = torch.where(p.isnan(), uniform, p)
        return torch.where((p > 0).any(1, keepdim=True), p, uniform)

    def meet(self, now: RoundContext) -> Tensor:
        p = self._probability(now)
        return now.pick_weighted(now.known & (p > 0), self.k, p.log(), Purpose.MEET)

    def choose(self, now: RoundContext, met: Tensor, similarity: Tensor | None) -> Tensor:
        assert similarity is not None
        measured = met & similarity.isfinite()  # a diverged model says nothing about its peer
        alike = torch.where(measured, similarity, 0.0).clamp(min=0.0)
        total = sets.total(measured, alike)
        share = torch.where(total > 0, alike / total.clamp(min=torch.finfo(torch.float64).tiny), 0.0)
        drawn = (share - self.rho * now.view.hops.double()).clamp(min=0.0)
        now.memory["probability"] = torch.where(measured, drawn, self._probability(now))
        return met

    def neighbours(self, now: RoundContext, partners: Tensor) -> Tensor:
        return self._probability(now)


@methods("dpg")
@dataclass(frozen=True)
class Dpg(_Dpg):
    """DPG: draws k peers within a few hops, by their share of the similarity minus rho times their distance."""

    rho: Annotated[  # type: ignore[misc]
        Amount, Field(description="what each hop of distance subtracts from the probability of a peer")
    ] = 0.01


@methods("dpg-s")
@dataclass(frozen=True)
class DpgS(_Dpg):
    """DPG by similarity alone: distance does not count (rho = 0)."""

    rho: ClassVar[float] = 0.0
