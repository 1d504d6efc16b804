"""What a real peer has in its hands once models have come: measured and merged by the simulator's own code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from homophily.federation.merging import Merge
from homophily.federation.rows import Federation, gather
from homophily.peer.wire import ModelParcel
from homophily.simulation.pairwise import Measurer, Models, table_of


@dataclass(frozen=True)
class Me:
    """What stays the same from round to round."""

    id: int
    samples: int
    start: Tensor  # [1, D]: the model before the first round
    book: Tensor  # [B] int64: ids of the others, ascending


class Gathered:
    """My model and those pulled, as rows of a small federation: mine first to measure, in ascending id to merge."""

    def __init__(
        self,
        me: Me,
        federation: Federation,
        before: Tensor | None,
        met: Tensor,
        parcels: Sequence[ModelParcel],
        sick: bool,
    ) -> None:
        """parcels: of those met [1, B], in the order of the book."""
        self._me, self._mine, self._met, self._parcels = me, federation, met, parcels
        self._columns = met[0].nonzero()[:, 0]
        self._ids = me.book[self._columns]
        self._shared = federation.layout.mask(shared=True).to(federation.rows.device)
        self._rows = torch.cat([federation.rows, *(self._whole(p.row) for p in self._parcels)])
        self._sick = torch.tensor([sick, *(p.row is None for p in self._parcels)])
        self._before = None
        if before is not None:
            earlier = [p.row if p.before is None else p.before for p in self._parcels]  # None: it has not trained
            self._before = torch.cat([before, *map(self._whole, earlier)])

    def _whole(self, numbers: Tensor | None) -> Tensor:
        """What travelled, with my own personal numbers around it: [1, D]; nothing but NaN where the model is sick."""
        row = self._mine.rows.clone()
        row[0, self._shared] = torch.nan if numbers is None else numbers.to(row.device)
        return row

    def similarity(self, measurer: Measurer) -> Tensor:
        """[1, B] float64: to each peer met, -inf elsewhere."""
        you = torch.arange(1, len(self._columns) + 1)
        found = torch.zeros(0, dtype=torch.float64)
        if len(you):
            now = Federation(self._mine.layout, self._rows, self._mine.kept)
            models = Models(now, self._before, self._me.start.expand(len(you) + 1, -1))
            found = measurer.similarities(models, torch.zeros_like(you), you)
        return table_of(found, self._met, self._sick[you])

    def told(self, name: str, friends: Tensor) -> Tensor:
        """[1, B] float64: what the first of my friends [1, F] with an entry says of each peer in my book."""
        book = self._me.book
        said = torch.full((1, len(book)), torch.nan, dtype=torch.float64)
        by_id = dict(zip(self._ids.tolist(), self._parcels, strict=True))
        for friend in reversed(friends[0].tolist()):
            parcel = by_id.get(friend)
            if parcel is None or parcel.book is None or name not in parcel.tables:
                continue
            saying = looked_up(parcel.tables[name], parcel.book, book, torch.nan)
            said = torch.where(saying.isnan(), said, saying)
        return said

    def merge(self, how: Merge, partners: Tensor, similarity: Tensor | None) -> Tensor:
        """Merge my model with the partners' [1, B]; whose were merged, [1, B] bool."""
        ids = torch.cat([torch.tensor([self._me.id]), self._ids])
        order = ids.argsort()
        place = order.argsort()  # where in ascending order everyone is, I first
        alike = None if similarity is None else similarity[:, self._columns]
        samples = torch.tensor([self._me.samples, *(p.samples for p in self._parcels)])
        gathering = gather(place[None, 1:], partners[:, self._columns], place[:1], samples[order], alike)
        gathering = gathering.without(self._sick[order])
        rows = Federation(self._mine.layout, self._rows[order], {})
        merged = rows.merge(gathering, how)
        out = torch.zeros_like(partners)
        if bool(merged.any()):
            self._mine.rows[0] = rows.rows[0]  # a gathering of one is merged into the first row
            positions = gathering.ids[merged]
            back = torch.full((len(ids),), -1)
            back[place[1:]] = self._columns
            out[0, back[positions]] = True
        return out


def looked_up(table: Tensor, book: Tensor, wanted: Tensor, nothing: float) -> Tensor:
    """Of a table over a ``book`` of ascending ids [..., B] the columns of the ids wanted [W], or nothing."""
    if not len(book):
        return table.new_full((*table.shape[:-1], len(wanted)), nothing)
    place = torch.searchsorted(book, wanted).clamp(max=len(book) - 1)
    return table[..., place].masked_fill(book[place] != wanted, nothing)
