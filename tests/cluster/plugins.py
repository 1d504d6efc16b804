"""Plug-ins that runs on several ranks use by name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from homophily import Method, PeerData, RoundContext
from homophily.federation.similarity import MetricCost, Pairs, costs


def unequal() -> list[PeerData]:
    """Seven peers, each with more samples than the one before. 5 numbers do not fill a line of memory."""
    rng = np.random.default_rng(0)
    found = []
    for i in range(7):
        x = rng.normal(size=(6 + 5 * i, 5)).astype(np.float32)
        y = (x[:, i % 2] > 0).astype(int)
        found.append(PeerData(x, y, test_x=x[: 3 + i], test_y=y[: 3 + i]))
    return found


class Remembering(Method):
    """Merges with all, and remembers how often it met each of them."""

    def meet(self, now: RoundContext) -> Tensor:
        return now.known

    def choose(self, now: RoundContext, met: Tensor, similarity: Tensor | None) -> Tensor:
        now.memory["met"] = now.recall("met") + met
        return met

    def diagnostics(self, now: RoundContext, met: Tensor, similarity: Tensor | None) -> Mapping[str, Tensor]:
        return {"met": now.memory["met"]}


@costs(MetricCost())
def positive_only(pairs: Pairs) -> Tensor:
    """NaN for all pairs of a peer whose first weight is negative."""
    distance = -(pairs.mine - pairs.yours).abs().amax(1).double()
    return torch.where(pairs.mine[:, 0] < 0, torch.nan, distance)
