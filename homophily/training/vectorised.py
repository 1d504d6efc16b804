"""All peers in one computation: the network's layers see views of W's rows, batched over peers by torch.vmap."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from homophily.keyed_dropout import dropout_keys
from homophily.layout import Kept
from homophily.randomness import Purpose, bits
from homophily.training.batching import over_peers
from homophily.training.optimisers import RowOptimiser, row_optimiser
from homophily.training.schedule import Group, batch_sizes, shuffled, steps
from homophily.training.task import Task


@dataclass
class _Chunk:
    """Peers in training: everything with their axis first, in descending order of sample counts."""

    peers: Tensor  # [P]
    rows: Tensor  # [P, D]
    kept: Kept
    optimiser: RowOptimiser
    per_epoch: Tensor  # [P]: steps in an epoch


class Vectorised:
    """Trains ``chunk`` peers at a time."""

    name = "vectorised"

    def __init__(self, task: Task, chunk: int) -> None:
        self.task, self.chunk = task, chunk
        self.training, self.evaluating = copy.deepcopy(task.module).train(), copy.deepcopy(task.module).eval()
        self.keys = dropout_keys(task.module)
        self.trained = [c.name for c in task.layout.columns if c.trainable]
        self.buffers = [c.name for c in task.layout.columns if not c.parameter]
        self.counts = task.data.train.count.cpu()

    def train(self, rows: Tensor, kept: Kept, peers: Tensor, round: int) -> None:
        if not len(peers):
            return
        by_count = self.counts[peers.cpu()].argsort(descending=True, stable=True).to(peers.device)
        for chunk in peers[by_count].split(self.chunk):
            self._train(rows, kept, chunk, round)

    def _train(self, rows: Tensor, kept: Kept, peers: Tensor, round: int) -> None:
        task = self.task
        batch, start, count = task.settings.batch, task.data.train.start[peers], task.data.train.count[peers]
        counts = self.counts[peers.cpu()].tolist()
        work = rows[peers]
        per_epoch = [len(batch_sizes(n, batch, task.coupled)) for n in counts]
        chunk = _Chunk(
            peers,
            work,
            {name: table[peers] for name, table in kept.items()},
            row_optimiser(work[:, : task.layout.trainable], task.settings, round),
            torch.tensor(per_epoch, device=peers.device),
        )
        schedule = steps(counts, batch, task.coupled)
        for epoch in range(task.settings.epochs):
            order = shuffled(task.seed[peers], task.ids[peers], count, max(counts), round, epoch)
            samples = start[:, None] + order.minimum(count[:, None] - 1)  # padding repeats a sample of one's own
            for step, groups in enumerate(schedule):
                for group in groups:
                    self._step(chunk, group, samples, count, round, epoch, step)
        rows[peers] = chunk.rows
        for name, table in kept.items():
            table[peers] = chunk.kept[name]

    def _step(
        self, chunk: _Chunk, group: Group, samples: Tensor, count: Tensor, round: int, epoch: int, step: int
    ) -> None:
        task, which = self.task, slice(group.first, group.last)
        window = slice(group.at, group.at + group.size)
        x, y = task.batch(samples[which, window])
        share = None
        if group.ragged:  # padded samples weigh nothing
            there = (torch.arange(group.at, group.at + group.size, device=x.device) < count[which, None]).to(
                task.layout.dtype
            )
            share = there / there.sum(1, keepdim=True)
        rows = chunk.rows[which]
        views = task.layout.views(rows)
        # Buffers are copied: writing them in place would touch the storage that autograd has saved parameters from.
        fixed = {n: v.clone() if n in self.buffers else v for n, v in views.items() if n not in self.trained}
        steps_done = epoch * chunk.per_epoch[which] + step
        fixed |= {name: table[which] for name, table in chunk.kept.items()}
        fixed |= self._dropout_keys(chunk.peers[which], round, steps_done)
        trained = {name: views[name].detach().requires_grad_() for name in self.trained}
        loss = over_peers(self._loss, trained, fixed, x, y, share)
        grads = torch.autograd.grad(loss.sum(), list(trained.values()))
        with torch.no_grad():
            flat = torch.cat([g.reshape(len(rows), -1) for g in grads], dim=1)
            chunk.optimiser.step(rows[:, : task.layout.trainable], flat, which, (steps_done + 1)[:, None].double())
            for name in self.buffers:
                views[name].copy_(fixed[name])

    def _loss(
        self, trained: dict[str, Tensor], fixed: dict[str, Tensor], x: Tensor, y: Tensor, share: Tensor | None
    ) -> Tensor:
        """One peer's mean loss over its batch."""
        losses = self.task.loss(functional_call(self.training, (trained, fixed), (x,)), y)
        return losses.mean() if share is None else (losses * share).sum()

    def _dropout_keys(self, peers: Tensor, round: int, step: Tensor) -> dict[str, Tensor]:
        seed, ids = self.task.seed[peers], self.task.ids[peers]
        return {name: bits(seed, ids, round, Purpose.DROPOUT, step, layer) for layer, name in enumerate(self.keys)}

    def predict(self, rows: Tensor, kept: Kept, x: Tensor) -> Tensor:
        def one(tensors: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(self.evaluating, tensors, (x,))  # type: ignore[no-any-return]

        with torch.no_grad():
            return over_peers(one, self.task.layout.views(rows) | kept, self.task.cast(x))
