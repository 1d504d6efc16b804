"""The round loop, all peers at once: train, then meet, measure, choose and merge; score, and stop early."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from homophily.data.types import Shares
from homophily.federation.layout import Layout
from homophily.federation.rows import Federation
from homophily.simulation.asking import Steps, alone
from homophily.simulation.communication import Traffic
from homophily.simulation.evaluation import Scorer, Scores
from homophily.training.task import Engine, Task


class Exchange(Protocol):
    """How models pass between peers, or between clients and a server."""

    traffic: Traffic

    def before_training(self, federation: Federation, round: int, active: Tensor) -> Tensor:
        """Who trains in this round: [N] bool, like ``active`` on the CPU."""

    def wants_rows_before(self, round: int) -> bool:
        """Whether ``after_training`` needs the models before training."""

    def after_training(
        self, federation: Federation, before: Tensor | None, round: int, stopped: Tensor, sick: Tensor
    ) -> Steps:
        """Exchange and merge; the round's line of metrics. stopped: [N] bool, on the CPU; sick: [N] bool, anywhere."""

    def summary(self, rounds: int) -> dict[str, Any]:
        """Over the whole run."""

    def final(self) -> dict[str, Tensor]:
        """What a finished run keeps of who was with whom."""

    def tensors(self) -> dict[str, Tensor]: ...

    def numbers(self) -> dict[str, Any]: ...

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Problem:
    """Everything a simulation needs, made ready: data, network, engine, method."""

    task: Task
    engine: Engine
    scorer: Scorer
    start: Federation  # the models before the first round
    exchange: Exchange
    rounds: int
    after_training: bool  # score trained models, not merged ones
    evaluate: int
    patience: int


class Simulation:
    """The state of a run and its next round."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.exchange = problem, problem.exchange
        peers = len(problem.start.rows)
        self.federation = problem.start.copy()
        self.best = problem.start.copy() if problem.patience else None
        # A number a peer, kept where Python can read it without waiting for a GPU.
        self.best_loss = torch.full((peers,), torch.inf, dtype=torch.float64)
        self.waited = torch.zeros(peers, dtype=torch.int64)
        self.stopped = torch.zeros(peers, dtype=torch.bool)
        self.sick_rounds = torch.zeros(peers, dtype=torch.int64)
        self.clusters = _clusters(problem.task.data)
        self.round, self.seconds = 0, 0.0
        self.sick = torch.zeros(peers, dtype=torch.bool)  # after this round's training
        self._before: Tensor | None = None
        self._line: dict[str, Any] = {}
        self.scored: Federation | None = None  # the models behind the final scores, where they are not the current ones

    @property
    def finished(self) -> bool:
        return self.round >= self.problem.rounds or bool(self.stopped.all())

    def step(self) -> dict[str, Any]:
        """Play one round; returns its line of metrics."""
        began, problem = time.perf_counter(), self.problem
        problem.engine.train(self.federation.rows, self.federation.kept, self.begin(), self.round)
        loss = problem.scorer.validation_loss(self.federation).cpu() if problem.patience else None
        scores = problem.scorer.test(self.federation) if self.trained(loss) else None
        sick = self.federation.sick
        if self.exchanged(alone(self.exchanging(sick)), sick):
            scores = problem.scorer.test(self.federation)
        self.seconds += time.perf_counter() - began
        return self.line(scores)

    def begin(self) -> Tensor:
        """Begin a round; returns who trains in it, [P] ids on the CPU."""
        self.round += 1
        trains = self.exchange.before_training(self.federation, self.round, ~self.stopped)
        self._before = self.federation.rows.clone() if self.exchange.wants_rows_before(self.round) else None
        return trains.nonzero()[:, 0]

    def trained(self, loss: Tensor | None) -> bool:
        """Go on after training; returns whether trained models are to be scored now.

        loss: [N] float64 on the validation data, on the CPU, where peers stop early.
        """
        if loss is not None:
            self._stop_early(loss)
        due = self._due and self.problem.after_training
        if due:
            self.scored = self.federation.copy() if self.finished else None
        return due

    def exchanging(self, sick: Tensor) -> Steps:
        """Let the models pass between peers. sick: [N] bool, after training; maybe still being found out on a GPU."""
        return self.exchange.after_training(self.federation, self._before, self.round, self.stopped, sick)

    def exchanged(self, line: dict[str, Any], sick: Tensor) -> bool:
        """Go on after that; returns whether merged models are to be scored now."""
        self._line = line
        self._before = None
        self.sick = sick.cpu()
        self.sick_rounds += self.sick
        self.federation.heal(self.problem.start)
        return self._due and not self.problem.after_training

    @property
    def _due(self) -> bool:
        return self.finished or self.round % self.problem.evaluate == 0

    def line(self, scores: Scores | None) -> dict[str, Any]:
        """The round's line of metrics."""
        diverged = self.sick if scores is None else self.sick | scores.diverged.cpu()
        return {
            "round": self.round,
            **(self._summary(scores) if scores is not None else {}),
            **self._line,
            "diverged": diverged.nonzero()[:, 0].tolist(),
            "stopped": int(self.stopped.sum()),
            "seconds": round(self.seconds, 3),
        }

    def _stop_early(self, loss: Tensor) -> None:
        """Keep each peer's best model so far; those that waited too long stop."""
        assert self.best is not None
        better = ~self.stopped & (loss < self.best_loss)
        self.best.put(better, self.federation)
        self.best_loss = torch.where(better, loss, self.best_loss)
        self.waited = torch.where(better, 0, self.waited + 1)
        self.stopped |= self.waited >= self.problem.patience

    def _summary(self, scores: Scores) -> dict[str, Any]:
        """Means over peers and clusters of one evaluation; null if a peer in them has diverged."""
        name = "mse" if scores.regression else "accuracy"
        value = scores.value.tolist()
        by_cluster = {cluster: _mean([value[peer] for peer in peers]) for cluster, peers in self.clusters.items()}
        return {
            name: _mean(value),
            f"{name}_over_clusters": _mean(list(by_cluster.values())),
            f"{name}_by_cluster": by_cluster,
            "loss": _mean(scores.loss.tolist()),
            **{extra: _mean_of_defined(values, scores.diverged) for extra, values in scores.extra.items()},
        }

    def models(self) -> Federation:
        """The models the final scores belong to: the best ones, the trained ones or simply the current ones."""
        return self.best or self.scored or self.federation

    def result(self) -> tuple[dict[str, Any], Scores]:
        """The summary of the whole run, and the final scores of each peer."""
        scores = self.problem.scorer.test(self.models())
        exchanged = self.exchange.summary(self.round)
        ever = (self.sick_rounds > 0) | scores.diverged.cpu()
        return {
            **self._summary(scores),
            **exchanged,
            "rounds": self.round,
            "stopped_early": int(self.stopped.sum()),
            "ever_diverged": ever.nonzero()[:, 0].tolist(),
            "diverged": scores.diverged.nonzero()[:, 0].tolist(),
            "seconds": round(self.seconds, 3),
            "notes": [*exchanged["notes"], *_notes(ever, scores)],
        }, scores

    def tensors(self) -> dict[str, Tensor]:
        """Everything a checkpoint must hold, by name."""
        return {
            **_flat("current", self.federation),
            **(_flat("best", self.best) if self.best else {}),
            **(_flat("scored", self.scored) if self.scored else {}),
            **{name: getattr(self, name) for name in _TABLES},
            **self.exchange.tensors(),
        }

    def numbers(self) -> dict[str, Any]:
        """The rest of a checkpoint, as JSON."""
        return {"round": self.round, "seconds": self.seconds, **self.exchange.numbers()}

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        device = self.federation.rows.device
        tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
        layout = self.federation.layout
        self.federation = _unflat("current", layout, tensors)
        self.best = _unflat("best", layout, tensors) if self.best else None
        for name in _TABLES:
            setattr(self, name, tensors[name].cpu())
        self.exchange.restore(tensors, numbers)
        self.round, self.seconds = numbers["round"], numbers["seconds"]
        if self.finished and "scored/rows" in tensors:
            self.scored = _unflat("scored", layout, tensors)


_TABLES = ("best_loss", "waited", "stopped", "sick_rounds")


def _flat(prefix: str, federation: Federation) -> dict[str, Tensor]:
    kept = {f"{prefix}/kept/{name}": table for name, table in federation.kept.items()}
    return {f"{prefix}/rows": federation.rows, **kept}


def _unflat(prefix: str, layout: Layout, tensors: dict[str, Tensor]) -> Federation:
    start = f"{prefix}/kept/"
    kept = {name.removeprefix(start): table for name, table in tensors.items() if name.startswith(start)}
    return Federation(layout, tensors[f"{prefix}/rows"], kept)


def _mean(values: Sequence[float | None]) -> float | None:
    """None if one is not finite: a method is no better for peers whose models diverged."""
    there = [value for value in values if value is not None and math.isfinite(value)]
    return sum(there) / len(there) if there and len(there) == len(values) else None


def _mean_of_defined(values: Tensor, diverged: Tensor) -> float | None:
    """Over the peers for which a user's metric [N] is defined; None if a peer has diverged [N]."""
    return _mean(values[values.isfinite() | diverged].tolist())


def _notes(ever: Tensor, scores: Scores) -> list[str]:
    """On peers that diverged at some time [N], and on metrics that are undefined for some peers."""
    notes = []
    lost, recovered = (peers.nonzero()[:, 0].tolist() for peers in (scores.diverged, ever & ~scores.diverged.cpu()))
    if lost:
        notes.append(
            f"{len(lost)} of {len(ever)} peers have diverged ({_some(lost)}): their weights or outputs hold a NaN or "
            "an infinity, so their scores and all means that include them are null; a lower training.lr may help"
        )
    if recovered:
        notes.append(
            f"{len(recovered)} of {len(ever)} peers diverged ({_some(recovered)}) and recovered; merges left their "
            "models out meanwhile"
        )
    for name, values in scores.extra.items():
        undefined = ~values.isfinite() & ~scores.diverged
        if bool(undefined.any()):
            peers = undefined.nonzero()[:, 0].tolist()
            which = f"{len(peers)} of {len(ever)} peers ({_some(peers)})"
            notes.append(f"{name} is undefined for {which}, and its mean leaves them out")
    return notes


def _some(peers: Sequence[int]) -> str:
    """The first few, as "peers 3, 5, ..."."""
    return f"peer{'s' * (len(peers) > 1)} " + ", ".join(map(str, peers[:8])) + (", ..." if len(peers) > 8 else "")


def _clusters(data: Shares) -> dict[str, list[int]]:
    """The peers of each cluster, by its name; all in one where clusters are not known."""
    if data.cluster is None:
        return {"all": list(range(data.peers))}
    cluster = data.cluster.tolist()
    return {name: [i for i, c in enumerate(cluster) if c == number] for number, name in enumerate(data.cluster_names)}
