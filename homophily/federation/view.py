"""What deciding peers know: their contacts, how far these are, and in a simulation the true clusters."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class View:
    """What the deciding peers know. P rows decide; each row has B contacts, ids ascending, padded with -1."""

    me: Tensor  # [P] int64: who decides
    seed: Tensor  # [P] int64
    contacts: Tensor  # [P, B] int64
    known: Tensor  # [P, B] bool: a peer, and not myself
    hops: Tensor  # [P, B] int64: how far its models travel
    same: Tensor | None  # [P, B] bool: truly of my cluster; only a simulation knows

    def rows(self, some: slice) -> View:
        """What some of the deciding peers know."""
        if some.start == 0 and some.stop >= len(self.me):
            return self
        same = None if self.same is None else self.same[some]
        return View(self.me[some], self.seed[some], self.contacts[some], self.known[some], self.hops[some], same)
