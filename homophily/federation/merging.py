"""Merging: how much each partner's row, and one's own, counts; or what to make of the rows where some may be bad."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from homophily.plugins.registry import Registry


@dataclass(frozen=True)
class Gathering:
    """Who merges: for each peer its partners and itself in ascending id, [P, K], padded."""

    ids: Tensor  # [P, K] int64
    there: Tensor  # [P, K] bool: not padding, and not left out
    own: Tensor  # [P, K] bool: oneself
    samples: Tensor  # [P, K] float64: how many training samples each has
    similarity: Tensor  # [P, K] float64: to oneself; -inf where not measured

    @classmethod
    def joined(cls, runs: Sequence[Gathering | None], peers: int) -> Gathering:
        """Those of several runs of as many peers each, one below the other; in a run without one nobody merges."""
        there = [one for one in runs if one is not None]
        width = max(one.ids.shape[1] for one in there)

        def column(name: str, padding: Any) -> Tensor:
            nobody = getattr(there[0], name).new_full((peers, width), padding)
            filled = [nobody if one is None else _widened(getattr(one, name), width, padding) for one in runs]
            return torch.cat(filled)

        ids = column("ids", -1)
        run = torch.arange(len(ids), device=ids.device)[:, None] // peers
        rest = {"there": False, "own": False, "samples": 0.0, "similarity": -torch.inf}
        return cls(torch.where(ids < 0, ids, ids + run * peers), **{name: column(name, rest[name]) for name in rest})

    def without(self, sick: Tensor) -> Gathering:
        """The same with the sick [N] left out."""
        return replace(self, there=self.there & ~sick[self.ids.clamp(min=0)])


def _widened(column: Tensor, width: int, padding: Any) -> Tensor:
    return pad(column, (0, width - column.shape[1]), value=padding)


Merge = Callable[..., Tensor]
"""Usually weights of a sum of rows: (gathering) -> [P, K] float64. A peer's add up to 1; all 0: it keeps its model.

Marked ``rowwise`` it is another way to make one row of many: (rows [P, K, d], there [P, K], own [P, K]) -> [P, d].
Marked ``by_similarity`` it needs similarities in every round, so a method that compares."""

merges: Registry[Merge] = Registry("merge")

_ROWWISE: set[Merge] = set()
_BY_SIMILARITY: set[Merge] = set()


def rowwise(merge: Merge) -> Merge:
    """Mark a merge that works on rows and not by weights."""
    _ROWWISE.add(merge)
    return merge


def is_rowwise(merge: Merge) -> bool:
    return merge in _ROWWISE


def given_to(merge: Merge) -> tuple[str, ...]:
    """What it is called with."""
    return ("rows", "there", "own") if is_rowwise(merge) else ("gathering",)


def by_similarity(merge: Merge) -> Merge:
    """Mark a merge whose weights are similarities."""
    _BY_SIMILARITY.add(merge)
    return merge


def needs_similarity(merge: Merge) -> bool:
    return merge in _BY_SIMILARITY


@merges("uniform")
def uniform(gathering: Gathering) -> Tensor:
    """Everyone counts the same: 1 / (k + 1)."""
    return _normalised(gathering.there.to(torch.float64))


@merges("fedavg")
def fedavg(gathering: Gathering) -> Tensor:
    """In proportion to the number of training samples."""
    return _normalised(torch.where(gathering.there, gathering.samples, 0.0))


@merges("fedsim")
@by_similarity
def fedsim(gathering: Gathering) -> Tensor:
    """In proportion to similarity, one's own weight that of the most similar partner; nothing positive: unchanged.

    Whose own model is sick takes its partners' as they are, since nothing is known of how similar they would be.
    """
    partner = gathering.there & ~gathering.own & gathering.similarity.isfinite()
    weight = torch.where(partner, gathering.similarity, 0.0).clamp(min=0.0)
    own = gathering.own & gathering.there
    most = weight.amax(1, keepdim=True)
    weight = torch.where((most > 0) | own.any(1, keepdim=True), weight, partner.to(torch.float64))
    return _normalised(torch.where(own, most, weight))


def _normalised(weights: Tensor) -> Tensor:
    total = weights.cumsum(1)[:, -1:]
    return torch.where(total > 0, weights / total.clamp(min=torch.finfo(torch.float64).tiny), 0.0)


@merges("median")
@rowwise
def median(rows: Tensor, there: Tensor, own: Tensor) -> Tensor:
    """The median of every number, which up to half of bad peers cannot move far."""
    count = there.sum(1)
    sorted_rows = torch.where(there[..., None], rows, torch.inf).sort(1).values
    low, high = ((count - 1) // 2).clamp(min=0), (count // 2).clamp(max=rows.shape[1] - 1)
    middle = [sorted_rows[torch.arange(len(rows), device=rows.device), at] for at in (low, high)]
    return 0.5 * (middle[0] + middle[1])


@merges("trimmed-mean")
@rowwise
def trimmed_mean(rows: Tensor, there: Tensor, own: Tensor) -> Tensor:
    """The mean of every number without its largest and smallest quarter."""
    count = there.sum(1)
    cut = count // 4
    sorted_rows = torch.where(there[..., None], rows, torch.inf).sort(1).values
    total, kept = torch.zeros_like(rows[:, 0]), (count - 2 * cut).clamp(min=1)[:, None]
    for slot in range(rows.shape[1]):
        inside = (slot >= cut) & (slot < count - cut)
        total = total + torch.where(inside[:, None], sorted_rows[:, slot], 0.0)
    return total / kept


@merges("krum")
@rowwise
def krum(rows: Tensor, there: Tensor, own: Tensor) -> Tensor:
    """The one model that lies closest to its nearest half of the others; of equals, one's own."""
    count = there.sum(1)
    both = there[:, :, None] & there[:, None, :] & ~torch.eye(there.shape[1], dtype=torch.bool, device=rows.device)
    distance = torch.stack(
        [(rows - rows[:, slot : slot + 1]).square().sum(2, dtype=torch.float64) for slot in range(rows.shape[1])], dim=2
    )
    nearest = torch.where(both, distance, torch.inf).sort(2).values.cumsum(2)
    wanted = (count // 2).clamp(min=1)  # with f bad ones among n = 2 f + 2 or more, n - f - 2 would be half or more
    score = nearest.gather(2, (wanted - 1)[:, None, None].expand(-1, rows.shape[1], 1))[..., 0]
    score = torch.where(there, score.clamp(max=torch.finfo(torch.float64).max), torch.inf)  # one alone is its own best
    least = (score == score.amin(1, keepdim=True)) & there
    best = torch.where(least & own, 2, least.long()).argmax(1)
    return rows[torch.arange(len(rows), device=rows.device), best]
