"""The round loop: train, meet, compare, choose, merge, score; for one run, or for several side by side.

A simulation, several runs side by side and a real peer use the same loop. They differ in where models come from
(``homophily.simulation.sources``), and whether the runs' peers are computed together (``side_by_side``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from homophily.data.types import Roster
from homophily.federation.layout import Layout
from homophily.federation.rows import Federation
from homophily.runs.fields import RoundMetrics
from homophily.simulation.evaluation import Scorer, Scores, diverged_notes, summarised
from homophily.simulation.exchange import Exchange, MergeRequest, SimilarityRequest
from homophily.simulation.privacy import PrivacyAccount
from homophily.simulation.recording import Entries
from homophily.simulation.shards import ONE_PROCESS, Shards, total
from homophily.training.task import Engine, Task


@dataclass(frozen=True)
class Experiment:
    """Everything that a run needs, prepared: data, network, engine, method. Task and start: of this process's peers."""

    task: Task
    engine: Engine
    scorer: Scorer
    start: Federation  # the models before the first round
    exchange: Exchange
    rounds: int
    after_training: bool  # score trained models, not merged ones
    evaluate: int
    patience: int
    stop_on: Literal["loss", "headline"]  # what patience watches on the validation data
    roster: Roster  # all peers
    digest: str | None  # of the data of all peers; None: data of a registered name, which does not change
    account: PrivacyAccount | None = None  # of [privacy]
    shards: Shards = ONE_PROCESS


class RunState:
    """The state of a run between two rounds, and what it does in the parts of one."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, self.exchange = experiment, experiment.exchange
        peers = len(experiment.start.rows)
        self.federation = experiment.start.copy()
        self.best = experiment.start.copy() if experiment.patience else None
        # One value per peer, on the CPU, so that Python can read it without waiting for a GPU.
        self.best_validation = torch.full((peers,), torch.inf, dtype=torch.float64)
        self.waited = torch.zeros(peers, dtype=torch.int64)
        self.stopped = torch.zeros(peers, dtype=torch.bool)
        self.diverged_rounds = torch.zeros(peers, dtype=torch.int64)
        self.clusters = experiment.roster.by_cluster()
        self._stopped_peers = 0  # of all processes
        self.round, self.seconds = 0, 0.0
        self.scored: Federation | None = None  # the models behind the final scores, if they are not the current ones
        self.may_end = False  # before its last round, by a callback
        self._ended, self._scored_round = False, 0
        self.entries: Entries = {}  # what the last round adds to the history

    @property
    def finished(self) -> bool:
        return (
            self._ended or self.round >= self.experiment.rounds or self._stopped_peers == self.experiment.roster.peers
        )

    @property
    def ended(self) -> bool:
        """Whether a callback has ended the run."""
        return self._ended

    def end(self) -> None:
        """Finish after the current round."""
        self._ended = True
        if self._scored_round != self.round:
            self.scored = None

    def begin_round(self) -> tuple[Tensor, Tensor | None]:
        """Begin a round; returns the peers that train, [P] ids on the CPU, and the models before it, if needed."""
        self.round += 1
        trains = self.exchange.before_training(self.federation, self.round, ~self.stopped)
        before = self.federation.rows.clone() if self.exchange.wants_rows_before(self.round) else None
        return trains.nonzero()[:, 0], before

    def stop_early(self, validation: Tensor | None) -> None:
        """Keep each peer's best model so far; peers that waited too long stop.

        validation: [N] float64 on the CPU, lower is better: the loss or the signed headline metric on the validation
        data after training; None: early stopping is off.
        """
        if validation is None:
            return
        assert self.best is not None
        better = ~self.stopped & (validation < self.best_validation)
        self.best.put(better, self.federation)
        self.best_validation = torch.where(better, validation, self.best_validation)
        self.waited = torch.where(better, 0, self.waited + 1)
        self.stopped |= self.waited >= self.experiment.patience
        self._count_stopped()

    def _count_stopped(self) -> None:
        self._stopped_peers = int(total(self.experiment.shards, self.stopped.sum()[None]))

    def is_scored(self, after_training: bool) -> bool:
        """Whether the models are scored at this point of the round."""
        due = self.finished or self.round % self.experiment.evaluate == 0
        return due and after_training == self.experiment.after_training

    def keep_scored(self) -> None:
        """Keep the trained models that were scored: at the end of a run, the final scores are theirs."""
        self.scored = self.federation.copy() if self.finished or self.may_end else None
        self._scored_round = self.round

    def end_round(self, diverged: Tensor) -> None:
        """After the merge. diverged: [N] bool on the CPU, after training."""
        self.diverged_rounds += diverged
        # A peer that has stopped publishes nothing new: others keep what it published in its last round.
        self.federation.recover(self.experiment.start, ~self.stopped)

    def metrics(self, exchanged: RoundMetrics, diverged: Tensor, scores: Scores | None) -> dict[str, Any]:
        """The metrics of a round. Its entries in the history are kept until the next round."""
        shards = self.experiment.shards
        scores = None if scores is None else scores.gathered(shards)
        diverged = shards.gathered(diverged)
        self.entries = self.exchange.entries()
        if self.exchange.recorded is not None and scores is not None:
            self.entries |= {"scores": self.exchange.recorded.scores(scores.columns)}
        lost = diverged if scores is None else diverged | scores.diverged.cpu()
        return {
            "round": self.round,
            **(summarised(scores, self.clusters) if scores is not None else {}),
            **exchanged,
            "diverged": lost.nonzero()[:, 0].tolist(),
            "stopped": self._stopped_peers,
            **(account.metrics(self.round) if (account := self.experiment.account) else {}),
            "seconds": round(self.seconds, 3),
        }

    def models(self) -> Federation:
        """The models the final scores belong to: the best ones, the trained ones or simply the current ones."""
        return self.best or self.scored or self.federation

    def result(self) -> tuple[dict[str, Any], Scores]:
        """The summary of the whole run, and the final scores of each peer."""
        shards = self.experiment.shards
        scores = self.experiment.scorer.test(self.models()).gathered(shards)
        exchanged = self.exchange.summary(self.round)
        ever = (shards.gathered(self.diverged_rounds) > 0) | scores.diverged.cpu()
        return {
            **summarised(scores, self.clusters),
            **exchanged,
            "privacy": account.summary(self.round) if (account := self.experiment.account) else None,
            "rounds": self.round,
            "stopped_early": self._stopped_peers,
            "ever_diverged": ever.nonzero()[:, 0].tolist(),
            "diverged": scores.diverged.nonzero()[:, 0].tolist(),
            "seconds": round(self.seconds, 3),
            "notes": [*exchanged["notes"], *diverged_notes(ever, scores)],
        }, scores

    def tensors(self) -> dict[str, Tensor]:
        """Everything a checkpoint must hold, by name."""
        return {
            **_flat("current", self.federation),
            **(_flat("best", self.best) if self.best else {}),
            **(_flat("scored", self.scored) if self.scored and self.finished else {}),
            **{name: getattr(self, name) for name in _TABLES},
            **self.exchange.tensors(),
        }

    def numbers(self) -> dict[str, Any]:
        """The rest of a checkpoint, as JSON."""
        return {"round": self.round, "seconds": self.seconds, **self.exchange.numbers()}

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        device = self.federation.rows.device
        tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
        layout = self.federation.layout
        self.federation = _unflat("current", layout, tensors)
        self.best = _unflat("best", layout, tensors) if self.best else None
        for name in _TABLES:
            setattr(self, name, tensors[name].cpu())
        self._count_stopped()
        self.exchange.restore(tensors, numbers)
        self.round, self.seconds = numbers["round"], numbers["seconds"]
        if self.finished and "scored/rows" in tensors:
            self.scored = _unflat("scored", layout, tensors)


_TABLES = ("best_validation", "waited", "stopped", "diverged_rounds")


class Computation(Protocol):
    """Computes for the peers of one run, or of several runs together. Runs are called by their number."""

    def train(self, peers: Mapping[int, Tensor], round: int) -> None:
        """A round's training of these peers [P] of each run."""

    def validation(self) -> Mapping[int, Tensor | None]:
        """What early stopping watches, of all peers of each run, [N] float64 on the CPU; None: it is off."""

    def scores(self, runs: Sequence[int]) -> dict[int, Scores]:
        """On the test data."""

    def diverged(self) -> Mapping[int, Tensor]:
        """[N] bool of each run; a GPU may still be computing it."""

    def similarities(self, requests: Mapping[int, SimilarityRequest]) -> dict[int, Tensor]: ...

    def merges(self, requests: Mapping[int, MergeRequest]) -> dict[int, Tensor]: ...


class OneRun:
    """A run by itself."""

    def __init__(self, run: RunState) -> None:
        self._run = run

    def train(self, peers: Mapping[int, Tensor], round: int) -> None:
        federation = self._run.federation
        self._run.experiment.engine.train(federation.rows, federation.kept, peers[0], round)

    def validation(self) -> Mapping[int, Tensor | None]:
        experiment = self._run.experiment
        if not experiment.patience:
            return {0: None}
        return {0: experiment.scorer.validation(self._run.federation, experiment.stop_on).cpu()}

    def scores(self, runs: Sequence[int]) -> dict[int, Scores]:
        return {0: self._run.experiment.scorer.test(self._run.federation)} if runs else {}

    def diverged(self) -> Mapping[int, Tensor]:
        return {0: self._run.federation.diverged}

    def similarities(self, requests: Mapping[int, SimilarityRequest]) -> dict[int, Tensor]:
        return {number: request.compute() for number, request in requests.items()}

    def merges(self, requests: Mapping[int, MergeRequest]) -> dict[int, Tensor]:
        return {number: request.compute() for number, request in requests.items()}


def play_round(runs: Mapping[int, RunState], compute: Computation) -> dict[int, dict[str, Any]]:
    """One round of the runs, by number, that are not finished; returns the metrics of each."""
    began = time.perf_counter()
    begun = {number: run.begin_round() for number, run in runs.items()}
    compute.train({number: peers for number, (peers, _) in begun.items()}, next(iter(runs.values())).round)
    validation = compute.validation()
    for number, run in runs.items():
        run.stop_early(validation[number])
    trained = [number for number, run in runs.items() if run.is_scored(after_training=True)]
    scores = compute.scores(trained)
    for number in trained:
        runs[number].keep_scored()
    diverged = compute.diverged()  # not read yet, so that decisions without it do not wait for a GPU
    exchanged = _exchange(runs, {number: before for number, (_, before) in begun.items()}, diverged, compute)
    lost = {number: diverged[number].cpu() for number in runs}
    for number, run in runs.items():
        run.end_round(lost[number])
    scores |= compute.scores([number for number, run in runs.items() if run.is_scored(after_training=False)])
    took = (time.perf_counter() - began) / len(runs)
    for run in runs.values():
        run.seconds += took
    return {n: run.metrics(exchanged[n], lost[n], scores.get(n)) for n, run in runs.items()}


def _exchange(
    runs: Mapping[int, RunState],
    before: Mapping[int, Tensor | None],
    diverged: Mapping[int, Tensor],
    compute: Computation,
) -> dict[int, RoundMetrics]:
    """Meet, compare, choose and merge; returns the metrics of each run's exchange."""
    wanted = {}
    for number, run in runs.items():
        request = run.exchange.meet(run.federation, before[number], run.round, run.stopped, diverged[number])
        if request is not None:
            wanted[number] = request
    found = compute.similarities(wanted)
    merging = {}
    for number, run in runs.items():
        merge = run.exchange.choose(found.get(number))
        if merge is not None:
            merging[number] = merge
    merged = compute.merges(merging)
    return {number: run.exchange.conclude(merged.get(number)) for number, run in runs.items()}


def _flat(prefix: str, federation: Federation) -> dict[str, Tensor]:
    kept = {f"{prefix}/kept/{name}": table for name, table in federation.kept.items()}
    return {f"{prefix}/rows": federation.rows, **kept}


def _unflat(prefix: str, layout: Layout, tensors: dict[str, Tensor]) -> Federation:
    start = f"{prefix}/kept/"
    kept = {name.removeprefix(start): table for name, table in tensors.items() if name.startswith(start)}
    return Federation(layout, tensors[f"{prefix}/rows"], kept)
