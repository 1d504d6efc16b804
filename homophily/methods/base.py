"""What a method is: two decisions on numbers only, for all peers at once or for one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import pydantic
import torch
from pydantic import Field
from torch import Tensor

from homophily.errors import UserError
from homophily.federation import peer_sets as sets
from homophily.federation.similarity import Metric, MetricCost, cost_of, metrics
from homophily.federation.view import View
from homophily.fingerprints.fingerprint import Fingerprints
from homophily.plugins.parameters import accepted, checked, must_take, parsed, required
from homophily.plugins.registry import Registry
from homophily.randomness import Purpose, bits, uniform

Memory = dict[str, Tensor]


def nothing_shared(name: str, friends: Tensor) -> Tensor:
    """Refuse to look up a table that a method does not share."""
    raise UserError(f"nobody shares {name!r}: the method must list it in `shares`")


@dataclass
class RoundContext:
    """A method's surroundings in one round: the view, the round (from 1) and what it remembers (leading axis P).

    Tables in ``memory`` are replaced, never written into: what was remembered before may still be read by others.
    """

    view: View
    round: int
    memory: Memory = field(default_factory=dict)
    shared: Callable[[str, Tensor], Tensor] = nothing_shared
    """shared(name, friends [P, F]): what each row's friends (ids, -1: nobody) remembered under ``name`` at the end of
    the last round, about its own contacts [P, B]: the first friend's entry if several have one, NaN if none has."""

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
        return sets.pick(among, k, bits(*self._keys(purpose, round), self.view.contacts))

    def pick_weighted(self, among: Tensor, k: int, log_weights: Tensor, purpose: Purpose) -> Tensor:
        """``k`` of a set without replacement in proportion to exp(log_weights) [P, B]."""
        return sets.pick_weighted(among, k, log_weights, uniform(*self._keys(purpose), self.view.contacts))

    def top(self, among: Tensor, k: int, values: Tensor) -> Tensor:
        """The ``k`` of a set with the largest values [P, B]; ties are broken by a keyed draw on the peer's id."""
        return sets.top(among, k, values, self.ties(among))

    def ranked(self, among: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """A set's columns from the largest value [P, B] down: (columns [P, K], mask [P, K]); ties as in ``top``."""
        return sets.ranked(among, values, self.ties(among))

    def ties(self, among: Tensor) -> Tensor:
        """Tie keys of the members of a set; 0 elsewhere: sets are small, contact lists may not be."""
        columns, mask = sets.compact(among)
        drawn = bits(*self._keys(Purpose.TIES), self.view.contacts.gather(1, columns))
        return torch.zeros(among.shape, dtype=torch.int64, device=among.device).scatter_add_(
            1, columns, torch.where(mask, drawn, 0)
        )

    def _keys(self, purpose: Purpose, round: int | None = None) -> tuple[Tensor, Tensor, int, int]:
        """Of a draw about a peer; the peer's id comes last."""
        return self.view.seed[:, None], self.view.me[:, None], self.round if round is None else round, purpose


Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Method:
    """Base of all methods. Constructor parameters are its config keys; what changes lives in ``now.memory``."""

    unknown: float = 0.0  # what its remembered tables say of a peer of whom nothing is known
    finds: bool = True  # it has an idea of who is alike, so that there is precision and recall
    metric: str | None = None  # the similarity it wants of the peers it meets; None: none
    hops: Count = 1  # in a partial topology, it knows the peers within so many hops
    shares: tuple[str, ...] = ()  # remembered tables that a peer hands over with its model
    uses_fingerprints: bool = False  # it wants everyone's fingerprint before the first round
    renew: Annotated[int, Field(ge=0)] = 0  # and again every so many rounds; 0: never

    def check(self, view: View) -> None:
        """Raise an UnsuitableError if the method cannot work in these surroundings."""

    def notes(self, view: View, memory: Memory) -> list[str]:
        """Notes for the user about the method in these surroundings (all peers' view), and what it found."""
        return []

    def peer_notes(self, view: View, memory: Memory) -> list[str]:
        """Notes for the user of one real peer (its own view, P = 1), and what it found."""
        return []

    def meet(self, now: RoundContext) -> Tensor:
        """Whom to ask for a model: [P, B] bool."""
        raise UserError(f"method: {type(self).__name__} has no meet, which says whom to ask for a model")

    def choose(self, now: RoundContext, met: Tensor, similarity: Tensor | None) -> Tensor:
        """With whom to merge, among those met: [P, B] bool.

        similarity: [P, B] float64, -inf for peers that were not met or have diverged; None if nobody is compared.
        """
        return met

    def on_fingerprints(self, view: View, prints: Fingerprints, ids: Tensor, known_to: Tensor | None) -> Memory:
        """What to remember from the fingerprints of the peers ``ids`` [M], ascending.

        known_to: [P, H] ids, padded with -1: those that each row knows; None: each row knows all.
        """
        raise UserError(
            f"method: {type(self).__name__} uses fingerprints, and has no on_fingerprints, which says what to remember"
        )

    def compares(self, now: RoundContext) -> bool:
        """Whether similarities are wanted in this round: measuring them is not free."""
        return self.metric is not None

    def neighbours(self, now: RoundContext, partners: Tensor) -> Tensor:
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
_DECLARED: Any = pydantic.create_model(
    "Declared", **{name: (hint, ...) for name, hint in get_type_hints(Method, include_extras=True).items()}
)  # type: ignore[call-overload]


def usable(method: Method) -> Method:
    """The method, if all that it declares and decides is as every method's; anyone may have written it."""
    name = f"method: {type(method).__name__}"
    for decision, given in _CALLED.items():
        must_take(getattr(method, decision), given, f"{name}.{decision}")
    if is_dataclass(method):
        keys = {field.name: getattr(method, field.name) for field in fields(method) if field.init}
        plain = {key: value for key, value in keys.items() if isinstance(value, int | float | str | None)}
        checked("method", f"method {type(method).__name__}", type(method), plain)
    parsed(_DECLARED, {declared: getattr(method, declared) for declared in _DECLARED.model_fields}, name)
    return method


def metric_of(method: Method) -> tuple[Metric, dict[str, Any]] | None:
    """The method's metric and those of the method's settings that it takes; None: it compares nobody."""
    if method.metric is None:
        return None
    metric = metrics.get(method.metric)
    given = {key: getattr(method, key, None) for key in (accepted(metric) or [])[1:]}  # the first takes the pairs
    keys = {key: value for key, value in given.items() if value is not None and not callable(value)}
    if lacking := [key for key in required(metric)[1:] if key not in keys]:
        name = type(method).__name__
        raise UserError(f"metric = {method.metric!r} needs {lacking[0]}, which method {name} does not have")
    must_take(metric, ["pairs"], f"metric = {method.metric!r}", keys)
    return metric, keys


def metric_cost(method: Method) -> MetricCost:
    """What travels for each peer that is met in a comparison."""
    found = metric_of(method)
    return MetricCost() if found is None else cost_of(*found)


methods: Registry[Callable[..., Any]] = Registry("method")
