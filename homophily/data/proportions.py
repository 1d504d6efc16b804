"""Whole numbers in proportion: how many samples of which class everyone gets. Pure arithmetic, no randomness."""

from __future__ import annotations

import torch
from torch import Tensor


def apportion(total: int | Tensor, weights: Tensor) -> Tensor:
    """Divide ``total`` [...] over ``weights`` [..., n] by largest remainder, ties to the first: [..., n] int64.

    Rows sum to their total, or to 0 if all weights are 0; a weight of 0 gets nothing.
    """
    weights = weights.to(torch.float64)
    whole = weights.sum(-1)
    total = torch.where(whole > 0, torch.as_tensor(total), 0)
    quota = total.unsqueeze(-1) * weights / torch.where(whole > 0, whole, 1.0).unsqueeze(-1)
    floor = quota.floor()
    rank = (quota - floor).argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    return floor.to(torch.int64) + (rank < (total - floor.sum(-1)).unsqueeze(-1))


def deal(sizes: Tensor, classes: int) -> Tensor:
    """Deal classes round like cards, sizes [R] to each: [R, classes], level to within one in every row and in all."""
    dealt = sizes.cumsum(0).unsqueeze(-1) + (classes - 1 - torch.arange(classes))
    return torch.diff(dealt // classes, dim=0, prepend=torch.zeros(1, classes, dtype=torch.int64))


def in_proportion(sizes: Tensor, weights: Tensor, supply: Tensor) -> Tensor:
    """Class counts [R, C] with rows summing to sizes [R] after weights [R, C], from one supply [C] for all rows.

    A class too short for all is itself divided in proportion to what each wanted; what a row then misses comes from
    the classes left, again by its weights (by what is left, if it has weight on none). The supply must reach.
    """
    counts = torch.zeros(weights.shape, dtype=torch.int64)
    while True:  # every turn ends it or exhausts a class
        missing = sizes - counts.sum(1)
        if not bool(missing.any()):
            return counts
        left = supply - counts.sum(0)
        open_weights = torch.where(left > 0, weights, 0.0)
        open_weights = torch.where(open_weights.sum(1, keepdim=True) > 0, open_weights, left.to(weights.dtype))
        wanted = apportion(missing, open_weights)
        counts = counts + apportion(torch.minimum(left, wanted.sum(0)), wanted.T).T


def each_within(size: int, weights: Tensor, supply: Tensor) -> Tensor:
    """Class counts [R, C] after weights [R, C], every row with the whole supply [C] to itself.

    A row sums to ``size``, or to all there is of the classes it has weight on.
    """
    counts = torch.zeros(weights.shape, dtype=torch.int64)
    while True:  # every turn fills a row or one of its classes
        open_weights = torch.where(counts < supply, weights, 0.0)
        more = apportion(size - counts.sum(1), open_weights)
        if not bool(more.any()):
            return counts
        counts = torch.minimum(counts + more, supply)


def divide(weights: Tensor, supply: Tensor, least: int) -> Tensor:
    """All of supply [C] divided by weights [R, C], class by class: [R, C], every row at least ``least`` in sum.

    Rows that come out too small are helped by the largest, with the class they have most weight on among its classes.
    """
    unwanted = weights.sum(0) == 0
    counts = apportion(supply, torch.where(unwanted, 1.0, weights).T).T.contiguous()
    sums = counts.sum(1)
    for poor in (sums < least).nonzero().flatten().tolist():
        while sums[poor] < least:
            rich = int(sums.argmax())
            best = int(torch.where(counts[rich] > 0, weights[poor], -1.0).argmax())
            counts[rich, best] -= 1
            counts[poor, best] += 1
            sums[rich] -= 1
            sums[poor] += 1
    return counts


def carve(counts: Tensor, parts: list[int]) -> Tensor:
    """Take ``parts`` out of counts [R, C], each in proportion to what is there: [R, 1 + parts, C], the rest first."""
    taken = []
    for size in parts:
        taken.append(apportion(size, counts))
        counts = counts - taken[-1]
    return torch.stack([counts, *taken], dim=1)
