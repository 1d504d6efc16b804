"""The vectorised engine: trains many peers in one computation, with torch.vmap over the peers' models."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from homophily.federation.layout import Kept
from homophily.models.copying import shallow
from homophily.models.keyed_dropout import dropout_keys
from homophily.randomness import Purpose, bits
from homophily.training.batching import over_peers
from homophily.training.cross_evaluation import CrossEvaluation
from homophily.training.optimisers import RowOptimiser, row_optimiser
from homophily.training.schedule import Step, batches, chunks
from homophily.training.task import Task


@dataclass
class _Chunk:
    """The state of P peers in training, in descending order of sample counts; the first axis is the peer."""

    peers: Tensor  # [P]
    rows: Tensor  # [P, D]
    kept: Kept
    optimiser: RowOptimiser


class Vectorised(CrossEvaluation):
    """Trains ``chunk`` peers at a time."""

    name = "vectorised"

    def __init__(self, task: Task, chunk: int) -> None:
        self.task, self.chunk = task, chunk
        self.training, self.evaluating = shallow(task.module).train(), shallow(task.module).eval()
        self.keys = dropout_keys(task.module)
        self.trained = [c.name for c in task.layout.columns if c.trainable]
        self.buffers = [c.name for c in task.layout.columns if not c.parameter]

    def train(self, rows: Tensor, kept: Kept, peers: Tensor, round: int) -> None:
        for chunk in chunks(self.task, peers, self.chunk):
            self._train(rows, kept, chunk.to(rows.device), round)

    def _train(self, rows: Tensor, kept: Kept, peers: Tensor, round: int) -> None:
        work = rows[peers]
        optimiser = row_optimiser(
            work[:, : self.task.layout.trainable], self.task.settings, self.task.lr_in(round, peers)
        )
        chunk = _Chunk(peers, work, {name: table[peers] for name, table in kept.items()}, optimiser)
        for step in batches(self.task, peers, round):
            self._step(chunk, step, round)
        rows[peers] = chunk.rows
        for name, table in kept.items():
            table[peers] = chunk.kept[name]

    def _step(self, chunk: _Chunk, step: Step, round: int) -> None:
        task, which = self.task, step.which
        x, y = task.batch(step.samples)
        rows = chunk.rows[which]
        views = task.layout.views(rows)
        # Buffers are copied: they share storage with parameters that autograd has saved.
        fixed = {n: v.clone() if n in self.buffers else v for n, v in views.items() if n not in self.trained}
        fixed |= {name: table[which] for name, table in chunk.kept.items()}
        fixed |= self._dropout_keys(chunk.peers[which], round, step.before)
        trained = {name: views[name].detach().requires_grad_() for name in self.trained}
        loss = over_peers(self._loss, trained, fixed, x, y, step.share)
        grads = torch.autograd.grad(loss.sum(), list(trained.values()))
        with torch.no_grad():
            flat = torch.cat([g.reshape(len(rows), -1) for g in grads], dim=1)
            chunk.optimiser.step(rows[:, : task.layout.trainable], flat, which, (step.before + 1)[:, None].double())
            for name in self.buffers:
                views[name].copy_(fixed[name])

    def _loss(
        self, trained: dict[str, Tensor], fixed: dict[str, Tensor], x: Tensor, y: Tensor, share: Tensor
    ) -> Tensor:
        """Return one peer's mean loss over its batch."""
        losses = self.task.loss(functional_call(self.training, (trained, fixed), (x,)), y)
        return (losses * share).sum()

    def _dropout_keys(self, peers: Tensor, round: int, step: Tensor) -> dict[str, Tensor]:
        seed, ids = self.task.seed[peers], self.task.ids[peers]
        return {name: bits(seed, ids, round, Purpose.DROPOUT, step, layer) for layer, name in enumerate(self.keys)}

    def predict(self, rows: Tensor, kept: Kept, x: Tensor) -> Tensor:
        def one(tensors: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(self.evaluating, tensors, (x,))  # type: ignore[no-any-return]

        with torch.no_grad():
            return over_peers(one, self.task.layout.views(rows) | kept, self.task.cast(x))
