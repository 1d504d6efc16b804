"""Scores of each peer's model on its own test data, and precision and recall of its neighbours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from homophily.data.types import Split
from homophily.errors import UserError
from homophily.federation.layout import Kept
from homophily.federation.rows import Federation, all_finite
from homophily.federation.view import View
from homophily.runs.headline import Headline
from homophily.simulation.shards import ONE_PROCESS, Shards
from homophily.training.cross_evaluation import with_personal
from homophily.training.losses import masked_mean
from homophily.training.score_metrics import HeadlineMetric, Predictions, ScoreMetric, registered_metric
from homophily.training.task import Engine, Task

COLUMNS = ("loss", "value", "diverged")  # of a table of scores, beside extra metrics


@dataclass(frozen=True)
class Scores:
    """Per-peer scores.

    A diverged peer, whose weights or outputs are not all finite, has no scores: they are NaN. So is a score that is
    undefined for a peer's test samples.
    """

    loss: Tensor  # [N] float64
    value: Tensor  # [N] float64: the headline metric
    headline: Headline
    diverged: Tensor  # [N] bool
    extra: dict[str, Tensor] = field(default_factory=dict)  # [N] float64 each

    @property
    def columns(self) -> dict[str, Tensor]:
        """All scores by name, [N] float64 each."""
        return {self.headline.name: self.value, "loss": self.loss, **self.extra}

    def gathered(self, shards: Shards) -> Scores:
        """The scores of the peers of all processes."""
        columns = [self.loss, self.value, self.diverged.to(self.loss.dtype), *self.extra.values()]
        loss, value, diverged, *extra = shards.gathered(torch.stack(columns, 1)).unbind(1)
        return Scores(loss, value, self.headline, diverged > 0, dict(zip(self.extra, extra, strict=True)))

    def of(self, peers: slice) -> Scores:
        """The scores of some peers."""
        extra = {name: values[peers] for name, values in self.extra.items()}
        return Scores(self.loss[peers], self.value[peers], self.headline, self.diverged[peers], extra)


class Scorer:
    """Evaluates rows in chunks of ``peers`` models times ``samples`` inputs."""

    def __init__(
        self,
        task: Task,
        engine: Engine,
        peers: int,
        samples: int,
        extra: Mapping[str, ScoreMetric] | None = None,
        metric: HeadlineMetric | None = None,
    ) -> None:
        """metric: the headline metric; None: the default of the kind of task."""
        self.task, self.engine, self.peers, self.samples = task, engine, peers, samples
        self.extra = dict(extra or {})
        self.metric = metric or registered_metric(task.data.kind.headline, task.data.kind)

    def test(self, federation: Federation) -> Scores:
        """All peers on their test data."""
        columns = self._score(federation, self.task.data.test, {"value": self.metric.compute, **self.extra})
        loss, value, diverged = (columns.pop(name) for name in COLUMNS)
        return Scores(loss, value, self.metric.headline, diverged > 0, columns)

    def validation(self, federation: Federation, on: Literal["loss", "headline"]) -> Tensor:
        """[N] float64, lower is better: the mean loss on the validation data, or the headline metric with a sign."""
        assert self.task.data.validation is not None
        if on == "loss":
            return self._score(federation, self.task.data.validation, {})["loss"]
        columns = self._score(federation, self.task.data.validation, {"value": self.metric.compute})
        undefined = columns["value"].isnan() & (columns["diverged"] == 0)
        if bool(undefined.any()):
            which = _some(self.task.ids[undefined].tolist())
            name = self.metric.headline.name
            raise UserError(
                f"training.stop_on = 'headline': {name} is undefined for the validation samples of {which}; use more "
                "validation samples, or 'loss'"
            )
        return columns["value"] if self.metric.headline.better == "lower" else -columns["value"]

    def validation_losses(self, rows: Tensor, kept: Kept, model: Tensor, data: Tensor) -> Tensor:
        """[Q] float64: mean loss of the models in rows ``model`` [Q] on the validation samples of peers ``data`` [Q].

        Personal parameters are those of the peer whose data it is. NaN: the weights or outputs are not finite.
        """
        split = self.task.data.validation
        assert split is not None
        losses = torch.empty(len(model), dtype=torch.float64, device=rows.device)
        for chunk in self._chunks(split, data):
            peers = data[chunk]
            chosen = with_personal(self.task, rows, model[chunk], peers)
            losses[chunk] = self._evaluated(chosen, _of(kept, peers), split, peers, {})["loss"]
        return losses

    def _score(self, federation: Federation, split: Split, metrics: Mapping[str, ScoreMetric]) -> dict[str, Tensor]:
        """The loss, the metrics and ``diverged`` of all peers, [N] float64 each."""
        peers = torch.arange(len(federation.rows), device=federation.rows.device)
        chunks = self._chunks(split, peers)
        parts = [
            self._evaluated(federation.rows[chunk], _of(federation.kept, chunk), split, chunk, metrics)
            for chunk in chunks
        ]
        back = torch.cat(chunks).argsort()
        return {name: torch.cat([part[name] for part in parts])[back] for name in parts[0]}

    def _chunks(self, split: Split, data: Tensor) -> list[Tensor]:
        """Positions in ``data`` [Q], the peers whose samples are used, in chunks that are evaluated together."""
        counts = split.count[data].cpu()
        # Peers with similar sample counts share a chunk, which keeps padding small.
        order = counts.argsort(stable=True).to(data.device)
        groups = [order]
        if self.engine.name == "one-by-one":  # no padding: scores have the same bits, whoever else is in this process
            groups = list(order.split(counts.unique(return_counts=True)[1].tolist()))
        return [chunk for group in groups for chunk in group.split(self.peers)]

    def _evaluated(
        self, rows: Tensor, kept: Kept, split: Split, peers: Tensor, metrics: Mapping[str, ScoreMetric]
    ) -> dict[str, Tensor]:
        """Models, one for each of the ``peers`` [Q], on the samples of these peers."""
        count = split.count[peers, None]
        position = torch.arange(int(count.max()), device=peers.device)
        sample = split.samples(peers, len(position))  # repeated samples have weight 0
        outputs = torch.cat(
            [self.engine.predict(rows, kept, split.x[part]) for part in sample.split(self.samples, dim=1)], dim=1
        )
        targets = self.task.cast(split.y[sample])
        mask = (position < count).to(torch.float64)
        losses = self.task.loss(outputs.flatten(0, 1), targets.flatten(0, 1)).view(sample.shape)
        diverged = ~(all_finite(rows) & all_finite(outputs.flatten(1)))
        predictions = Predictions(outputs, targets, mask, losses, self.task.data.kind)
        found = {"loss": masked_mean(losses, mask), **{name: metric(predictions) for name, metric in metrics.items()}}
        scores = {name: values.masked_fill(diverged, torch.nan) for name, values in found.items()}
        return {**scores, "diverged": diverged.double()}


def _of(kept: Kept, peers: Tensor) -> Kept:
    return {name: table[peers] for name, table in kept.items()}


def precision_and_recall(
    view: View, neighbours: Tensor, stopped: Tensor, shards: Shards = ONE_PROCESS
) -> tuple[float | None, float | None]:
    """Share of the neighbours (or their weight) in the own cluster, share of the cluster found; means over peers.

    Found are neighbours in a set, and in a table of weights those with at least an equal share. Peers that have
    stopped [P] and hold nobody are not judged.
    """
    if view.same is None:
        return None, None
    cluster = view.same.sum(1)
    held, inside = neighbours.sum(1).double(), (neighbours * view.same).sum(1).double()
    found = inside
    if neighbours.dtype != torch.bool:
        equal = held[:, None] / view.known.sum(1, keepdim=True).clamp(min=1)
        found = ((neighbours > 0) & (neighbours >= equal * (1 - 1e-9)) & view.same).sum(1).double()
    judged = (cluster > 0) & ((held > 0) | ~stopped)
    columns = shards.gathered(torch.stack([inside / held, held, found / cluster, judged.double()], 1))
    precisions, held, recalls, counts = columns.unbind(1)
    some, judged = held > 0, counts > 0
    precision = float(precisions[some].mean()) if bool(some.any()) else None
    return precision, float(recalls[judged].mean()) if bool(judged.any()) else None


def summarised(scores: Scores, clusters: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Means over peers and clusters of one evaluation; null if a peer in them has diverged.

    A peer for which the headline metric is undefined is left out of its means, as is a cluster of such peers only.
    """
    name, value = scores.headline.name, scores.value.tolist()
    undefined = (scores.value.isnan() & ~scores.diverged).tolist()
    some = {cluster: [peer for peer in peers if not undefined[peer]] for cluster, peers in clusters.items()}
    by_cluster = {cluster: _mean([value[peer] for peer in peers]) for cluster, peers in some.items()}
    return {
        "headline": name,
        name: _mean([number for number, out in zip(value, undefined, strict=True) if not out]),
        f"{name}_over_clusters": _mean([by_cluster[cluster] for cluster, peers in some.items() if peers]),
        f"{name}_by_cluster": by_cluster,
        "loss": _mean(scores.loss.tolist()),
        **{extra: _mean_of_defined(values, scores.diverged) for extra, values in scores.extra.items()},
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean; None if a value is not finite: a diverged peer must not improve a method's mean."""
    there = [value for value in values if value is not None and math.isfinite(value)]
    return sum(there) / len(there) if there and len(there) == len(values) else None


def _mean_of_defined(values: Tensor, diverged: Tensor) -> float | None:
    """Over the peers for which a user's metric [N] is defined; None if a peer has diverged [N]."""
    return _mean(values[values.isfinite() | diverged].tolist())


def diverged_notes(ever: Tensor, scores: Scores) -> list[str]:
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
    undefined_peers = {scores.headline.name: scores.value.isnan()}
    undefined_peers |= {name: ~values.isfinite() for name, values in scores.extra.items()}
    for name, found in undefined_peers.items():
        undefined = found & ~scores.diverged
        if bool(undefined.any()):
            peers = undefined.nonzero()[:, 0].tolist()
            which = f"{len(peers)} of {len(ever)} peers ({_some(peers)})"
            notes.append(f"{name} is undefined for {which}, and its mean leaves them out")
    return notes


def _some(peers: Sequence[int]) -> str:
    """The first few, as "peers 3, 5, ..."."""
    return f"peer{'s' * (len(peers) > 1)} " + ", ".join(map(str, peers[:8])) + (", ..." if len(peers) > 8 else "")
