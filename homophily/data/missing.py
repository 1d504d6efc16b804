"""Imputation of missing values: NaN in features becomes the mean over the peer's own training samples."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def impute(peers: Sequence[Sequence[Tensor]]) -> Tensor | None:
    """Replace NaN in each peer's tensors [n, ...], in place, by means over the first of them, its training samples.

    Returns these means [N, ...], with 0 for a feature that a peer never observed; None if no value is missing.
    """
    if not any(bool(x.isnan().any()) for tensors in peers for x in tensors):  # integers are never NaN
        return None
    fill = torch.stack([_means(tensors[0]) for tensors in peers])
    for means, tensors in zip(fill, peers, strict=True):
        for x in tensors:
            x.copy_(imputed(x, means))
    return fill


def missing(x: Tensor) -> Tensor | None:
    """Return which inputs [n, ...] are missing, [n, ...] bool; None: none is."""
    found = x.isnan()
    return found if bool(found.any()) else None


def imputed(x: Tensor, means: Tensor) -> Tensor:
    """Return samples [n, ...] with the means [...] in place of NaN."""
    return torch.where(x.isnan(), means, x)


def _means(train: Tensor) -> Tensor:
    mean = train.nanmean(dim=0)
    return torch.where(mean.isnan(), 0.0, mean)  # nanmean returns NaN for a feature without values
