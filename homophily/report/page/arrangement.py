"""Where peers stand in matrices and graphs, and which rounds are shown: fixed for a page, so that nothing jumps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, pi, sqrt

import numpy as np

from homophily.report.page.figures import Array, Frames
from homophily.report.page.sources import Source, shortened

EXACT = 1000  # peers up to which the matrix has a row per peer, and the graph all edges
CELLS = 500  # rows of the matrix above that
SAMPLED = 200  # peers above that whose edges the graph shows
BUDGET = 450_000  # merges in all shown rounds together, which need about two bytes each
LEAST_ROUNDS = 5  # shown if the run has as many, also above the budget
_GOLDEN = pi * (3 - sqrt(5))


@dataclass(frozen=True)
class Arrangement:
    """The order of peers by group: their true cluster, or the family that a method found, or none."""

    order: Array  # [N] the peer of each row
    row: Array  # [N] the row of each peer
    group: Array  # [N] the group of each row
    groups: Sequence[tuple[str, int]]  # names and sizes, in order

    @classmethod
    def by(cls, groups: Sequence[str] | None, peers: int, first: Sequence[str] = ()) -> Arrangement:
        """groups: the name of each peer's group; first: the order of the groups, if it is known."""
        names = ["all"] * peers if groups is None else list(groups)
        listed = [name for name in dict.fromkeys([*first, *names]) if name in set(names)]
        number = np.array([listed.index(name) for name in names], dtype=np.int64)
        order = np.argsort(number, kind="stable")
        row = np.empty(peers, dtype=np.int64)
        row[order] = np.arange(peers)
        sizes = np.bincount(number, minlength=len(listed)).tolist()
        return cls(order, row, number[order], list(zip(listed, sizes, strict=True)))

    @classmethod
    def of(cls, source: Source) -> Arrangement:
        """The peers of a run by cluster, if clusters are known."""
        return cls.by(source.clusters, source.peers, source.cluster_order)

    @property
    def names(self) -> list[str]:
        """The names of the groups, as they are shown."""
        return [shortened(name) for name, _ in self.groups]

    @property
    def peers(self) -> int:
        return len(self.order)

    def places(self) -> tuple[Array, Array]:
        """A place in the unit square for each row: groups on a circle, the peers of a group on a disc."""
        x, y, start = np.zeros(self.peers), np.zeros(self.peers), 0
        count = len(self.groups)
        largest = max((size for _, size in self.groups), default=1)
        around = 0.0 if count == 1 else 0.31
        radius = 0.47 if count == 1 else min(0.17, around * np.sin(pi / count) * 0.92)
        for number, (_, size) in enumerate(self.groups):
            angle = 2 * pi * number / count - pi / 2
            step = np.arange(size)
            spiral = radius * sqrt(size / largest) * np.sqrt((step + 0.5) / max(size, 1))
            x[start : start + size] = 0.5 + around * np.cos(angle) + spiral * np.cos(step * _GOLDEN)
            y[start : start + size] = 0.5 + around * np.sin(angle) + spiral * np.sin(step * _GOLDEN)
            start += size
        return x, y

    def frames(
        self, rounds: Sequence[int], pairs: Sequence[Array], counts: Sequence[Array]
    ) -> tuple[Frames, Frames | None]:
        """The merges of each shown round for the matrix, and for the graph if that shows a sample.

        pairs: for each round, peer * N + partner.
        """
        peer = [self.row[found // self.peers] for found in pairs]
        partner = [self.row[found % self.peers] for found in pairs]
        size = self.peers if self.peers <= EXACT else CELLS
        whole = _frames(
            size,
            rounds,
            [
                (p * size // self.peers, q * size // self.peers, n)
                for p, q, n in zip(peer, partner, counts, strict=True)
            ],
        )
        if self.peers <= EXACT:
            return whole, None
        some = np.unique(np.concatenate(peer))
        chosen = np.zeros(self.peers, dtype=bool)
        chosen[some[np.linspace(0, len(some) - 1, min(SAMPLED, len(some))).round().astype(np.int64)]] = True
        few = [(p[chosen[p]], q[chosen[p]], n[chosen[p]]) for p, q, n in zip(peer, partner, counts, strict=True)]
        return whole, _frames(self.peers, rounds, few)


def _frames(size: int, rounds: Sequence[int], entries: Sequence[tuple[Array, Array, Array]]) -> Frames:
    cells, counts = [], []
    for row, column, count in entries:
        found, where = np.unique(row * size + column, return_inverse=True)
        cells.append(found)
        counts.append(np.bincount(where, weights=count, minlength=len(found)).astype(np.int64))
    return Frames(size, rounds, cells, counts)


def shown_rounds(sizes: Sequence[int]) -> list[int]:
    """The places of the rounds to show, given the merges of each: the first, the last, and others in equal steps."""
    count = len(sizes)
    if not count:
        return []
    mean = max(1, ceil(sum(sizes) / count))
    most = min(count, max(LEAST_ROUNDS, BUDGET // mean))
    return sorted(set(np.linspace(0, count - 1, most).round().astype(int).tolist()))
