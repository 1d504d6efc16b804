"""PENS: neighbours are the peers whose models are among the best on one's own data more often than expected."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from homophily.methods.base import (
    Candidates,
    FirstStage,
    LossesOf,
    LossOn,
    Method,
    MetricName,
    Partners,
    Reach,
    RoundContext,
    UpdateShare,
    methods,
    metric_cost,
)
from homophily.randomness import Purpose


@methods("pens")
@dataclass(frozen=True)
class Pens(Method):
    """PENS: counts which peers are among the k best of l random ones, then merges with those above a threshold."""

    metric: MetricName = "loss"
    l: Candidates = 10  # noqa: E741 (the paper's letter)
    k: Partners = 4
    t1: FirstStage = None
    threshold: Annotated[
        Literal["pens", "panm", "panm-printed"],
        Field(
            description="how often a peer must be chosen in the first stage to be a neighbour, with N known peers: "
            '`"pens"` more than t1 k / N times, `"panm"` at least t1 l / N, `"panm-printed"` at least t1 (l + k) / N'
        ),
    ] = "pens"
    alpha: UpdateShare = 0.5
    on: LossOn = "own"
    losses: LossesOf = "train"
    hops: Reach = 1

    def in_rounds(self, rounds: int) -> Pens:
        return self if self.t1 is not None else replace(self, t1=max(1, rounds // 3))

    def _counting(self, now: RoundContext) -> bool:
        assert self.t1 is not None
        return now.round <= self.t1

    def meet(self, now: RoundContext) -> Tensor:
        if self._counting(now):
            return now.pick(now.known, self.l, Purpose.MEET)
        return now.pick(self._permanent(now), self.k, Purpose.MEET)

    def compares(self, now: RoundContext) -> bool:
        return self._counting(now)

    def choose(self, now: RoundContext, met: Tensor, similarity: Tensor | None) -> Tensor:
        if similarity is None:
            return met
        best = now.top(met & similarity.isfinite(), self.k, similarity)
        now.memory["count"] = now.recall("count") + best
        return best

    def _permanent(self, now: RoundContext) -> Tensor:
        """The peers that were chosen more often in stage 1 than ``threshold`` expects of a random peer."""
        assert self.t1 is not None
        count, peers = now.recall("count"), now.known.sum(1, keepdim=True) + 1
        if self.threshold == "pens":
            return now.known & (count * peers > self.t1 * self.k)
        drawn = self.l if self.threshold == "panm" else self.l + self.k
        return now.known & (count >= -(-self.t1 * drawn // peers))  # rounded up

    def neighbours(self, now: RoundContext, partners: Tensor) -> Tensor:
        return partners if self._counting(now) else self._permanent(now)

    def nominal(self, rounds: int) -> float:
        assert self.t1 is not None
        first = min(self.t1, rounds)
        return float(metric_cost(self).models * first * self.l + (rounds - first) * self.k)
