"""Measuring similarities on a federation: every pair asked for in a round, once, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from homophily.federation import Federation
from homophily.losses import masked_mean
from homophily.similarity import Metric
from homophily.training.task import Engine, Task
from homophily.view import View


@dataclass(frozen=True)
class Models:
    """The models a round's similarities are about: after training, before it, and at the very start."""

    now: Federation
    before: Tensor | None  # [N, D]; None: the metric does not ask
    start: Tensor  # [N, D]


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


class Measurer:
    """Measures with one metric, ``chunk`` pairs at a time."""

    def __init__(
        self, metric: Metric, task: Task, engine: Engine, chunk: int, sends: tuple[int, float], updates: bool
    ) -> None:
        self.metric, self.task, self.engine, self.chunk = metric, task, engine, chunk
        self.sends = sends  # models for each peer met, and the size of each in models
        self.updates = updates  # whether the metric asks what this round's training changed
        compared = task.layout.mask(shared=True, parameter=True)
        everything = bool(compared.all())
        self.compared = None if everything else compared.nonzero()[:, 0].to(task.data.train.x.device)

    def measure(self, models: Models, view: View, met: Tensor, sick: Tensor) -> Tensor:
        """[P, B] float64: similarity to each peer met, -inf where not met or sick."""
        table = torch.full(met.shape, -torch.inf, dtype=torch.float64, device=met.device)
        row, column = met.nonzero(as_tuple=True)
        if not len(row):
            return table
        me, you = view.me[row], view.book[row, column]
        there = models.now.rows.device
        parts = []
        for pairs in self._chunks(row):
            mine, yours = me[pairs].to(there), you[pairs].to(there)
            parts.append(self.metric(_Pairs(self.task, self.engine, models, mine, yours, self.compared)))
        found = torch.cat(parts).to(met.device, torch.float64)
        # Where my own model is sick nothing can be told of the others: all the same, so that it may heal by merging.
        found = torch.where(sick[you], -torch.inf, found.nan_to_num(nan=0.0))
        table[row, column] = found
        return table

    def _chunks(self, row: Tensor) -> list[Tensor]:
        """Pairs in chunks; the plain engine takes one peer's at a time, as a real peer does."""
        index = torch.arange(len(row), device=row.device)
        if self.engine.name != "one-by-one":
            return list(index.split(self.chunk))
        _, counts = row.unique_consecutive(return_counts=True)
        return [part for mine in index.split(counts.tolist()) for part in mine.split(self.chunk)]
