"""Sets of peers as boolean masks over the contacts, one row for each deciding peer: [P, B]."""

from __future__ import annotations

import torch
from torch import Tensor

_LAST = torch.iinfo(torch.int64).max


def pick(among: Tensor, k: int, keys: Tensor) -> Tensor:
    """Draw ``k`` peers (all, if fewer) uniformly from the set ``among``: those with the smallest keys. [P, B] bool."""
    if k >= among.shape[1]:
        return among.clone()
    chosen = torch.where(among, keys, _LAST).topk(k, dim=1, largest=False, sorted=False).indices
    return torch.zeros_like(among).scatter_(1, chosen, True) & among


def pick_weighted(among: Tensor, k: int, log_weights: Tensor, uniforms: Tensor) -> Tensor:
    """Draw ``k`` of the set without replacement, in proportion to exp(log_weights). [P, B] bool.

    Gumbel top-k trick: the k largest of log weight plus Gumbel noise are such a draw. Weights need not be normalised.
    If nearly all weight is on fewer than k, the others follow in order of weight. uniforms: [P, B] in [0, 1).
    """
    if k >= among.shape[1]:
        return among.clone()
    gumbel = -torch.log(-torch.log(uniforms + 2.0**-54))
    chosen = torch.where(among, log_weights + gumbel, -torch.inf).topk(k, dim=1, sorted=False).indices
    return torch.zeros_like(among).scatter_(1, chosen, True) & among


def ranked(among: Tensor, values: Tensor, ties: Tensor) -> tuple[Tensor, Tensor]:
    """Return the set's columns by descending value, ties by ascending tie key: (columns, mask), [P, K] each."""
    columns, mask = compact(among)
    order = ties.gather(1, columns).argsort(dim=1, stable=True)
    columns, mask = columns.gather(1, order), mask.gather(1, order)
    order = values.gather(1, columns).argsort(dim=1, descending=True, stable=True)
    columns, mask = columns.gather(1, order), mask.gather(1, order)
    order = (~mask).to(torch.int8).argsort(dim=1, stable=True)  # padding last, whatever its value
    return columns.gather(1, order), mask.gather(1, order)


def top(among: Tensor, k: int, values: Tensor, ties: Tensor) -> Tensor:
    """Return the ``k`` of the set with the largest values (all, if fewer), ties by ascending tie key. [P, B] bool."""
    columns, mask = ranked(among, values, ties)
    return spread(columns[:, :k], mask[:, :k], among.shape[1])


def total(members: Tensor, values: Tensor) -> Tensor:
    """Return the sequential sum of the members' values, [P, 1], which does not depend on padding, bit for bit."""
    columns, mask = compact(members)
    picked = torch.where(mask, values.gather(1, columns), 0.0)
    return torch.nn.functional.pad(picked, (1, 0)).cumsum(1)[:, -1:]


def compact(members: Tensor) -> tuple[Tensor, Tensor]:
    """Return the columns of each row's members, ascending, padded with 0: (columns [P, K], mask [P, K] bool)."""
    row, column = members.nonzero(as_tuple=True)
    count = members.sum(1)
    most = int(count.max()) if len(count) else 0
    slot = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]
    columns = torch.zeros(len(members), most, dtype=torch.int64, device=members.device)
    columns[row, slot] = column
    return columns, torch.arange(most, device=members.device) < count[:, None]


def spread(columns: Tensor, mask: Tensor, width: int) -> Tensor:
    """Return the set with these columns, the inverse of compact: [P, width] bool."""
    out = torch.zeros(len(columns), width + 1, dtype=torch.bool, device=columns.device)
    out.scatter_(1, torch.where(mask, columns, width), True)
    return out[:, :width]
