"""What a method is: two decisions on numbers only, for all peers at once or for one."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from homophily.randomness import Purpose, bits
from homophily.registry import Registry

methods: Registry[type[Method]] = Registry("method")

Memory = dict[str, Tensor]


@dataclass(frozen=True)
class View:
    """What the deciding peers know. P rows decide; each row's book lists B peers, ids ascending, padded with -1."""

    me: Tensor  # [P] int64: who decides
    seed: Tensor  # [P] int64
    book: Tensor  # [P, B] int64
    known: Tensor  # [P, B] bool: a peer, and not myself
    hops: Tensor  # [P, B] int64: how far its models travel
    same: Tensor | None  # [P, B] bool: truly of my cluster; only a simulation knows


@dataclass
class Now:
    """A method's surroundings in one round: the view, the round (from 1) and what it remembers (leading axis P)."""

    view: View
    round: int
    memory: Memory = field(default_factory=dict)

    @property
    def known(self) -> Tensor:
        """[P, B] bool: the peers there are to choose from."""
        return self.view.known

    def draw(self, purpose: Purpose, round: int | None = None) -> Tensor:
        """Random keys [P, B] int64, one per known peer's id, fresh each round (or those of ``round``)."""
        view, t = self.view, self.round if round is None else round
        return bits(view.seed[:, None], view.me[:, None], t, purpose, view.book)


class Method:
    """Base of all methods. Constructor parameters are its config keys; what changes lives in ``now.memory``."""

    metric: str | None = None  # the similarity it wants measured for the peers it meets; None: none

    def meet(self, now: Now) -> Tensor:
        """Whom to ask for a model: [P, B] bool."""
        raise NotImplementedError

    def choose(self, now: Now, met: Tensor, similarity: Tensor | None) -> Tensor:
        """With whom to merge, among those met: [P, B] bool. similarity: [P, B] float64, -inf where not measured."""
        return met

    def neighbours(self, now: Now, partners: Tensor) -> Tensor:
        """Whom it holds to be alike, for the scores: [P, B] bool, or non-negative weights."""
        return partners
