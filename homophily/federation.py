"""A federation is a matrix: a row per peer. Training moves rows, a merge adds rows, a checkpoint is the rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from homophily.layout import Kept, Layout
from homophily.merging import Gathering, Weights
from homophily.sets import listed

_MERGE_BYTES = 256 << 20  # rows gathered at a time


@dataclass
class Federation:
    """All peers' models. rows: [N, D]; kept: buffers outside the rows, [N, ...] each."""

    layout: Layout
    rows: Tensor
    kept: Kept

    @property
    def sick(self) -> Tensor:
        """[N] bool: the model holds a NaN or an infinity."""
        return ~self.rows.isfinite().all(1)

    def copy(self) -> Federation:
        return Federation(self.layout, self.rows.clone(), {name: table.clone() for name, table in self.kept.items()})

    def put(self, which: Tensor, other: Federation) -> None:
        """Take over the rows ``which`` [N] bool of another federation."""
        self.rows[which] = other.rows[which]
        for name, table in self.kept.items():
            table[which] = other.kept[name][which]

    def merge(self, gathering: Gathering, weights: Weights) -> None:
        """Shared numbers become the weighted sum over each peer's gathering; who has no partner stays as it is."""
        share = weights(gathering)
        shared = self.layout.mask(shared=True).to(self.rows.device)
        some = (gathering.there & ~gathering.own).any(1).nonzero()[:, 0]
        chunk = max(1, _MERGE_BYTES // max(1, self.layout.width * self.rows.element_size()))
        merged = [self._sum(gathering, share, peers) for peers in some.split(chunk)]
        for peers, rows in zip(some.split(chunk), merged, strict=True):
            self.rows[peers] = rows if bool(shared.all()) else torch.where(shared, rows, self.rows[peers])

    def _sum(self, gathering: Gathering, share: Tensor, peers: Tensor) -> Tensor:
        """Weight times row, one partner after the other, multiply and add apart: the same bits alone or among all."""
        total = torch.zeros(len(peers), self.layout.width, dtype=self.rows.dtype, device=self.rows.device)
        for slot in range(gathering.ids.shape[1]):
            there = gathering.there[peers, slot]
            term = self.rows[gathering.ids[peers, slot].clamp(min=0)]
            term = term * share[peers, slot, None].to(self.rows.dtype)
            # Where nobody is there the row is left out, not multiplied by zero: it may be sick.
            total = total + torch.where(there[:, None], term, 0.0)
        return total


def gather(book: Tensor, partners: Tensor, me: Tensor, sick: Tensor) -> Gathering:
    """Partners (a set over the book, [P, B] bool) and oneself [P], without the sick [N], in ascending id."""
    ids, there = listed(partners, book)
    ids = torch.cat([torch.where(there, ids, torch.iinfo(torch.int64).max), me[:, None]], dim=1).sort(1).values
    there = ids != torch.iinfo(torch.int64).max
    ids = torch.where(there, ids, -1)
    there = there & ~sick[ids.clamp(min=0)]
    return Gathering(ids, there, ids == me[:, None])
