"""Missing values: NaN in features, filled with what the peer itself has seen."""

from __future__ import annotations

import torch
from torch import Tensor


def impute(train: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Fill each feature's NaN with its mean over ``train`` [n, ...] (0: never observed there), in all tensors given."""
    tensors = (train, *others)
    if not any(bool(t.isnan().any()) for t in tensors):  # integers never are
        return tensors
    mean = train.nanmean(dim=0)
    fill = torch.where(mean.isnan(), 0.0, mean)  # the mean of no values is NaN
    return tuple(torch.where(t.isnan(), fill, t) for t in tensors)
