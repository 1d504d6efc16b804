"""Hard EM that splits similarities into two groups, for PANM's heuristic neighbour matching, with all edge cases."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from homophily.federation.peer_sets import compact, spread

SWEEPS = 100
_FLOOR = 0.1  # the smallest standard deviation of a group, with similarities scaled to the range 0 to 1
_CLEAR = ((5, 17.8), (6, 12.3), (8, 8.4), (10, 6.9), (15, 5.2), (20, 4.6), (30, 4.0), (50, 3.7))
"""(points, distance): in 99 of 100 draws of so many points from one normal distribution, the fit puts the means of the
two groups at most this many pooled standard deviations apart."""


def two_groups(candidates: Tensor, sample: Tensor, similarity: Tensor, ties: Tensor) -> Tensor:
    """The candidates C and sampled neighbours S that the EM assigns to the peer's own cluster: [P, B] bool.

    All arguments are [P, B]: candidates and sample are disjoint sets, similarity is float64, ties is int64. A peer with
    a similarity that is not finite is in neither set. Two normal distributions are fitted with hard assignment, and S
    starts in the upper one. If equal similarities must be separated, the smaller tie key counts as more similar. The
    result is empty only if C and S are.
    """
    finite = similarity.isfinite()
    columns, mask = compact((candidates | sample) & finite)
    if columns.shape[1] == 0:
        return torch.zeros_like(sample)
    in_sample = sample.gather(1, columns) & mask
    y = torch.where(mask, similarity.gather(1, columns), torch.inf)
    # Sorted by similarity and tie key: sums then do not depend on the order of the candidates.
    order = ties.gather(1, columns).argsort(dim=1, descending=True, stable=True)
    order = order.gather(1, y.gather(1, order).argsort(dim=1, stable=True))
    columns, mask, in_sample, y = (t.gather(1, order) for t in (columns, mask, in_sample, y))
    count = mask.sum(1, keepdim=True)
    lowest = torch.where(count > 0, y[:, :1], 0.0)
    width = torch.where(count > 0, y.gather(1, (count - 1).clamp(min=0)), 0.0) - lowest
    spanned = width > 0
    y = torch.where(mask & spanned, (y - lowest) / torch.where(spanned, width, 1.0), 0.0)
    upper = _split(mask, in_sample, y, spanned)
    return spread(columns, upper, similarity.shape[1])


def _split(mask: Tensor, sample: Tensor, y: Tensor, spanned: Tensor) -> Tensor:
    """The same-cluster group among the members ``mask``, whose similarities y ascend from 0 to 1: [P, M] bool."""
    slot = torch.arange(y.shape[1], device=y.device)
    count = mask.sum(1, keepdim=True)
    best = slot == count - 1
    only_sample = (sample == mask).all(1, keepdim=True)
    # No neighbours: the most similar candidate starts the upper group. No candidates: the upper half of S does.
    start = torch.where(sample.any(1, keepdim=True), sample, best)
    start = torch.where(only_sample, mask & (slot >= count // 2), start)
    upper = _fitted(mask, start, y, spanned[:, 0])
    mean, spread_of, size = _moments(mask, upper, y)
    # The same-cluster group is the one with the larger mean at the end.
    two = (size[0] > 0) & (size[1] > 0)
    upper = torch.where(two & (mean[0] < mean[1]), mask & ~upper, upper)
    pooled = ((spread_of[0] + spread_of[1]) / count.clamp(min=1)).sqrt()
    clear = two & ((mean[0] - mean[1]).abs() > _clear_distance(count) * pooled)
    upper = torch.where(only_sample & ~clear, sample, upper)
    return torch.where(upper.any(1, keepdim=True), upper, best & mask)


def group_statistics(members: Tensor, upper: Tensor, similarity: Tensor) -> dict[str, Tensor]:
    """Mean, standard deviation (``sigma``) and ``share`` of the members in the upper and in the lower group: [P, 2].

    members, upper: [P, B] bool; similarity: [P, B] float64, finite for members. A standard deviation is at least a
    tenth of the range of the similarities, as in the fit. An empty group has mean and sigma NaN.
    """
    lowest, highest = (
        torch.where(members, similarity, edge).aminmax(dim=1, keepdim=True) for edge in (torch.inf, -torch.inf)
    )
    floor = _FLOOR * (highest.max - lowest.min)
    y = torch.where(members, similarity, 0.0)
    mean, squares, size = _moments(members, upper, y)
    means, sigmas = [], []
    for mu, square, n in zip(mean, squares, size, strict=True):
        sigma = (square / n.clamp(min=1)).sqrt().maximum(floor)
        means.append(torch.where(n > 0, mu, torch.nan))
        sigmas.append(torch.where(n > 0, sigma, torch.nan))
    sizes = torch.cat(size, 1)
    share = sizes / sizes.sum(1, keepdim=True).clamp(min=1)
    return {"mean": torch.cat(means, 1), "sigma": torch.cat(sigmas, 1), "share": share}


def _clear_distance(count: Tensor) -> Tensor:
    """The distance of means, in pooled standard deviations, above which ``count`` points are two groups: [P, 1].

    Linear in 1 / count between the simulated sizes; infinite below the smallest, so that fewer points are never split.
    """
    distance = torch.full(count.shape, _CLEAR[-1][1], dtype=torch.float64, device=count.device)
    for (few, far), (many, near) in pairwise(_CLEAR):
        share = (1.0 / count.clamp(min=1) - 1.0 / many) / (1.0 / few - 1.0 / many)
        distance = torch.where((count >= few) & (count < many), near + share * (far - near), distance)
    return torch.where(count < _CLEAR[0][0], torch.inf, distance)


def _fitted(mask: Tensor, upper: Tensor, y: Tensor, live: Tensor) -> Tensor:
    """The upper group [P, M] after sweeps until nothing changes; a sweep that would empty a group is not made.

    live: [P] bool, the rows to fit.
    """
    for _ in range(SWEEPS):
        if not bool(live.any()):
            break
        moved = _reassigned(mask, upper, y)
        live = live & moved.any(1) & (mask & ~moved).any(1) & (moved != upper).any(1)
        upper = torch.where(live[:, None], moved, upper)
    return upper


def _reassigned(mask: Tensor, upper: Tensor, y: Tensor) -> Tensor:
    """One sweep: each member joins the group with the larger beta * Normal(y; mu, sigma); if equal, it stays."""
    mean, squares, size = _moments(mask, upper, y)
    scores = []
    for mu, square, n in zip(mean, squares, size, strict=True):
        sigma = (square / n.clamp(min=1)).sqrt().clamp(min=_FLOOR)
        score = n.log() - sigma.log() - 0.5 * ((y - mu) / sigma).square()
        scores.append(torch.where(n > 0, score, -torch.inf))
    return mask & torch.where(scores[0] == scores[1], upper, scores[0] > scores[1])


def _moments(mask: Tensor, upper: Tensor, y: Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Mean, sum of squared deviations and size of the upper group and of the lower group: [P, 1] float64 each."""
    means, squares, sizes = [], [], []
    for group in (upper & mask, mask & ~upper):
        size = group.sum(1, keepdim=True).to(torch.float64)
        mean = _sum(torch.where(group, y, 0.0)) / size.clamp(min=1)
        means.append(mean)
        squares.append(_sum(torch.where(group, (y - mean).square(), 0.0)))
        sizes.append(size)
    return means, squares, sizes


def _sum(values: Tensor) -> Tensor:
    """Row sums [P, M] -> [P, 1], added in order, so that padding does not change rounding."""
    return values.cumsum(1)[:, -1:]
