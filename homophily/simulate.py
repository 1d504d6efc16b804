"""The round loop, all peers at once: train, meet, measure, choose, merge."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from homophily.counts import MergeCounts
from homophily.federation import Federation, gather
from homophily.measuring import Measurer, Models
from homophily.merging import Weights
from homophily.methods import Method, Now, View
from homophily.scoring import Scorer, Scores, precision_and_recall
from homophily.training.task import Engine, Task


@dataclass(frozen=True)
class Problem:
    """Everything a simulation needs, made ready: data, network, engine, method."""

    task: Task
    engine: Engine
    scorer: Scorer
    start: Federation  # the models before the first round
    method: Method
    view: View
    weights: Weights
    measurer: Measurer | None  # None: the method asks for no similarity
    rounds: int
    after_training: bool  # score trained models, not merged ones
    evaluate: int
    patience: int


class Simulation:
    """The state of a run and its next round."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        peers = len(problem.start.rows)
        device = problem.start.rows.device
        self.federation = problem.start.copy()
        self.best = problem.start.copy() if problem.patience else None
        self.best_loss = torch.full((peers,), torch.inf, dtype=torch.float64, device=device)
        self.waited = torch.zeros(peers, dtype=torch.int64, device=device)
        self.stopped = torch.zeros(peers, dtype=torch.bool, device=device)
        self.received = torch.zeros(peers, dtype=torch.int64, device=device)
        self.sick_rounds = torch.zeros(peers, dtype=torch.int64, device=device)
        self.merges = MergeCounts(peers)
        self.memory: dict[str, Tensor] = {}
        self.round, self.peak, self.seconds = 0, 0, 0.0
        self.last: dict[str, Any] = {}  # the last line of metrics with scores
        self.scored: Federation | None = None  # the models behind the final scores, where they are not the current ones

    @property
    def finished(self) -> bool:
        return self.round >= self.problem.rounds or bool(self.stopped.all())

    def step(self) -> dict[str, Any]:
        """Play one round; returns its line of metrics."""
        began, problem = time.perf_counter(), self.problem
        self.round += 1
        final = self.round == problem.rounds
        due = final or self.round % problem.evaluate == 0
        before = self.federation.rows.clone() if problem.measurer else None
        problem.engine.train(self.federation.rows, self.federation.kept, self._active(), self.round)
        if problem.patience:
            self._stop_early()
        scores = None
        if problem.after_training and due:
            scores = problem.scorer.test(self.federation)
            self.scored = self.federation.copy() if final else None
        line = self._meet_and_merge(before)
        if not problem.after_training and due:
            scores = problem.scorer.test(self.federation)
        self.seconds += time.perf_counter() - began
        line = {"round": self.round, **self._summary(scores), **line, "seconds": round(self.seconds, 3)}
        if scores is not None:
            self.last = line
        return line

    def _active(self) -> Tensor:
        return (~self.stopped).nonzero()[:, 0]

    def _stop_early(self) -> None:
        """Keep each peer's best model so far; those that waited too long stop."""
        assert self.best is not None
        loss = self.problem.scorer.validation_loss(self.federation)
        better = ~self.stopped & (loss < self.best_loss)
        self.best.put(better, self.federation)
        self.best_loss = torch.where(better, loss, self.best_loss)
        self.waited = torch.where(better, 0, self.waited + 1)
        self.stopped |= self.waited >= self.problem.patience

    def _meet_and_merge(self, before: Tensor | None) -> dict[str, Any]:
        problem, view = self.problem, self.problem.view
        sick = self.federation.sick
        self.sick_rounds += sick
        now = Now(view, self.round, self.memory)
        met = problem.method.meet(now) & view.known & ~self.stopped[:, None]
        similarity = None
        if problem.measurer is not None and before is not None:
            models = Models(self.federation, before, problem.start.rows)
            similarity = problem.measurer.measure(models, view, met, sick)
        partners = problem.method.choose(now, met, similarity) & met
        gathering = gather(view.book, partners, view.me, sick)
        self.federation.merge(gathering, problem.weights)
        pairs = self.merges.add(gathering, view.me)
        asked = (met * view.hops).sum(1)
        self.received += asked
        self.peak = max(self.peak, int(asked.max()))
        precision, recall = precision_and_recall(view, problem.method.neighbours(now, partners))
        cluster = problem.task.data.cluster
        inside = None
        if cluster is not None and len(pairs):
            inside = float((cluster[pairs[:, 0]] == cluster[pairs[:, 1]]).double().mean())
        return {
            "neighbour_precision": precision,
            "neighbour_recall": recall,
            "same_cluster_merges": inside,
            "models_sent_per_peer": float(self.received.double().mean()),
            "sick": sick.nonzero()[:, 0].tolist(),
            "stopped": int(self.stopped.sum()),
        }

    def _summary(self, scores: Scores | None) -> dict[str, Any]:
        """Means over peers and clusters of one evaluation; healthy peers only, since a sick one has no loss."""
        if scores is None:
            return {}
        name = "mse" if scores.regression else "accuracy"
        data = self.problem.task.data
        cluster = data.cluster if data.cluster is not None else torch.zeros_like(self.stopped, dtype=torch.int64)
        names = data.cluster_names if data.cluster is not None else ("all",)
        by_cluster = {names[c]: _mean(scores.value[cluster == c]) for c in range(len(names))}
        found = [value for value in by_cluster.values() if value is not None]
        return {
            name: _mean(scores.value),
            f"{name}_over_clusters": sum(found) / len(found) if found else None,
            f"{name}_by_cluster": by_cluster,
            "loss": _mean(scores.loss),
            **{extra: _mean(values) for extra, values in scores.extra.items()},
        }

    def models(self) -> Federation:
        """The models the final scores belong to: the best ones, the trained ones or simply the current ones."""
        return self.best or self.scored or self.federation

    def result(self) -> tuple[dict[str, Any], Scores]:
        """The summary of the whole run, and the final scores of each peer."""
        scores = self.problem.scorer.test(self.models())
        layout = self.federation.layout
        sent = float(self.received.double().mean())
        ever_sick = self.sick_rounds > 0
        return {
            **self._summary(scores),
            "neighbour_precision": self.last.get("neighbour_precision"),
            "neighbour_recall": self.last.get("neighbour_recall"),
            "same_cluster_merges": self.merges.share_inside(self.problem.task.data.cluster),
            "models_sent_per_peer": sent,
            "bytes_sent_per_peer": sent * layout.model_bytes,
            "peak_models_per_peer_round": self.peak,
            "rounds": self.round,
            "stopped_early": int(self.stopped.sum()),
            "sick_peers": ever_sick.nonzero()[:, 0].tolist(),
            "still_sick": self.federation.sick.nonzero()[:, 0].tolist(),
            "seconds": round(self.seconds, 3),
        }, scores

    def tensors(self) -> dict[str, Tensor]:
        """Everything a checkpoint must hold, by name."""
        pairs, counts = self.merges.sparse()
        return {
            **_flat("current", self.federation),
            **(_flat("best", self.best) if self.best else {}),
            **(_flat("scored", self.scored) if self.scored else {}),
            **{f"memory/{name}": table for name, table in self.memory.items()},
            **{name: getattr(self, name) for name in _TABLES},
            "merge_pairs": pairs,
            "merge_counts": counts,
        }

    def numbers(self) -> dict[str, Any]:
        """The rest of a checkpoint, as JSON."""
        return {"round": self.round, "peak": self.peak, "seconds": self.seconds, "last": self.last}

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        device = self.federation.rows.device
        tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
        layout = self.federation.layout
        self.federation = _unflat("current", layout, tensors)
        self.best = _unflat("best", layout, tensors) if self.best else None
        self.memory = {n.removeprefix("memory/"): t for n, t in tensors.items() if n.startswith("memory/")}
        for name in _TABLES:
            setattr(self, name, tensors[name])
        self.merges = MergeCounts(len(self.stopped), tensors["merge_pairs"].cpu(), tensors["merge_counts"].cpu())
        self.round, self.peak = numbers["round"], numbers["peak"]
        self.seconds, self.last = numbers["seconds"], numbers["last"]
        if self.finished and "scored/rows" in tensors:
            self.scored = _unflat("scored", layout, tensors)


_TABLES = ("best_loss", "waited", "stopped", "received", "sick_rounds")


def _flat(prefix: str, federation: Federation) -> dict[str, Tensor]:
    kept = {f"{prefix}/kept/{name}": table for name, table in federation.kept.items()}
    return {f"{prefix}/rows": federation.rows, **kept}


def _unflat(prefix: str, layout: Any, tensors: dict[str, Tensor]) -> Federation:
    start = f"{prefix}/kept/"
    kept = {name.removeprefix(start): table for name, table in tensors.items() if name.startswith(start)}
    return Federation(layout, tensors[f"{prefix}/rows"], kept)


def _mean(values: Tensor) -> float | None:
    """Mean of the finite ones."""
    finite = values[values.isfinite()]
    return float(finite.mean()) if len(finite) else None
