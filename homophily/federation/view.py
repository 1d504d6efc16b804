"""What the deciding peers know: their contacts, the hops to them, and, in a simulation, the true clusters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class View:
    """What the deciding peers know. P rows decide; each row has B contacts, ids ascending, padded with -1."""

    me: Tensor  # [P] int64: the id of the deciding peer
    seed: Tensor  # [P] int64
    contacts: Tensor  # [P, B] int64
    known: Tensor  # [P, B] bool: neither padding nor the peer itself
    hops: Tensor  # [P, B] int64: distance in the topology
    same: Tensor | None  # [P, B] bool: truly in the same cluster; only a simulation knows

    def rows(self, some: slice | Tensor) -> View:
        """Return the view of some of the deciding peers. some: a slice, or rows [W] int64."""
        if isinstance(some, slice) and some.start == 0 and some.stop >= len(self.me):
            return self
        same = None if self.same is None else self.same[some]
        return View(self.me[some], self.seed[some], self.contacts[some], self.known[some], self.hops[some], same)

    def map(self, change: Callable[[Tensor], Tensor]) -> View:
        """Return the view with ``change`` applied to every table."""
        me, seed, contacts, known, hops = map(change, (self.me, self.seed, self.contacts, self.known, self.hops))
        return View(me, seed, contacts, known, hops, None if self.same is None else change(self.same))
