"""Missing values: NaN in features, filled with what the peer itself has seen."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def fill_in(peers: Sequence[Sequence[Tensor]]) -> Tensor | None:
    """Fill, in place, what each peer's tensors [n, ...] miss with means over the first of them, its training samples.

    Returns these means [N, ...], 0 for what a peer never observed; None if nobody misses anything.
    """
    if not any(bool(x.isnan().any()) for tensors in peers for x in tensors):  # integers never are
        return None
    fill = torch.stack([_means(tensors[0]) for tensors in peers])
    for means, tensors in zip(fill, peers, strict=True):
        for x in tensors:
            x.copy_(filled(x, means))
    return fill


def filled(x: Tensor, means: Tensor) -> Tensor:
    """Samples [n, ...] with means [...] for what they miss."""
    return torch.where(x.isnan(), means, x)


def _means(train: Tensor) -> Tensor:
    mean = train.nanmean(dim=0)
    return torch.where(mean.isnan(), 0.0, mean)  # the mean of no values is NaN
