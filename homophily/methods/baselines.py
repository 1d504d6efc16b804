"""The baselines: local training, random partners, fixed partners, and partners from the true cluster."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from homophily.errors import UnsuitableError
from homophily.federation.view import View
from homophily.methods.base import Method, Partners, Reach, RoundContext, methods
from homophily.randomness import Purpose


@methods("local")
class Local(Method):
    """Trains alone and merges with nobody."""

    finds = False

    def meet(self, now: RoundContext) -> Tensor:
        return torch.zeros_like(now.known)

    def nominal(self, rounds: int) -> float:
        return 0.0


@dataclass(frozen=True)
class KPartners(Method):
    """Merges with all k peers that it meets in a round."""

    k: Partners = 4
    hops: Reach = 1

    def nominal(self, rounds: int) -> float:
        return float(rounds * self.k)


@methods("random")
@dataclass(frozen=True)
class Random(KPartners):
    """Merges with k peers per round, drawn uniformly in every round."""

    def meet(self, now: RoundContext) -> Tensor:
        return now.pick(now.known, self.k, Purpose.MEET)


@methods("fix-topology")
@dataclass(frozen=True)
class FixTopology(KPartners):
    """Merges with the same k peers in every round, drawn uniformly once."""

    def meet(self, now: RoundContext) -> Tensor:
        return now.pick(now.known, self.k, Purpose.MEET, round=0)


@methods("oracle")
@dataclass(frozen=True)
class Oracle(KPartners):
    """Merges with k peers of its own true cluster per round: an upper baseline, as real peers do not know clusters."""

    hops: Reach = 2

    def check(self, view: View) -> None:
        if view.same is None:
            raise UnsuitableError("method.name = 'oracle' needs data with known clusters, and this data has none")

    def meet(self, now: RoundContext) -> Tensor:
        assert now.view.same is not None
        return now.pick(now.known & now.view.same, self.k, Purpose.MEET)
