"""Synthetic data that is drawn for each peer by itself, so that a process can make the data of its own peers alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from homophily.data.task_kinds import CLASSIFICATION
from homophily.data.types import FederatedData, Split
from homophily.randomness import Purpose, uniform

_TEACHER, _INPUT = range(100, 102)  # what is drawn: different random keys, so that the draws are independent
_AT_ONCE = 1 << 16  # samples drawn at a time


@dataclass(frozen=True)
class Generator:
    """A data set that is made peer by peer. Peers of cluster 0 come first."""

    name: str
    clusters: int
    classes: int
    draw: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    """(ids [M], clusters [M], positions [M]) -> x [M, features] and y [M]; a function of these numbers alone."""

    def of(self, ids: Tensor, peers: int, counts: Sequence[int]) -> FederatedData:
        """Return the data of the peers ``ids`` [P] of a federation of ``peers``.

        counts: samples of each peer for training, validation and testing.
        """
        cluster = self.cluster(ids, peers)
        first, made = 0, []
        for count in counts:
            made.append(self._split(ids, cluster, first, count) if count else None)
            first += count
        train, validation, test = made
        assert train is not None
        assert test is not None
        names = tuple(f"cluster {number}" for number in range(self.clusters))
        return FederatedData(train, test, validation, self.classes, self.classes, cluster, names, kind=CLASSIFICATION)

    def cluster(self, ids: Tensor, peers: int) -> Tensor:
        """Return the cluster of each of the peers ``ids`` of a federation of ``peers``."""
        return ids * self.clusters // peers

    def _split(self, ids: Tensor, cluster: Tensor, first: int, count: int) -> Split:
        position, step = torch.arange(first, first + count), max(1, _AT_ONCE // count)
        parts = [
            self.draw(some.repeat_interleave(count), of.repeat_interleave(count), position.repeat(len(some)))
            for some, of in zip(ids.split(step), cluster.split(step), strict=True)
        ]
        x, y = (torch.cat(tables) for tables in zip(*parts, strict=True))
        return Split(x, y, torch.arange(len(ids)) * count, torch.full_like(ids, count))


def linear_teachers(seed: int, features: int, classes: int, clusters: int) -> Generator:
    """Uniform inputs of variance 1; the class is the largest output of a random linear map of the peer's cluster."""
    column = torch.arange(features)
    weights = uniform(seed, Purpose.SOURCE, _TEACHER, torch.arange(clusters * classes)[:, None], column) - 0.5
    teacher = weights.view(clusters, classes, features).float()

    def draw(ids: Tensor, cluster: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        drawn = uniform(seed, Purpose.SOURCE, _INPUT, ids[:, None], position[:, None], column)
        x = (12**0.5 * (drawn - 0.5)).float()
        y = torch.empty(len(x), dtype=torch.int64)
        for number in cluster.unique().tolist():
            mine = cluster == number
            # Products are added one after the other: a matrix product rounds by the number of its rows.
            y[mine] = (x[mine][:, None] * teacher[number]).cumsum(2)[..., -1].argmax(1)
        return x, y

    return Generator("synthetic", clusters, classes, draw)
