"""The exchange of a round, after training: meet, compare, choose, merge; and its communication cost.

All peers of a simulation and one real peer use the same code: a source brings the models of others, an observer
records what happened. An exchange has three steps, the methods ``meet``, ``choose`` and ``conclude``. The caller
computes the similarities after ``meet`` and the merges after ``choose``, so that it can compute those of several runs
together.

Shapes: P peers decide in this process, and each has B contacts, with padding (see View). M models are in this process
(see LocalModels). Q is the number of pairs to compare. K is the number of models in a merge group, with padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from homophily.errors import UserError
from homophily.federation.merging import Merge, MergeGroup, gather, needs_similarity
from homophily.federation.peer_sets import compact
from homophily.federation.rows import Federation
from homophily.federation.view import View
from homophily.fingerprints.private import PrivateFingerprints
from homophily.methods import dispatch
from homophily.methods.base import Findings, Memory, Method, RoundContext
from homophily.plugins.validation import answer
from homophily.runs.fields import Guarded, RoundMetrics, Summary
from homophily.runs.record_file import Arrays
from homophily.simulation.communication import Traffic
from homophily.simulation.merge_guard import MergeGuard
from homophily.simulation.observers import Observer, RoundRecord
from homophily.simulation.pairwise import PairwiseEvaluator, refuse_nan, similarity_table
from homophily.simulation.recording import Entries, RecordedPeers
from homophily.simulation.shards import ONE_PROCESS, Shards, check_alike, of_one_shape, rows_of, same, total
from homophily.simulation.sources import Heard, LocalModels, ModelSource, Published


@dataclass(frozen=True)
class SimilarityRequest:
    """Similarities to compute: of the models in the rows ``me`` [Q] and ``you`` [Q]."""

    evaluator: PairwiseEvaluator
    models: LocalModels
    me: Tensor
    you: Tensor

    def compute(self) -> Tensor:
        """Return the similarities: [Q] float64."""
        return self.evaluator.similarities(self.models, self.me, self.you)


@dataclass(frozen=True)
class MergeRequest:
    """A merge to compute: of the models of a group, into those of a federation."""

    federation: Federation
    models: LocalModels
    group: MergeGroup
    how: Merge

    def compute(self) -> Tensor:
        """Merge; return whose models were merged: [P, K] bool."""
        diverged = self.models.diverged.to(self.group.ids.device)
        return self.federation.merge(self.group.without(diverged), self.how, self.models.rows)


class Exchange(Protocol):
    """How models pass between peers, or between clients and a server."""

    traffic: Traffic

    @property
    def recorded(self) -> RecordedPeers | None:
        """The peers in the run's history; None: it has none."""

    def before_training(self, federation: Federation, round: int, active: Tensor) -> Tensor:
        """Who trains in this round: [P] bool, like ``active`` on the CPU."""

    def wants_rows_before(self, round: int) -> bool:
        """Whether this round's exchange needs the models before training."""

    def meet(
        self, federation: Federation, before: Tensor | None, round: int, stopped: Tensor, diverged: Tensor
    ) -> SimilarityRequest | None:
        """Begin the exchange after training; returns the similarities to measure, if any.

        stopped: [P] bool on the CPU; diverged: [P] bool, on any device.
        """

    def choose(self, similarity: Tensor | None) -> MergeRequest | None:
        """Continue with these similarities; returns the models to merge, if any."""

    def conclude(self, merged: Tensor | None) -> RoundMetrics:
        """End the exchange. merged: whose models were merged. Returns the round's metrics."""

    def entries(self) -> Entries:
        """What the exchange that is over adds to the run's history, beside scores."""

    def summary(self, rounds: int) -> Summary:
        """Over the whole run."""

    def final(self) -> dict[str, Tensor]:
        """Merge counts and neighbours, for the folder of a finished run."""

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold."""

    def numbers(self) -> dict[str, Any]:
        """The rest of a checkpoint, as JSON."""

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Continue from a checkpoint."""


@dataclass
class _Round:
    """An exchange that has begun."""

    round: int
    view: View
    federation: Federation
    models: LocalModels
    asked: Tensor  # [P, B] bool: the peers that the method asked for a model
    stopped: Tensor  # [P] bool, on the device of the decisions
    diverged: Tensor  # [P] bool, on any device
    compares: bool  # similarities are measured
    similarity: Tensor | None = None  # [P, B] float64
    partners: Tensor | None = None  # [P, B] bool
    left_out: Tensor | None = None  # [P, B] bool: partners that the merge guard left out; None: there is no guard
    group: MergeGroup | None = None


class PeerExchange:
    """The exchange between peers by a method's two decisions, which are made on the device of the view."""

    def __init__(
        self,
        method: Method,
        merge: Merge,
        evaluator: PairwiseEvaluator | None,
        source: ModelSource,
        observer: Observer,
        peers: int,
        device: torch.device,
        shards: Shards = ONE_PROCESS,
        everyone: int = 0,
        guard: MergeGuard | None = None,
    ) -> None:
        """peers: how many decide in this process; device: of the decisions; everyone: peers of all processes."""
        self._shards, self._everyone = shards, everyone or peers
        self.method, self.merge, self.evaluator, self.guard = method, merge, evaluator, guard
        self.source, self.observer = source, observer
        self.memory: Memory = {}
        self.traffic = Traffic(peers, device, shards, everyone)
        self._trained = torch.ones(peers, dtype=torch.bool, device=device)
        self._now: _Round | None = None
        self._diagnostics: dict[str, Any] = {}  # of the current round, arrays by name

    @property
    def recorded(self) -> RecordedPeers | None:
        return self.observer.recorded

    def before_training(self, federation: Federation, round: int, active: Tensor) -> Tensor:
        """Every active peer trains from its own model.

        Fingerprints are exchanged before the first round, and again every ``renew`` rounds.
        """
        self._trained = active.to(self._trained.device)
        self._diagnostics = {}
        if self.method.uses_fingerprints:
            heard = self.source.fingerprints(round, self.method.renew, active, needed=not self.memory)
            if heard is not None:
                self._take_fingerprints(heard)
        return active

    def _take_fingerprints(self, heard: Heard) -> None:
        prints, about = heard.prints, (heard.ids, heard.limited)
        if isinstance(prints, PrivateFingerprints):
            found = self.method.on_released(heard.view, prints, *about)
        else:
            found = self.method.on_fingerprints(heard.view, prints, *about)
        findings = found if isinstance(found, Findings) else Findings(found)
        remembered = dispatch.remembered(findings.memory, len(heard.view.me))
        if not dispatch.is_bundled(self.method):
            check_alike(self._shards, remembered, "on_fingerprints", widths=False)
        self.memory = self.memory | of_one_shape(self._shards, remembered)
        self.traffic.extra_bytes(heard.bytes)
        dispatch.reported(findings.values, None, "Findings.values")
        dispatch.reported(findings.peers, len(heard.ids), "Findings.peers")
        if self.recorded is not None:
            self._diagnostics |= self.recorded.found(findings, heard.ids)

    def wants_rows_before(self, round: int) -> bool:
        if self.source.asynchronous:
            return self.evaluator is not None and self.evaluator.cost.updates
        return self._updates(self.source.view(round), round)

    def _updates(self, view: View, round: int) -> bool:
        """Whether the metric compares what this round's training changed."""
        return self.evaluator is not None and self.evaluator.cost.updates and self._compares(view, round)

    def _compares(self, view: View, round: int) -> bool:
        """Whether similarities are measured in this round."""
        if self.evaluator is None:
            return False
        return needs_similarity(self.merge) or self._method_compares(view, round)

    def _method_compares(self, view: View, round: int) -> bool:
        return dispatch.compares(self.method, RoundContext(view, round, self.memory))

    def meet(
        self, federation: Federation, before: Tensor | None, round: int, stopped: Tensor, diverged: Tensor
    ) -> SimilarityRequest | None:
        """Publish the models, let the method choose whom to ask, and fetch those models.

        ``diverged`` is not read here, because that would wait for the GPU.
        """
        shared = {name: self.memory[name] for name in self.method.shares if name in self.memory}
        self.source.publish(round, Published(federation, before, diverged, self._trained, shared))
        view = self.source.view(round)
        stopped = stopped.to(view.me.device)
        asked = dispatch.meet(self.method, view, round, self.memory)
        met = asked & view.known & ~stopped[:, None]
        compares = same(self._shards, self._compares(view, round), "method: compares")
        models = self.source.fetch(round, met, updates=before is not None and self._updates(view, round))
        self._now = _Round(round, view, federation, models, asked, stopped, diverged, compares)
        if not compares:
            return None
        assert self.evaluator is not None
        row, column = models.met.nonzero(as_tuple=True)
        return SimilarityRequest(self.evaluator, models, row, models.local(view.contacts[row, column]))

    def choose(self, similarity: Tensor | None) -> MergeRequest:
        now = self._now
        assert now is not None
        view, models = now.view, now.models
        keeps_memory = now.stopped
        if similarity is not None:
            keeps_memory = self._take(similarity, now)
        wanted = now.similarity if self._method_compares(view, now.round) else None
        shared = dispatch.SharedTables(models.tables, models.contacts, models.local)
        now.partners, memory = dispatch.choose(
            self.method, view, now.round, self.memory, now.asked, models.met, wanted, shared
        )
        if not dispatch.is_bundled(self.method):
            check_alike(self._shards, memory, "choose")
        if self.recorded is not None and same(
            self._shards, self.method.reports(RoundContext(view, now.round, memory)), "method: reports"
        ):
            self._diagnostics |= self._watched_choices(self.recorded, now, memory, wanted)
        self.memory = {name: self._kept(name, table, keeps_memory) for name, table in memory.items()}
        if self.guard is not None:
            now.left_out = self.guard.left_out(models, view, now.partners)
            now.partners = now.partners & ~now.left_out
        now.group = gather(view, now.partners, models.local, models.samples, now.similarity)
        return MergeRequest(now.federation, models, now.group, self.merge)

    def _watched_choices(
        self, recorded: RecordedPeers, now: _Round, memory: Memory, similarity: Tensor | None
    ) -> Arrays:
        """What the method reports of the choices of the watched peers, whichever process they are in."""

        def some(table: Tensor) -> Tensor:
            return rows_of(self._shards, table, recorded.watched, self._everyone)

        view = now.view.map(some)
        memory = {name: some(table) for name, table in memory.items()}
        met, similarity = some(now.models.met), None if similarity is None else some(similarity)
        rows = torch.arange(len(view.me), device=view.me.device)
        found = dispatch.diagnostics(self.method, view, rows, now.round, memory, met, similarity)
        return recorded.reported(found)

    def _take(self, similarity: Tensor, now: _Round) -> Tensor:
        """Store the similarities [Q] of the peers met; returns the peers that keep their memory: [P] bool.

        These peers have stopped, or measured nothing: their own model has diverged, and the metric needs it.
        """
        assert self.evaluator is not None
        models, device = now.models, similarity.device
        row, column = models.met.nonzero(as_tuple=True)
        diverged = models.diverged.to(device)
        you = diverged[models.local(now.view.contacts[row, column])]
        refuse_nan(self.method.metric, similarity, ~(diverged[row] | you), self._shards)
        now.similarity = similarity_table(similarity, models.met, you)
        needs_own_model = self.evaluator.cost.own_model
        return now.stopped | now.diverged.to(now.stopped.device) if needs_own_model else now.stopped

    def _kept(self, name: str, table: Tensor, keeps_memory: Tensor) -> Tensor:
        """The memory after a round. keeps_memory: [P] bool, the peers that keep their old memory."""
        if name not in self.memory or not bool(keeps_memory.any()):
            return table
        before = self.memory[name]
        answer(table, before.shape, f"method: memory[{name!r}] must keep its shape from round to round")
        return torch.where(keeps_memory.view(-1, *(1 for _ in table.shape[1:])), before, table)

    def conclude(self, merged: Tensor | None) -> RoundMetrics:
        now = self._now
        assert now is not None
        assert now.partners is not None
        assert now.group is not None
        assert merged is not None
        self._bill(now)
        self.source.merged(now.round)
        neighbours = dispatch.neighbours(self.method, now.view, now.round, self.memory, now.partners)
        record = RoundRecord(
            now.view, now.stopped, now.models.met, now.similarity, now.group, merged, neighbours, now.left_out
        )
        self._now = None
        return {
            "models_sent_per_peer": self.traffic.models_per_peer,
            "bytes_sent_per_peer": self.traffic.bytes_per_peer,
            **self._guarded(),
            **self.observer.observe(record),
        }

    def _guarded(self) -> Guarded:
        return {} if self.guard is None else {"models_left_out": self.guard.count}

    def _bill(self, now: _Round) -> None:
        """Count what travelled in this round. A diverged model does not; the tables of its peer travel without it."""
        models, view = now.models, now.view
        cost_models, updates = (1, False)
        if now.compares and self.evaluator is not None:
            cost_models, updates = self.evaluator.cost.models, self.evaluator.cost.updates
        columns, mask = compact(models.met)
        you = torch.where(mask, models.local(view.contacts.gather(1, columns)), 0)
        diverged = models.diverged.to(mask.device)
        received = mask & ~diverged[you]
        sent_back = mask & ~now.diverged.to(mask.device)[:, None]  # the own model, to be evaluated on the other's data
        count = received + (cost_models - 1) * sent_back.to(torch.int64)
        model_bytes = now.federation.layout.model_bytes
        extra_bytes = torch.where(received & models.trained[you] & updates, model_bytes, 0)
        if models.table_bytes is not None:
            extra_bytes = extra_bytes + torch.where(mask, models.table_bytes[you], 0)
        self.traffic.count(count, view.hops.gather(1, columns), model_bytes, extra_bytes)

    def entries(self) -> Entries:
        return {**self.observer.entries, **({"diagnostics": self._diagnostics} if self._diagnostics else {})}

    def summary(self, rounds: int) -> Summary:
        view = self.source.view(rounds)
        far = bool(total(self._shards, (view.hops[view.known] > 1).sum()[None]))
        return {
            **self.observer.summary(),
            **self.traffic.summary(rounds),
            **self._guarded(),
            "nominal_models_per_peer": nominal_models(self.method, self.merge, self.evaluator, far, rounds),
            "notes": self._notes(view),
        }

    def _notes(self, view: View) -> list[str]:
        asked, memory = self.method.notes if self.source.has_all_peers else self.method.peer_notes, dict(self.memory)
        if self._shards.size > 1 and type(self.method).notes is not Method.notes:  # tables of all peers are large
            view = view.map(self._shards.gathered)
            memory = {name: self._shards.gathered(table) for name, table in memory.items()}
        notes = asked(view, memory)
        if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
            raise UserError(f"method: {asked.__name__} must return a list of sentences, not {notes!r}")
        return [*self.observer.notes(self.traffic), *notes]

    def final(self) -> dict[str, Tensor]:
        return self.observer.final()

    def tensors(self) -> dict[str, Tensor]:
        memory = {f"memory/{name}": table for name, table in self.memory.items()}
        return {"received": self.traffic.received, **self.observer.tensors(), **self.source.tensors(), **memory}

    def numbers(self) -> dict[str, Any]:
        return {
            "traffic": self.traffic.numbers(),
            **self._guarded(),
            **self.observer.numbers(),
            **self.source.numbers(),
        }

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        tensors = {name: tensor.to(self._trained.device) for name, tensor in tensors.items()}
        self.traffic.restore(tensors["received"], numbers["traffic"])
        if self.guard is not None:
            self.guard.count = numbers.get("models_left_out", 0)  # a real peer may have been without a guard before
        self.observer.restore(tensors, numbers)
        memory = {n.removeprefix("memory/"): t for n, t in tensors.items() if n.startswith("memory/")}
        self.memory = self.source.restore(tensors, numbers, memory)


def nominal_models(
    method: Method, merge: Merge, evaluator: PairwiseEvaluator | None, far: bool, rounds: int
) -> float | None:
    """Models per peer by the method's own formula; None: it has no formula, or the formula does not cover the run.

    A formula does not cover several hops (``far``: some contacts are further away than one), nor a similarity-weighted
    merge (fedsim) with a metric that sends two models per comparison.
    """
    twice = needs_similarity(merge) and evaluator is not None and evaluator.cost.models > 1
    found = method.nominal(rounds)
    if not isinstance(found, int | float | None):
        raise UserError(f"method: nominal must return a number of models, or None, not {type(found).__name__}")
    return None if far or twice else found
