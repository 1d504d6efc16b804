"""Integer apportionment: how many samples of each class every peer gets. Deterministic arithmetic, no randomness."""

from __future__ import annotations

import torch
from torch import Tensor


def apportion(total: int | Tensor, weights: Tensor) -> Tensor:
    """Divide ``total`` [...] in proportion to ``weights`` [..., n] by largest remainder, ties to the first: int64.

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
    """Deal classes round-robin to rows of sizes [R]: [R, classes]. Counts differ by at most 1 per row and in total."""
    dealt = sizes.cumsum(0).unsqueeze(-1) + (classes - 1 - torch.arange(classes))
    return torch.diff(dealt // classes, dim=0, prepend=torch.zeros(1, classes, dtype=torch.int64))


def in_proportion(sizes: Tensor, weights: Tensor, supply: Tensor) -> Tensor:
    """Return class counts [R, C] in proportion to weights [R, C], from one supply [C] that all rows share.

    Row r sums to sizes[r]. If a class is too short, it is divided in proportion to what each row wanted of it. What a
    row then still needs comes from the remaining classes, again by its weights; if it has no weight on any of these, by
    what is left of them. The supply must be at least the sum of sizes.
    """
    counts = torch.zeros(weights.shape, dtype=torch.int64)
    while True:  # every iteration completes all rows or exhausts a class
        missing = sizes - counts.sum(1)
        if not bool(missing.any()):
            return counts
        left = supply - counts.sum(0)
        open_weights = torch.where(left > 0, weights, 0.0)
        open_weights = torch.where(open_weights.sum(1, keepdim=True) > 0, open_weights, left.to(weights.dtype))
        wanted = apportion(missing, open_weights)
        counts = counts + apportion(torch.minimum(left, wanted.sum(0)), wanted.T).T


def each_within(size: int, weights: Tensor, supply: Tensor) -> Tensor:
    """Return class counts [R, C] in proportion to weights [R, C]; every row may use the whole supply [C].

    A row sums to ``size``, or to the whole supply of the classes it has weight on, if that is less.
    """
    counts = torch.zeros(weights.shape, dtype=torch.int64)
    while True:  # every iteration completes a row or exhausts one of its classes
        open_weights = torch.where(counts < supply, weights, 0.0)
        more = apportion(size - counts.sum(1), open_weights)
        if not bool(more.any()):
            return counts
        counts = torch.minimum(counts + more, supply)


def divide(weights: Tensor, supply: Tensor, least: int) -> Tensor:
    """Divide all of supply [C] in proportion to weights [R, C], class by class: [R, C], each row at least ``least``.

    A row that is too small takes samples from the largest row, of the class it has most weight on.
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
    """Split counts [R, C] into a remainder and parts of the given sizes: [R, 1 + len(parts), C], the remainder first.

    Each part has the class proportions of what it is taken from.
    """
    taken = []
    for size in parts:
        taken.append(apportion(size, counts))
        counts = counts - taken[-1]
    return torch.stack([counts, *taken], dim=1)
