"""Plug-ins that runs on several ranks use by name."""

from __future__ import annotations

import torch
from torch import Tensor

from homophily.federation.similarity import MetricCost, Pairs, costs


@costs(MetricCost())
def positive_only(pairs: Pairs) -> Tensor:
    """NaN for all pairs of a peer whose first weight is negative."""
    distance = -(pairs.mine - pairs.yours).abs().amax(1).double()
    return torch.where(pairs.mine[:, 0] < 0, torch.nan, distance)
