"""Similarities of pairs of models: every pair of a round is measured once, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

import torch
from torch import Tensor

from homophily.errors import UserError
from homophily.federation.layout import Kept
from homophily.federation.similarity import LossSamples, Metric, MetricCost, metrics
from homophily.plugins.validation import answer
from homophily.simulation.shards import ONE_PROCESS, Shards, total
from homophily.simulation.sources import LocalModels
from homophily.training.losses import masked_mean
from homophily.training.task import Engine, Task

_CACHE = 4 << 20  # bytes of a CPU's cache for one of a metric's tables of rows; in one go all are ten times as slow


@dataclass
class _Pairs:
    """Some pairs of models, by row: me [Q], you [Q]. Tensors are gathered when first asked for."""

    task: Task
    engine: Engine
    models: LocalModels
    me: Tensor
    you: Tensor
    compared: Tensor | None  # [d]: columns of the shared parameters; None: all
    peer_losses: dict[LossSamples, Tensor]  # [Q]: losses of me on the samples of you that are measured already

    def _rows(self, table: Tensor | None, peers: Tensor) -> Tensor:
        if table is None:
            raise UserError("metric: it uses more than its MetricCost declares: updates, or displacement")
        rows = table[peers]
        return rows if self.compared is None else rows[:, self.compared]

    @cached_property
    def mine(self) -> Tensor:
        return self._rows(self.models.rows, self.me)

    @cached_property
    def yours(self) -> Tensor:
        return self._rows(self.models.rows, self.you)

    @cached_property
    def my_update(self) -> Tensor:
        return self.mine - self._rows(self.models.before, self.me)

    @cached_property
    def your_update(self) -> Tensor:
        return self.yours - self._rows(self.models.before, self.you)

    @cached_property
    def my_displacement(self) -> Tensor:
        return self.mine - self._rows(self.models.start, self.me)

    @cached_property
    def your_displacement(self) -> Tensor:
        return self.yours - self._rows(self.models.start, self.you)

    def loss(self, on: Literal["own", "peer"], samples: LossSamples = "train") -> Tensor:
        if on not in ("own", "peer"):
            raise UserError(f"metric: pairs.loss takes 'own' or 'peer', not {on!r}")
        if samples not in ("train", "validation"):
            raise UserError(f"metric: pairs.loss takes samples 'train' or 'validation', not {samples!r}")
        if self.task.private is not None:
            raise UserError("privacy: this metric uses losses on private data, and choices would show them")
        if on == "peer" and samples in self.peer_losses:
            return self.peer_losses[samples]
        if on == "peer" and self.models.at_owners is not None:
            raise UserError(
                f"metric: it uses losses on the peer's {samples} samples; on several ranks, "
                f"its MetricCost must declare models=2, samples={samples!r}"
            )
        model, data = (self.you, self.me) if on == "own" else (self.me, self.you)
        return cross_loss(self.task, self.engine, self.models.rows, self.models.kept, model, data, samples)


def cross_loss(
    task: Task,
    engine: Engine,
    rows: Tensor,
    kept: Kept,
    model: Tensor,
    data: Tensor,
    samples: LossSamples = "train",
) -> Tensor:
    """[Q] float64: mean loss of the models in rows ``model`` [Q] on ``samples`` of the peers ``data`` [Q].

    Personal parameters are those of the peer whose data it is.
    """
    outputs = engine.cross_evaluate(rows, kept, model, data, samples)
    split = task.split(samples)
    position = torch.arange(outputs.shape[1], device=data.device)
    y = task.cast(split.y[split.samples(data, outputs.shape[1])])
    losses = task.loss(outputs.flatten(0, 1), y.flatten(0, 1)).view(len(model), -1)
    return masked_mean(losses, (position < split.count[data, None]).to(torch.float64))


class PairwiseEvaluator:
    """Measures with one metric, ``chunk`` pairs at a time; on a CPU fewer rows, no more than its cache holds."""

    def __init__(self, metric: partial[Tensor], task: Task, engine: Engine, chunk: int, cost: MetricCost) -> None:
        self.metric, self.task, self.engine, self.cost = metric, task, engine, cost
        by_rows = cost.losses is None and task.data.train.x.device.type == "cpu"
        row = task.layout.dtype.itemsize * task.layout.width
        self.chunk = min(chunk, max(1, _CACHE // row)) if by_rows else chunk
        compared = task.layout.mask(shared=True, parameter=True)
        everything = bool(compared.all())
        self.compared = None if everything else compared.nonzero()[:, 0].to(task.data.train.x.device)

    @property
    def losses_by(self) -> tuple[Metric, str] | None:
        """The metric and its keys if it uses only losses, which can be measured for several runs at once; else None."""
        return None if self.cost.losses is None else (self.metric.func, repr(sorted(self.metric.keywords.items())))

    def on(self, task: Task, engine: Engine) -> PairwiseEvaluator:
        """The same for another task of the same network."""
        return PairwiseEvaluator(self.metric, task, engine, self.chunk, self.cost)

    def similarities(self, models: LocalModels, me: Tensor, you: Tensor) -> Tensor:
        """[Q] float64, on the device of the rows me [Q] and you [Q]; NaN if a model of a pair has diverged."""
        peer_losses: dict[LossSamples, Tensor] = {}
        if self.cost.models > 1 and models.at_owners is not None:  # asked for by all processes, or by none
            peer_losses = {self.cost.samples: models.at_owners(me, you, self._losses)}
        if not len(me):
            return me.double()
        device = models.rows.device
        parts = []
        for pairs in self._chunks(me):
            mine, yours = me[pairs].to(device), you[pairs].to(device)
            known = {samples: losses[pairs].to(device) for samples, losses in peer_losses.items()}
            found = self.metric(_Pairs(self.task, self.engine, models, mine, yours, self.compared, known))
            parts.append(answer(found, mine.shape, "metric: must return a number for each pair"))
        return torch.cat(parts).to(me.device, torch.float64)

    def _losses(self, rows: Tensor, kept: Kept, model: Tensor, data: Tensor) -> Tensor:
        """[Q] float64: as ``cross_loss``, in chunks; on the device of model [Q] and data [Q]."""
        device, samples = rows.device, self.cost.samples
        parts = [
            cross_loss(self.task, self.engine, rows, kept, model[some].to(device), data[some].to(device), samples)
            for some in self._chunks(model)
        ]
        return torch.cat(parts).to(model.device) if parts else model.double()

    def _chunks(self, me: Tensor) -> list[Tensor]:
        """Pairs in chunks; the plain engine takes one peer's at a time, as a real peer does.

        With losses on the peer's data it takes one pair at a time, since the data may be in several processes.
        """
        index = torch.arange(len(me), device=me.device)
        if self.engine.name != "one-by-one":
            return list(index.split(self.chunk))
        if self.cost.models > 1:
            return list(index.split(1)) if len(me) else []
        _, counts = me.unique_consecutive(return_counts=True)
        return [part for mine in index.split(counts.tolist()) for part in mine.split(self.chunk)]


def refuse_nan(metric: str | None, found: Tensor, well: Tensor, shards: Shards = ONE_PROCESS) -> None:
    """Refuse a user's metric that returns NaN for every pair [Q] of models that have not diverged. well: [Q] bool.

    The pairs of all processes count.
    """
    if metric in metrics:
        return
    pairs, numbers = total(shards, torch.stack([well.sum(), (well & ~found.isnan()).sum()])).tolist()
    if pairs and not numbers:
        raise UserError(f"metric = {metric!r} must return numbers, and gives NaN for every pair")


def similarity_table(found: Tensor, met: Tensor, diverged: Tensor) -> Tensor:
    """[P, B] float64: the similarities [Q] of the peers met; -inf if not met, if the other [Q] has diverged, for a NaN.

    If our own model has diverged, similarities are undefined; a constant is returned, so that merging can repair it.
    """
    table = torch.full(met.shape, -torch.inf, dtype=torch.float64, device=met.device)
    table[met] = torch.where(diverged, -torch.inf, found.nan_to_num(nan=torch.nan))
    nothing = ~table.isfinite().any(1, keepdim=True)
    return torch.where(table.isnan(), torch.where(nothing, 0.0, -torch.inf), table)
