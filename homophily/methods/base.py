"""What a method is: two decisions on numbers only, for all peers at once or for one."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_type_hints

import pydantic
import torch
from torch import Tensor

from homophily.errors import UserError
from homophily.federation import peer_sets as sets
from homophily.federation.view import View
from homophily.fingerprints.fingerprint import Fingerprints
from homophily.plugins.parameters import must_take, parsed
from homophily.plugins.registry import Registry
from homophily.randomness import Purpose, bits, uniform

Memory = dict[str, Tensor]


def nothing_told(name: str, friends: Tensor) -> Tensor:
    """What a method hears of a table that it does not share."""
    raise UserError(f"nobody hands over {name!r}: the method must list it in `shares`")


@dataclass
class Now:
    """A method's surroundings in one round: the view, the round (from 1) and what it remembers (leading axis P).

    Tables in ``memory`` are replaced, never written into: what was remembered before may still be read by others.
    """

    view: View
    round: int
    memory: Memory = field(default_factory=dict)
    told: Callable[[str, Tensor], Tensor] = nothing_told
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
        return sets.top(among, k, values, self.ties(among))

    def ranked(self, among: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """A set's columns from the largest value [P, B] down: (columns [P, K], there [P, K]); ties as in ``top``."""
        return sets.ranked(among, values, self.ties(among))

    def ties(self, among: Tensor) -> Tensor:
        """Tie keys of the members of a set; 0 elsewhere: sets are small, books may not be."""
        columns, there = sets.compact(among)
        drawn = bits(*self._keys(Purpose.TIES), self.view.book.gather(1, columns))
        return torch.zeros(among.shape, dtype=torch.int64, device=among.device).scatter_add_(
            1, columns, torch.where(there, drawn, 0)
        )

    def _keys(self, purpose: Purpose, round: int | None = None) -> tuple[Tensor, Tensor, int, int]:
        """Of a draw about a peer; the peer's id comes last."""
        return self.view.seed[:, None], self.view.me[:, None], self.round if round is None else round, purpose


_BOUNDS = {
    "k": (1, math.inf), "l": (1, math.inf), "hops": (1, math.inf), "t1": (1, math.inf), "alpha": (0, 1),
    "renew": (0, math.inf), "tau": (0, math.inf), "tau_max": (0, math.inf), "rho": (0, math.inf),
}  # fmt: skip


class Method:
    """Base of all methods. Constructor parameters are its config keys; what changes lives in ``now.memory``."""

    unknown: float = 0.0  # what its remembered tables say of a peer of whom nothing is known
    finds: bool = True  # it has an idea of who is alike, so that there is precision and recall
    metric: str | None = None  # the similarity it wants of the peers it meets; None: none
    hops: int = 1  # in a partial topology, it knows the peers within so many hops
    shares: tuple[str, ...] = ()  # remembered tables that a peer hands over with its model
    introduces: bool = False  # it wants everyone's fingerprint before the first round
    renew: int = 0  # and again every so many rounds

    def __post_init__(self) -> None:
        """Settings that have the same meaning in every method are within their bounds."""
        for key, (least, most) in _BOUNDS.items():
            value = getattr(self, key, None)
            if isinstance(value, int | float) and not (least <= value <= most and math.isfinite(value)):
                finite = " and finite" if isinstance(value, float) else ""
                allowed = f"at least {least}{finite}" if most == math.inf else f"from {least} to {most}"
                raise UserError(f"method.{key} = {value}: must be {allowed}")

    def check(self, view: View) -> None:
        """Raise an UnsuitableError where the method cannot work in these surroundings."""

    def notes(self, view: View, memory: Memory) -> list[str]:
        """Sentences a user should read about the method in these surroundings (all peers' view), and what it found."""
        return []

    def meet(self, now: Now) -> Tensor:
        """Whom to ask for a model: [P, B] bool."""
        raise UserError(f"method: {type(self).__name__} has no meet, which says whom to ask for a model")

    def choose(self, now: Now, met: Tensor, similarity: Tensor | None) -> Tensor:
        """With whom to merge, among those met: [P, B] bool.

        similarity: [P, B] float64, -inf for those who were not met or are sick; None where the method compares nobody.
        """
        return met

    def introduced(self, view: View, prints: Fingerprints, heard: Tensor | None) -> Memory:
        """What to remember from fingerprints [N], by id; heard: [P, H] ids each row has heard of, None: of everyone."""
        raise UserError(f"method: {type(self).__name__} introduces, and has no introduced, which says what to remember")

    def acquainted(self, view: View, prints: Fingerprints, ids: Tensor) -> Memory:
        """The same for one peer: prints are of the peers ``ids`` [M] it has heard of, ascending, itself among them."""
        raise UserError(f"method: {type(self).__name__} introduces, and has no acquainted, which a real peer asks")

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


_CALLED = {
    name: list(inspect.signature(function).parameters)[1:]
    for name, function in vars(Method).items()
    if inspect.isfunction(function) and not name.startswith("_")
}
_SAID: Any = pydantic.create_model("Said", **{name: (hint, ...) for name, hint in get_type_hints(Method).items()})  # type: ignore[call-overload]


def usable(method: Method) -> Method:
    """The method, if all it says and decides is of the kind that every method's is; anyone may have written it."""
    name = f"method: {type(method).__name__}"
    for decision, given in _CALLED.items():
        must_take(getattr(method, decision), given, f"{name}.{decision}")
    parsed(_SAID, {said: getattr(method, said) for said in _SAID.model_fields}, name)
    Method.__post_init__(method)
    return method


methods: Registry[Callable[..., Any]] = Registry("method")
