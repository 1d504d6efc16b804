"""PANM: confident neighbour initialisation (CNI), then heuristic neighbour matching (HNM)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from homophily.federation.peer_sets import compact
from homophily.methods.base import (
    Candidates,
    Count,
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
from homophily.methods.em import group_statistics, two_groups
from homophily.randomness import Purpose


@methods("panm")
@dataclass(frozen=True)
class Panm(Method):
    """PANM: keeps the most similar peers as neighbours, then finds more of its cluster by EM on similarities."""

    metric: MetricName = "loss"  # "loss" is the paper's PANMLoss, "panm" its PANMGrad
    l: Candidates = 10  # noqa: E741 (the paper's letter)
    k: Partners = 4
    t1: FirstStage = None
    tau: Annotated[
        Count,
        Field(
            description="after the first stage, heuristic neighbour matching (by EM) takes place in rounds that are "
            "multiples of it"
        ),
    ] = 10
    alpha: UpdateShare = 0.5
    on: LossOn = "own"
    losses: LossesOf = "train"
    hops: Reach = 1

    def in_rounds(self, rounds: int) -> Panm:
        return self if self.t1 is not None else replace(self, t1=max(1, rounds // 3))

    def _stage(self, now: RoundContext) -> Literal["cni", "hnm", "plain"]:
        assert self.t1 is not None
        if now.round <= self.t1:
            return "cni"
        return "hnm" if now.round % self.tau == 0 else "plain"

    def meet(self, now: RoundContext) -> Tensor:
        neighbours = now.recall_set("neighbours")
        if self._stage(now) == "plain":
            return now.pick(neighbours, self.k, Purpose.MEET) & now.known  # a real peer may not reach all of them now
        candidates = now.pick(now.known & ~neighbours, self.l, Purpose.MEET)
        if self._stage(now) == "hnm":
            neighbours = now.pick(neighbours, self.l, Purpose.SAMPLE)
        return candidates | (neighbours & now.known)

    def compares(self, now: RoundContext) -> bool:
        return self._stage(now) != "plain"

    def choose(self, now: RoundContext, met: Tensor, similarity: Tensor | None) -> Tensor:
        if similarity is None:
            return met
        neighbours = now.recall_set("neighbours")
        if self._stage(now) == "cni":
            neighbours = now.top(met & similarity.isfinite(), self.k, similarity)
            now.memory["neighbours"] = neighbours
            return neighbours
        sample = met & neighbours & similarity.isfinite()  # a diverged model says nothing about its peer
        alike = two_groups(met & ~neighbours, sample, similarity, now.ties(met))
        remaining = (neighbours & ~sample) | alike
        # If all peers asked have diverged, the peer keeps the neighbours it has.
        now.memory["neighbours"] = remaining | (neighbours & ~remaining.any(1, keepdim=True))
        return now.pick(alike, self.k, Purpose.CHOOSE)

    def reports(self, now: RoundContext) -> bool:
        return self._stage(now) == "hnm"

    def diagnostics(self, now: RoundContext, met: Tensor, similarity: Tensor | None) -> Mapping[str, Tensor]:
        """The two groups of the EM: ``others`` [P, M] (ids, -1 for padding), whether each is in the upper group, and
        mean, standard deviation and share of the upper and of the lower group, [P, 2] each."""
        assert similarity is not None
        members = met & similarity.isfinite()
        upper = members & now.recall_set("neighbours")
        columns, mask = compact(members)
        return {
            "others": torch.where(mask, now.view.contacts.gather(1, columns), -1),
            "upper": upper.gather(1, columns) & mask,
            **group_statistics(members, upper, similarity),
        }

    def neighbours(self, now: RoundContext, partners: Tensor) -> Tensor:
        return now.recall_set("neighbours")

    def nominal(self, rounds: int) -> float:
        assert self.t1 is not None
        first = min(self.t1, rounds)
        matching = rounds // self.tau - first // self.tau
        plain = rounds - first - matching
        compared = first * self.l + max(0, first - 1) * self.k + matching * 2 * self.l
        return float(metric_cost(self).models * compared + plain * self.k)
