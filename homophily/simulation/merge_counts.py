"""How often each peer merged each other's model, stored sparse."""

from __future__ import annotations

import torch
from torch import Tensor

from homophily.federation.merging import MergeGroup

_PENDING = 1 << 22


class MergeCounts:
    """Counts of (peer, partner) pairs. Pairs are kept as peer * N + partner, sorted and unique."""

    def __init__(self, peers: int, pairs: Tensor | None = None, counts: Tensor | None = None) -> None:
        self.peers = peers
        self._pairs = torch.zeros(0, dtype=torch.int64) if pairs is None else pairs
        self._counts = torch.zeros(0, dtype=torch.int64) if counts is None else counts
        self._pending: list[Tensor] = []
        self._waiting = 0

    def add(self, group: MergeGroup, merged: Tensor, me: Tensor) -> Tensor:
        """Count one round's merges, ``merged`` [P, K] of a group.

        Returns the pairs [M, 2] (peer, partner) on the CPU, sorted by peer.
        """
        row, slot = merged.nonzero(as_tuple=True)
        pairs = torch.stack([me[row], group.ids[row, slot]], dim=1).cpu()
        self._pending.append(pairs[:, 0] * self.peers + pairs[:, 1])
        self._waiting += len(pairs)
        if self._waiting > _PENDING:
            self._settle()
        return pairs

    def _settle(self) -> None:
        fresh = torch.cat(self._pending) if self._pending else torch.zeros(0, dtype=torch.int64)
        self._pending, self._waiting = [], 0
        pairs, where = torch.cat([self._pairs, fresh]).unique(return_inverse=True)
        weight = torch.cat([self._counts, torch.ones_like(fresh)])
        self._pairs = pairs
        self._counts = torch.zeros(len(pairs), dtype=torch.int64).index_add_(0, where, weight)

    def sparse(self) -> tuple[Tensor, Tensor]:
        """Pairs [M] (peer * N + partner) and counts [M]."""
        self._settle()
        return self._pairs, self._counts

    def same_cluster(self, cluster: Tensor) -> tuple[int, int]:
        """How many merges are between peers of one cluster, and how many there are in all. cluster: [N] on the CPU."""
        pairs, counts = self.sparse()
        inside = cluster[pairs // self.peers] == cluster[pairs % self.peers]
        return int(counts[inside].sum()), int(counts.sum())
