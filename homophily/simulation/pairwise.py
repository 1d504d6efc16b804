"""Measuring similarities on a federation: every pair asked for in a round, once, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from homophily.errors import UserError
from homophily.federation.rows import Federation
from homophily.federation.similarity import Metric, metrics
from homophily.federation.view import View
from homophily.plugins.validation import answer
from homophily.training.losses import masked_mean
from homophily.training.task import Engine, Task

_CACHE = 4 << 20  # bytes of a CPU's cache for one of a metric's tables of rows; in one go all are ten times as slow


@dataclass(frozen=True)
class Models:
    """The models a round's similarities are about: after training, before it, and at the very start."""

    now: Federation
    before: Tensor | None  # [N, D]; None: the metric does not ask
    start: Tensor | None  # [N, D]; the same


@dataclass
class _Pairs:
    """Some pairs of peers, by id: me [M], you [M]. Tensors are gathered when first asked for."""

    task: Task
    engine: Engine
    models: Models
    me: Tensor
    you: Tensor
    compared: Tensor | None  # [d]: columns of the shared parameters; None: all

    def _rows(self, table: Tensor | None, peers: Tensor) -> Tensor:
        assert table is not None
        rows = table[peers]
        return rows if self.compared is None else rows[:, self.compared]

    @cached_property
    def mine(self) -> Tensor:
        return self._rows(self.models.now.rows, self.me)

    @cached_property
    def yours(self) -> Tensor:
        return self._rows(self.models.now.rows, self.you)

    @cached_property
    def my_update(self) -> Tensor:
        return self.mine - self._rows(self.models.before, self.me)

    @cached_property
    def your_update(self) -> Tensor:
        return self.yours - self._rows(self.models.before, self.you)

    @cached_property
    def my_path(self) -> Tensor:
        return self.mine - self._rows(self.models.start, self.me)

    @cached_property
    def your_path(self) -> Tensor:
        return self.yours - self._rows(self.models.start, self.you)

    def loss(self, on: Literal["own", "peer"]) -> Tensor:
        if on not in ("own", "peer"):
            raise UserError(f"metric: pairs.loss takes 'own' or 'peer', not {on!r}")
        host, guest = (self.me, self.you) if on == "own" else (self.you, self.me)
        return guest_loss(self.task, self.engine, self.models.now, guest, host)


def guest_loss(task: Task, engine: Engine, federation: Federation, guest: Tensor, host: Tensor) -> Tensor:
    """[M] float64: mean loss of each guest's model on its host's training data; personal columns are the host's."""
    outputs = engine.visit(federation.rows, federation.kept, guest, host)
    data = task.data.train
    position = torch.arange(outputs.shape[1], device=host.device)
    y = task.cast(data.y[data.samples(host, outputs.shape[1])])
    losses = task.loss(outputs.flatten(0, 1), y.flatten(0, 1)).view(len(guest), -1)
    return masked_mean(losses, (position < data.count[host, None]).to(torch.float64))


@dataclass(frozen=True)
class Needs:
    """What a metric asks for. models: those that travel for each peer met."""

    models: int
    updates: bool  # what this round's training changed: the model before training travels beside the one after it
    losses: str | None  # nothing but losses, on one's "own" or the "peer" 's data

    @property
    def own_model(self) -> bool:
        """Whether nothing can be measured where one's own model is sick."""
        return self.losses != "own"


ONE_MODEL = Needs(1, updates=False, losses=None)  # where nothing is measured


class Measurer:
    """Measures with one metric, ``chunk`` pairs at a time; on a CPU fewer rows, no more than its cache holds."""

    def __init__(self, metric: Metric, task: Task, engine: Engine, chunk: int, needs: Needs) -> None:
        self.metric, self.task, self.engine, self.needs = metric, task, engine, needs
        by_rows = needs.losses is None and task.data.train.x.device.type == "cpu"
        row = task.layout.dtype.itemsize * task.layout.width
        self.chunk = min(chunk, max(1, _CACHE // row)) if by_rows else chunk
        compared = task.layout.mask(shared=True, parameter=True)
        everything = bool(compared.all())
        self.compared = None if everything else compared.nonzero()[:, 0].to(task.data.train.x.device)

    def on(self, task: Task, engine: Engine) -> Measurer:
        """The same for another task of the same network."""
        return Measurer(self.metric, task, engine, self.chunk, self.needs)

    def similarities(self, models: Models, me: Tensor, you: Tensor) -> Tensor:
        """[M] float64, where the ids me [M] and you [M] are; NaN where my model or yours is sick."""
        there = models.now.rows.device
        parts = []
        for pairs in self._chunks(me):
            mine, yours = me[pairs].to(there), you[pairs].to(there)
            found = self.metric(_Pairs(self.task, self.engine, models, mine, yours, self.compared))
            parts.append(answer(found, mine.shape, "metric: must return a number for each pair"))
        return torch.cat(parts).to(me.device, torch.float64)

    def _chunks(self, me: Tensor) -> list[Tensor]:
        """Pairs in chunks; the plain engine takes one peer's at a time, as a real peer does."""
        index = torch.arange(len(me), device=me.device)
        if self.engine.name != "one-by-one":
            return list(index.split(self.chunk))
        _, counts = me.unique_consecutive(return_counts=True)
        return [part for mine in index.split(counts.tolist()) for part in mine.split(self.chunk)]


def pairs_met(view: View, met: Tensor) -> tuple[Tensor, Tensor]:
    """Who met whom, by id: me [M] and you [M]. met: [P, B] bool."""
    row, column = met.nonzero(as_tuple=True)
    return view.me[row], view.book[row, column]


def refuse_nan(metric: str | None, found: Tensor, well: Tensor) -> None:
    """A user's own metric that tells nothing of any pair [M] of models that are well [M] is mistaken."""
    if metric not in metrics and bool(well.any()) and bool(found[well].isnan().all()):
        raise UserError(f"metric = {metric!r} must return numbers, and gives NaN for every pair")


def table_of(found: Tensor, met: Tensor, sick_you: Tensor) -> Tensor:
    """[P, B] float64: the similarities [M] of those met, -inf where not met, where the other [M] is sick, or for a NaN.

    Where my own model is sick nothing can be told of the others: all the same, so that it may heal by merging.
    """
    table = torch.full(met.shape, -torch.inf, dtype=torch.float64, device=met.device)
    table[met] = torch.where(sick_you, -torch.inf, found.nan_to_num(nan=torch.nan))
    nothing = ~table.isfinite().any(1, keepdim=True)
    return torch.where(table.isnan(), torch.where(nothing, 0.0, -torch.inf), table)
