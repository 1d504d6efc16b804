"""The base class of methods. A method decides in each round which peers to ask for a model and which to merge with.

A simulation calls it once for all peers, a real peer for itself alone: P is the number of peers that decide in a call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated, Any, Literal, get_type_hints

import pydantic
import torch
from pydantic import Field
from torch import Tensor

from homophily.errors import UserError
from homophily.federation import peer_sets as sets
from homophily.federation.similarity import LossSamples, Metric, MetricCost, cost_of, metrics
from homophily.federation.view import View
from homophily.fingerprints.fingerprint import Fingerprints
from homophily.fingerprints.private import PrivateFingerprints
from homophily.plugins.parameters import accepted, checked, must_take, parsed, required
from homophily.plugins.registry import Registry
from homophily.randomness import Purpose, bits, uniform

Memory = dict[str, Tensor]


@dataclass(frozen=True)
class Findings:
    """What a method found in fingerprints: what peers remember of it, and diagnostics for the history of the run."""

    memory: Memory  # tables [P, ...], with a row for each peer that decides
    peers: Mapping[str, Tensor] = field(default_factory=dict)  # [M, ...], with a row for each fingerprint
    values: Mapping[str, Tensor] = field(default_factory=dict)  # about all fingerprints together


def nothing_shared(name: str, friends: Tensor) -> Tensor:
    """Raise a UserError: ``friends`` share no table called ``name``."""
    raise UserError(f"nobody shares {name!r}: the method must list it in `shares`")


@dataclass
class RoundContext:
    """What a method works with in one round. P peers decide, and each has B contacts.

    view: what these peers know of others.
    round: the round, from 1.
    memory: the tables that the method keeps from round to round, [P, ...]. To change a table, assign a new tensor. Do
    not write into the old one, which may still be read.
    shared: a function (name, friends [P, F]) -> [P, B]. It looks up the table ``name`` that other peers shared, as it
    was at the end of the last round. friends: for each peer, the ids of the peers whose tables are used, the preferred
    one first; -1 is padding. The result has one entry per contact: that of the first friend that has an entry for this
    contact, NaN if no friend has one.
    """

    view: View
    round: int
    memory: Memory = field(default_factory=dict)
    shared: Callable[[str, Tensor], Tensor] = nothing_shared

    @property
    def known(self) -> Tensor:
        """[P, B] bool: the peers that can be chosen."""
        return self.view.known

    def recall(self, name: str, default: float = 0.0) -> Tensor:
        """The remembered table ``name`` [P, B] float64, or ``default`` everywhere if there is none yet."""
        if name in self.memory:
            return self.memory[name]
        return torch.full(self.known.shape, default, dtype=torch.float64, device=self.known.device)

    def recall_set(self, name: str) -> Tensor:
        """The remembered set ``name`` [P, B] bool, or the empty set if there is none yet."""
        return self.memory[name] if name in self.memory else torch.zeros_like(self.known)

    def pick(self, among: Tensor, k: int, purpose: Purpose, round: int | None = None) -> Tensor:
        """Draw ``k`` peers uniformly ``among`` a set [P, B] (all, if there are fewer): [P, B] bool.

        purpose: draws in the same round are independent only if their purposes differ; round: repeat the draw of this
        round, None: the current round.
        """
        return sets.pick(among, k, bits(*self._keys(purpose, round), self.view.contacts))

    def pick_weighted(self, among: Tensor, k: int, log_weights: Tensor, purpose: Purpose) -> Tensor:
        """Draw ``k`` peers ``among`` a set without replacement, in proportion to exp(log_weights) [P, B].

        purpose: as for ``pick``.
        """
        return sets.pick_weighted(among, k, log_weights, uniform(*self._keys(purpose), self.view.contacts))

    def top(self, among: Tensor, k: int, values: Tensor) -> Tensor:
        """The ``k`` peers ``among`` a set with the largest values [P, B]. Ties are broken at random, by seed and id."""
        return sets.top(among, k, values, self.ties(among))

    def ranked(self, among: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Sort the members of a set ``among`` by ``values`` [P, B], the largest first: (columns [P, K], mask [P, K]).

        columns: positions in the lists of contacts; mask: False for padding. Ties are broken as in ``top``.
        """
        return sets.ranked(among, values, self.ties(among))

    def ties(self, among: Tensor) -> Tensor:
        """Random keys of the peers ``among`` a set, which break ties; 0 for others."""
        columns, mask = sets.compact(among)  # only for members: sets are small, contact lists may be large
        drawn = bits(*self._keys(Purpose.TIES), self.view.contacts.gather(1, columns))
        return torch.zeros(among.shape, dtype=torch.int64, device=among.device).scatter_add_(
            1, columns, torch.where(mask, drawn, 0)
        )

    def _keys(self, purpose: Purpose, round: int | None = None) -> tuple[Tensor, Tensor, int, int]:
        """The keys of a random draw; callers append the id of the peer that may be drawn."""
        return self.view.seed[:, None], self.view.me[:, None], self.round if round is None else round, purpose


Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]

# Keys that several methods have, with their meaning.
Partners = Annotated[Count, Field(description="partners per round: the peers whose models are merged")]
Candidates = Annotated[
    Count, Field(description="random candidates per round, whose models are compared with one's own")
]
FirstStage = Annotated[
    Count | None,
    Field(
        description="rounds of the first stage. Left out: a third of `rounds`, rounded down, at least 1; a run that is "
        "extended later keeps the number"
    ),
]
MetricName = Annotated[
    str, Field(description="how similarity is measured: a registered metric or `package.module:name`")
]
LossOn = Annotated[
    Literal["own", "peer"],
    Field(
        description='for `metric = "loss"`: test the peer\'s model on one\'s own data (`"own"`), or one\'s own model '
        'on the peer\'s (`"peer"`)'
    ),
]
LossesOf = Annotated[
    LossSamples,
    Field(
        description='for `metric = "loss"`: compute losses on training samples (`"train"`), or on samples that are '
        'held out (`"validation"`), which needs `data.validation`'
    ),
]
UpdateShare = Annotated[
    Share,
    Field(
        description='for `metric = "panm"`: the weight of this round\'s updates; the displacements from the initial '
        "weights have the rest"
    ),
]
Reach = Annotated[
    Count,
    Field(
        description="in a partial topology, a peer knows the peers within this many hops; no effect in a full topology"
    ),
]
Renewal = Annotated[
    int, Field(ge=0, description="number of rounds after which fingerprints are computed and sent again; 0: never")
]


class Method:
    """Base class of all methods: subclass it and define ``meet``.

    The parameters of the constructor are the config keys of the method. The object itself never changes; the method
    stores what it remembers in ``now.memory``.
    """

    unknown: float = 0.0  # the entry in remembered tables for a peer about which nothing is known
    finds: bool = True  # whether the method estimates which peers are similar: precision and recall are then computed
    metric: str | None = None  # the similarity metric that compares the peers it meets; None: they are not compared
    hops: Reach = 1
    shares: tuple[str, ...] = ()  # the remembered tables that a peer sends with its model
    uses_fingerprints: bool = False  # whether the method needs the fingerprints of all peers before the first round
    renew: Renewal = 0

    def check(self, view: View) -> None:
        """Raise an UnsuitableError if the method cannot work with this ``view`` of all peers."""

    def notes(self, view: View, memory: Memory) -> list[str]:
        """Messages for the end of a simulation, from the ``view`` of all peers and the final ``memory``."""
        return []

    def peer_notes(self, view: View, memory: Memory) -> list[str]:
        """Messages for the end of a real peer's run, from its own ``view`` (P = 1) and its final ``memory``."""
        return []

    def meet(self, now: RoundContext) -> Tensor:
        """Return the peers to ask for a model, a subset of ``now.known``: [P, B] bool."""
        raise UserError(f"method: {type(self).__name__} has no meet, which says whom to ask for a model")

    def choose(self, now: RoundContext, met: Tensor, similarity: Tensor | None) -> Tensor:
        """Return the peers to merge with, a subset of ``met``: [P, B] bool. It may set tables of ``now.memory``.

        similarity: [P, B] float64, -inf for peers that were not met or have diverged; None if no peers are compared.
        """
        return met

    def on_fingerprints(self, view: View, prints: Fingerprints, ids: Tensor, limited: bool) -> Memory | Findings:
        """Return what the peers of ``view`` remember of the fingerprints ``prints``: the tables of their memory.

        A method with diagnostics for the history of the run returns ``Findings``.
        ids: [M], ascending, the peers that the fingerprints belong to; limited: the contacts of a peer, with which it
        can merge, are only some of these peers.
        """
        raise UserError(
            f"method: {type(self).__name__} uses fingerprints, and has no on_fingerprints, which says what to remember"
        )

    def on_released(self, view: View, prints: PrivateFingerprints, ids: Tensor, limited: bool) -> Memory | Findings:
        """Return what the peers of ``view`` remember of the private fingerprints ``prints`` that are released under
        [privacy].

        ids, limited: as for ``on_fingerprints``. The own fingerprint is among them as it was released: a decision that
        uses more would not be private.
        """
        raise UserError(f"method: {type(self).__name__} has no on_released, so it cannot use private fingerprints")

    def diagnostics(self, now: RoundContext, met: Tensor, similarity: Tensor | None) -> Mapping[str, Tensor]:
        """Return how a few peers chose, for the history of the run: tables [P, ...] by name.

        It is called after ``choose`` with the same ``met`` and ``similarity``, for the peers that are watched;
        ``now.memory`` is the memory after that choice. If the run records nothing, it is not called.
        """
        return {}

    def reports(self, now: RoundContext) -> bool:
        """Whether ``diagnostics`` is called in the round of ``now``: by default in all rounds, if it is defined."""
        return type(self).diagnostics is not Method.diagnostics

    def compares(self, now: RoundContext) -> bool:
        """Whether similarities are needed in the round of ``now``; return False to save their cost."""
        return self.metric is not None

    def neighbours(self, now: RoundContext, partners: Tensor) -> Tensor:
        """Return whom each peer of ``now`` considers similar, for precision and recall: [P, B] bool, or weights >= 0.

        partners: [P, B] bool, the peers that it merged with in this round.
        """
        return partners

    def in_rounds(self, rounds: int) -> Method:
        """Return the method with those settings filled in that depend on the number of ``rounds``."""
        return self

    def nominal(self, rounds: int) -> float | None:
        """Models that a peer receives in ``rounds`` rounds by the formula of the method; None: it has no formula."""
        return None


_PARAMETERS = {
    name: list(inspect.signature(function).parameters)[1:]
    for name, function in vars(Method).items()
    if inspect.isfunction(function) and not name.startswith("_")
}
_ATTRIBUTES: Any = pydantic.create_model(
    "Declared", **{name: (hint, ...) for name, hint in get_type_hints(Method, include_extras=True).items()}
)  # type: ignore[call-overload]


def usable(method: Method) -> Method:
    """Return the method, or raise a UserError if a function, a setting or a declared attribute cannot be used."""
    name = f"method: {type(method).__name__}"
    for function, given in _PARAMETERS.items():
        must_take(getattr(method, function), given, f"{name}.{function}")
    if is_dataclass(method):
        keys = {field.name: getattr(method, field.name) for field in fields(method) if field.init}
        plain = {key: value for key, value in keys.items() if isinstance(value, int | float | str | None)}
        checked("method", f"method {type(method).__name__}", type(method), plain)
    parsed(_ATTRIBUTES, {key: getattr(method, key) for key in _ATTRIBUTES.model_fields}, name)
    return method


def metric_of(method: Method) -> tuple[Metric, dict[str, Any]] | None:
    """Return a method's metric and the settings that the metric takes from the method; None if it compares no peers."""
    if method.metric is None:
        return None
    metric = metrics.get(method.metric)
    given = {key: getattr(method, key, None) for key in (accepted(metric) or [])[1:]}  # the first is ``pairs``
    keys = {key: value for key, value in given.items() if value is not None and not callable(value)}
    if missing := [key for key in required(metric)[1:] if key not in keys]:
        name = type(method).__name__
        raise UserError(f"metric = {method.metric!r} needs {missing[0]}, which method {name} does not have")
    must_take(metric, ["pairs"], f"metric = {method.metric!r}", keys)
    return metric, keys


def metric_cost(method: Method) -> MetricCost:
    """Return what must be sent for each peer that a method compares."""
    found = metric_of(method)
    return MetricCost() if found is None else cost_of(*found)


methods: Registry[Callable[..., Any]] = Registry("method")
