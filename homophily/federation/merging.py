"""Aggregation (merge): weighted means, and robust (Byzantine-tolerant) rules: median, trimmed mean, Krum.

Shapes: P peers merge, and each has B contacts, with padding (see View). K is the number of models in a merge group,
with padding. M models are in this process (see LocalModels). d is the number of parameters of a model that are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from homophily.federation.peer_sets import compact
from homophily.federation.view import View
from homophily.plugins.registry import Registry

_NOBODY = torch.iinfo(torch.int64).max  # the id of padding while ids are sorted: padding comes last


@dataclass(frozen=True)
class MergeGroup:
    """The models that each of P peers merges: its partners' and its own, in ascending id, [P, K], padded."""

    ids: Tensor  # [P, K] int64; padding: -1
    rows: Tensor  # [P, K] int64: the rows of their models; padding: any row
    mask: Tensor  # [P, K] bool: False for padding and for models left out
    is_self: Tensor  # [P, K] bool: the peer itself
    samples: Tensor  # [P, K] float64: how many training samples each has
    similarity: Tensor  # [P, K] float64: to the peer itself; -inf if not measured

    @classmethod
    def joined(cls, runs: Sequence[MergeGroup | None], peers: int) -> MergeGroup:
        """Concatenate the groups of several runs of ``peers`` peers each; None: nobody merges in that run."""
        given = [one for one in runs if one is not None]
        width = max(one.ids.shape[1] for one in given)

        def column(name: str, padding: Any, step: int = 0) -> Tensor:
            nobody = getattr(given[0], name).new_full((peers, width), padding)
            parts = [nobody if one is None else _widened(getattr(one, name), width, padding) for one in runs]
            return torch.cat([part + number * step if step else part for number, part in enumerate(parts)])

        ids = column("ids", -1)
        run = torch.arange(len(ids), device=ids.device)[:, None] // peers
        return cls(
            ids=torch.where(ids < 0, ids, ids + run * peers),
            rows=column("rows", 0, step=peers),
            mask=column("mask", False),
            is_self=column("is_self", False),
            samples=column("samples", 0.0),
            similarity=column("similarity", -torch.inf),
        )

    def without(self, diverged: Tensor) -> MergeGroup:
        """Return the group without diverged models. diverged: [M] bool, one per row of the models."""
        return replace(self, mask=self.mask & ~diverged[self.rows])


def _widened(column: Tensor, width: int, padding: Any) -> Tensor:
    return pad(column, (0, width - column.shape[1]), value=padding)


def gather(
    view: View, partners: Tensor, local: Callable[[Tensor], Tensor], samples: Tensor, similarity: Tensor | None = None
) -> MergeGroup:
    """Return the merge group of each peer and its partners (a set of contacts, [P, B] bool).

    local: maps ids to rows; samples: [M], per row; similarity: [P, B] float64, None if not measured.
    """
    columns, mask = compact(partners)
    ids = torch.where(mask, view.contacts.gather(1, columns), _NOBODY)
    ids, order = torch.cat([ids, view.me[:, None]], dim=1).sort(1)
    alike = torch.full_like(ids, -torch.inf, dtype=torch.float64)
    if similarity is not None:
        alike[:, :-1] = torch.where(mask, similarity.gather(1, columns), -torch.inf)
        alike = alike.gather(1, order)
    mask = ids != _NOBODY
    ids = torch.where(mask, ids, -1)
    rows = local(ids)
    return MergeGroup(ids, rows, mask, ids == view.me[:, None], samples[rows].to(torch.float64), alike)


Merge = Callable[..., Tensor]
"""A merge usually returns weights: (group) -> [P, K] float64. A peer's weights sum to 1, or are all 0: no merge.

A merge marked ``rowwise`` returns merged models: (rows [P, K, d], mask [P, K], is_self [P, K]) -> [P, d].
A merge marked ``by_similarity`` needs similarities in every round, so it needs a method that measures them."""

merges: Registry[Merge] = Registry("merge")


def rowwise(merge: Merge) -> Merge:
    """Decorator: mark a merge that returns merged models instead of weights."""
    merge.rowwise = True  # type: ignore[attr-defined]
    return merge


def is_rowwise(merge: Merge) -> bool:
    return getattr(merge, "rowwise", False)


def given_to(merge: Merge) -> tuple[str, ...]:
    """Return the names of the arguments that a merge is called with."""
    return ("rows", "mask", "is_self") if is_rowwise(merge) else ("group",)


def by_similarity(merge: Merge) -> Merge:
    """Decorator: mark a merge whose weights depend on similarities."""
    merge.by_similarity = True  # type: ignore[attr-defined]
    return merge


def needs_similarity(merge: Merge) -> bool:
    return getattr(merge, "by_similarity", False)


@merges("uniform")
def uniform(group: MergeGroup) -> Tensor:
    """Equal weights, 1 / (k + 1) for k partners."""
    return _normalised(group.mask.to(torch.float64))


@merges("fedavg")
def fedavg(group: MergeGroup) -> Tensor:
    """Weights in proportion to the number of training samples."""
    return _normalised(torch.where(group.mask, group.samples, 0.0))


@merges("fedsim")
@by_similarity
def fedsim(group: MergeGroup) -> Tensor:
    """Weights in proportion to similarity; a peer's own weight equals that of its most similar partner.

    A peer without a positive similarity keeps its model. If a peer's own model has diverged and the metric needs it,
    all its similarities are 0. Its partners then get equal weights. A metric that does not need the own model is used
    as usual.
    """
    partner = group.mask & ~group.is_self & group.similarity.isfinite()
    weight = torch.where(partner, group.similarity, 0.0).clamp(min=0.0)
    own = group.is_self & group.mask
    most = weight.amax(1, keepdim=True)
    weight = torch.where((most > 0) | own.any(1, keepdim=True), weight, partner.to(torch.float64))
    return _normalised(torch.where(own, most, weight))


def _normalised(weights: Tensor) -> Tensor:
    total = weights.cumsum(1)[:, -1:]  # unlike sum, cumsum adds in a fixed order, so that padding changes no bit
    return torch.where(total > 0, weights / total.clamp(min=torch.finfo(torch.float64).tiny), 0.0)


@merges("median")
@rowwise
def median(rows: Tensor, mask: Tensor, is_self: Tensor) -> Tensor:
    """Coordinate-wise median: robust to fewer than half Byzantine models."""
    count = mask.sum(1)
    sorted_rows = torch.where(mask[..., None], rows, torch.inf).sort(1).values
    low, high = ((count - 1) // 2).clamp(min=0), (count // 2).clamp(max=rows.shape[1] - 1)
    middle = [sorted_rows[torch.arange(len(rows), device=rows.device), at] for at in (low, high)]
    return 0.5 * (middle[0] + middle[1])


@merges("trimmed-mean")
@rowwise
def trimmed_mean(rows: Tensor, mask: Tensor, is_self: Tensor) -> Tensor:
    """Coordinate-wise trimmed mean: without the largest and the smallest quarter of the values."""
    count = mask.sum(1)
    cut = count // 4
    sorted_rows = torch.where(mask[..., None], rows, torch.inf).sort(1).values
    total, kept = torch.zeros_like(rows[:, 0]), (count - 2 * cut).clamp(min=1)[:, None]
    for slot in range(rows.shape[1]):
        inside = (slot >= cut) & (slot < count - cut)
        total = total + torch.where(inside[:, None], sorted_rows[:, slot], 0.0)
    return total / kept


@merges("krum")
@rowwise
def krum(rows: Tensor, mask: Tensor, is_self: Tensor) -> Tensor:
    """Krum: the model with the smallest sum of squared distances to its nearest half of the others; ties: one's own."""
    count = mask.sum(1)
    both = mask[:, :, None] & mask[:, None, :] & ~torch.eye(mask.shape[1], dtype=torch.bool, device=rows.device)
    distance = torch.stack(
        [(rows - rows[:, slot : slot + 1]).square().sum(2, dtype=torch.float64) for slot in range(rows.shape[1])], dim=2
    )
    nearest = torch.where(both, distance, torch.inf).sort(2).values.cumsum(2)
    # Krum sums the n - f - 2 nearest distances. With the largest f that it tolerates, (n - 3) / 2 rounded down, this is
    # n / 2 rounded down.
    wanted = (count // 2).clamp(min=1)
    score = nearest.gather(2, (wanted - 1)[:, None, None].expand(-1, rows.shape[1], 1))[..., 0]
    # A model without others has an infinite score: clamp it, so that it differs from padding.
    score = torch.where(mask, score.clamp(max=torch.finfo(torch.float64).max), torch.inf)
    least = (score == score.amin(1, keepdim=True)) & mask
    best = torch.where(least & is_self, 2, least.long()).argmax(1)
    return rows[torch.arange(len(rows), device=rows.device), best]
