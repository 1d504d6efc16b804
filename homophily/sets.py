"""Sets of peers as rows of booleans over the book, with a leading axis of deciding peers: [P, B]."""

from __future__ import annotations

import torch
from torch import Tensor

_LAST = torch.iinfo(torch.int64).max


def pick(among: Tensor, k: int, keys: Tensor) -> Tensor:
    """A uniform draw of ``k`` (all, if fewer) from the set ``among``: those with the smallest keys. [P, B] bool."""
    columns = among.shape[1]
    if k >= columns:
        return among.clone()
    chosen = torch.where(among, keys, _LAST).topk(k, dim=1, largest=False, sorted=False).indices
    return torch.zeros_like(among).scatter_(1, chosen, True) & among


def listed(members: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The ids of each row's members, in the order of the book, padded: (ids [P, K], there [P, K] bool)."""
    columns = members.shape[1]
    most = int(members.sum(1).max()) if members.numel() else 0
    position = torch.where(members, torch.arange(columns, device=members.device), columns)
    position = position.topk(most, dim=1, largest=False, sorted=True).values
    there = position < columns
    found = ids.gather(1, position.clamp(max=max(columns - 1, 0)))
    return torch.where(there, found, -1), there
