"""What a method is: two decisions on numbers only, for all peers at once or for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from homophily import sets
from homophily.introductions import Fingerprints
from homophily.randomness import Purpose, bits, uniform
from homophily.registry import Registry

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

    def rows(self, some: slice) -> View:
        """What some of the deciding peers know."""
        same = None if self.same is None else self.same[some]
        return View(self.me[some], self.seed[some], self.book[some], self.known[some], self.hops[some], same)


def _nothing_told(name: str, friends: Tensor) -> Tensor:
    raise ValueError(f"nobody hands over {name!r}: the method must list it in `shares`")


@dataclass
class Now:
    """A method's surroundings in one round: the view, the round (from 1) and what it remembers (leading axis P).

    Tables in ``memory`` are replaced, never written into: what was remembered before may still be read by others.
    """

    view: View
    round: int
    memory: Memory = field(default_factory=dict)
    told: Callable[[str, Tensor], Tensor] = _nothing_told
    """told(name, friends [P, F]): what each row's friends (ids, -1: nobody) remembered under ``name`` at the end of the
    last round, over my own book [P, B]: the first friend's entry where several have one, NaN where none has."""

    @property
    def known(self) -> Tensor:
        """[P, B] bool: the peers there are to choose from."""
        return self.view.known

    def recall(self, name: str, default: float = 0.0) -> Tensor:
        """A remembered table of numbers [P, B] float64, or the default everywhere."""
        if name in self.memory:
            return self.memory[name]
        return torch.full(self.known.shape, default, dtype=torch.float64, device=self.known.device)

    def recall_set(self, name: str) -> Tensor:
        """A remembered set [P, B] bool, or nobody."""
        return self.memory[name] if name in self.memory else torch.zeros_like(self.known)

    def pick(self, among: Tensor, k: int, purpose: Purpose, round: int | None = None) -> Tensor:
        """A uniform draw of ``k`` (all, if fewer) from a set; ``round``: that round's draw, to draw the same again."""
        return sets.pick(among, k, bits(*self._keys(purpose, round), self.view.book))

    def pick_weighted(self, among: Tensor, k: int, log_weights: Tensor, purpose: Purpose) -> Tensor:
        """``k`` of a set without replacement in proportion to exp(log_weights) [P, B]."""
        return sets.pick_weighted(among, k, log_weights, uniform(*self._keys(purpose), self.view.book))

    def top(self, among: Tensor, k: int, values: Tensor) -> Tensor:
        """The ``k`` of a set with the largest values [P, B]; ties are broken by a keyed draw on the peer's id."""
        return sets.top(among, k, values, self._ties(among))

    def ranked(self, among: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """A set's columns from the largest value [P, B] down: (columns [P, K], there [P, K]); ties as in ``top``."""
        return sets.ranked(among, values, self._ties(among))

    def _ties(self, among: Tensor) -> Tensor:
        """Tie keys of the members of a set; 0 elsewhere: sets are small, books may not be."""
        columns, there = sets.compact(among)
        drawn = bits(*self._keys(Purpose.TIES), self.view.book.gather(1, columns))
        return torch.zeros(among.shape, dtype=torch.int64, device=among.device).scatter_add_(
            1, columns, torch.where(there, drawn, 0)
        )

    def _keys(self, purpose: Purpose, round: int | None = None) -> tuple[Tensor, Tensor, int, int]:
        """Of a draw about a peer; the peer's id comes last."""
        return self.view.seed[:, None], self.view.me[:, None], self.round if round is None else round, purpose


class Method:
    """Base of all methods. Constructor parameters are its config keys; what changes lives in ``now.memory``."""

    metric: str | None = None  # the similarity it wants of the peers it meets; None: none
    hops: int = 1  # in a partial topology, it knows the peers within so many hops
    shares: tuple[str, ...] = ()  # remembered tables that a peer hands over with its model
    introduces: bool = False  # it wants everyone's fingerprint before the first round
    renew: int = 0  # and again every so many rounds

    def check(self, view: View) -> None:
        """Raise a UserError where the method cannot work in these surroundings."""

    def notes(self, view: View) -> list[str]:
        """Sentences a user should read about the method in these surroundings (all peers' view)."""
        return []

    def meet(self, now: Now) -> Tensor:
        """Whom to ask for a model: [P, B] bool."""
        raise NotImplementedError

    def choose(self, now: Now, met: Tensor, similarity: Tensor | None) -> Tensor:
        """With whom to merge, among those met: [P, B] bool.

        similarity: [P, B] float64, -inf for those who were not met or are sick; None where the method compares nobody.
        """
        return met

    def introduced(self, view: View, prints: Fingerprints, heard: Tensor | None) -> Memory:
        """What to remember from fingerprints [N], by id; heard: [P, H] ids each row has heard of, None: of everyone."""
        raise NotImplementedError

    def compares(self, now: Now) -> bool:
        """Whether similarities are wanted in this round: measuring them is not free."""
        return self.metric is not None

    def neighbours(self, now: Now, partners: Tensor) -> Tensor:
        """Whom it holds to be alike, for the scores: [P, B] bool, or non-negative weights."""
        return partners

    def in_rounds(self, rounds: int) -> Method:
        """The method with settings that follow from the number of rounds filled in."""
        return self

    def nominal(self, rounds: int) -> float | None:
        """Models a peer pulls over a run by the method's formula; None: there is none."""
        return None


methods: Registry[Callable[..., Any]] = Registry("method")
