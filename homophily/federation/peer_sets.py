"""Operations on sets of peers.

A set is a boolean mask [P, B] with one row per deciding peer (P) and one column per contact of that peer (B). ``among``
is the set from which peers are taken. K is the size of the largest row of a set.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LARGEST_KEY = torch.iinfo(torch.int64).max  # sorts after all keys


def pick(among: Tensor, k: int, keys: Tensor) -> Tensor:
    """Return the ``k`` peers (all, if fewer) with the smallest keys: a uniform draw if keys are random. [P, B] bool."""
    if k >= among.shape[1]:
        return among.clone()
    chosen = torch.where(among, keys, _LARGEST_KEY).topk(k, dim=1, largest=False, sorted=False).indices
    return torch.zeros_like(among).scatter_(1, chosen, True) & among


def pick_weighted(among: Tensor, k: int, log_weights: Tensor, uniforms: Tensor) -> Tensor:
    """Draw ``k`` peers without replacement, with probabilities in proportion to exp(log_weights). [P, B] bool.

    This is the Gumbel top-k trick: add Gumbel noise to the log weights and take the k largest sums. Weights need not be
    normalised. If fewer than k peers have nearly all the weight, the others are taken in order of weight.
    uniforms: [P, B], random numbers in [0, 1).
    """
    if k >= among.shape[1]:
        return among.clone()
    gumbel = -torch.log(-torch.log(uniforms + 2.0**-54))
    chosen = torch.where(among, log_weights + gumbel, -torch.inf).topk(k, dim=1, sorted=False).indices
    return torch.zeros_like(among).scatter_(1, chosen, True) & among


def ranked(among: Tensor, values: Tensor, ties: Tensor) -> tuple[Tensor, Tensor]:
    """Return the columns of the set in descending order of value, padded: (columns [P, K], mask [P, K] bool).

    Equal values are in ascending order of ``ties``.
    """
    columns, mask = compact(among)
    order = ties.gather(1, columns).argsort(dim=1, stable=True)
    columns, mask = columns.gather(1, order), mask.gather(1, order)
    order = values.gather(1, columns).argsort(dim=1, descending=True, stable=True)
    columns, mask = columns.gather(1, order), mask.gather(1, order)
    order = (~mask).to(torch.int8).argsort(dim=1, stable=True)  # padding last, whatever its value
    return columns.gather(1, order), mask.gather(1, order)


def top(among: Tensor, k: int, values: Tensor, ties: Tensor) -> Tensor:
    """Return the ``k`` peers (all, if fewer) with the largest values; ties are as in ``ranked``. [P, B] bool."""
    columns, mask = ranked(among, values, ties)
    return spread(columns[:, :k], mask[:, :k], among.shape[1])


def total(members: Tensor, values: Tensor) -> Tensor:
    """Return the sum of the members' values, [P, 1]. Values are added in order, so padding does not change a bit."""
    columns, mask = compact(members)
    picked = torch.where(mask, values.gather(1, columns), 0.0)
    return torch.nn.functional.pad(picked, (1, 0)).cumsum(1)[:, -1:]


def compact(members: Tensor) -> tuple[Tensor, Tensor]:
    """Return the columns of each row's members, ascending, padded with 0: (columns [P, K], mask [P, K] bool).

    The mask is False for padding.
    """
    row, column = members.nonzero(as_tuple=True)
    count = members.sum(1)
    width = int(count.max()) if len(count) else 0
    position = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]  # of a member in its row
    columns = torch.zeros(len(members), width, dtype=torch.int64, device=members.device)
    columns[row, position] = column
    return columns, torch.arange(width, device=members.device) < count[:, None]


def spread(columns: Tensor, mask: Tensor, width: int) -> Tensor:
    """Return the set with the columns [P, K] for which mask is True: [P, width] bool. The inverse of ``compact``."""
    out = torch.zeros(len(columns), width + 1, dtype=torch.bool, device=columns.device)  # the last column: padding
    out.scatter_(1, torch.where(mask, columns, width), True)
    return out[:, :width]
