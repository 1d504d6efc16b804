"""The stacked engine on a CPU: trains many peers in one computation, with hand-written passes for each layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from homophily.federation.layout import Kept
from homophily.federation.similarity import LossSamples
from homophily.training.cross_evaluation import most_samples, with_personal
from homophily.training.losses import output_gradients
from homophily.training.optimisers import row_optimiser
from homophily.training.private import Private, clipped_sum
from homophily.training.schedule import batches, chunks
from homophily.training.stacked.chain import Chain
from homophily.training.stacked.row_updates import RowUpdates
from homophily.training.stacked.sample_gradients import SampleGradients
from homophily.training.stacked.written_out import StageOrder, arranged, forward_backward, forwards, places
from homophily.training.task import Task

T = TypeVar("T")

_EVALUATED = 16  # samples per peer evaluated at a time, or the batch size if that is larger


class Stacked:
    """Trains ``chunk`` peers at a time, so that their models stay in cache; threads train different chunks.

    A thread trains its peers from the first step of a round to the last, so threads do not wait for one another.
    """

    name = "stacked"

    def __init__(self, task: Task, chain: Chain, chunk: int, workers: int) -> None:
        self.task, self.chain, self.chunk = task, chain, chunk
        self.places = places(chain)
        self.order = StageOrder(chain, task.ids.device)
        self.gradient = output_gradients[task.loss]
        self.threads = workers
        self.workers = ThreadPoolExecutor(workers, initializer=_one_thread) if workers > 1 else None

    def on(self, task: Task, chunk: int) -> Stacked:
        return Stacked(task, self.chain, chunk, self.threads)

    def _all(self, work: Callable[[T], None], parts: Iterable[T]) -> None:
        list((self.workers.map if self.workers else map)(torch.no_grad()(work), parts))

    def train(self, rows: Tensor, kept: Kept, peers: Tensor, round: int) -> None:
        self._all(lambda chunk: self._train(rows, chunk, round), chunks(self.task, peers, self.chunk))

    def _train(self, rows: Tensor, peers: Tensor, round: int) -> None:
        if self.task.private is not None:
            self._train_privately(self.task.private, rows, peers, round)
            return
        epochs = range(self.task.epochs_of(peers))
        peers = peers.to(rows.device)
        work = self.order.sorted(rows[peers])
        updates = RowUpdates(work, self.task.settings, self.task.lr_in(round, peers))
        for step in batches(self.task, peers, round, epochs):
            x, y = self.task.batch(step.samples, step.keys)
            updates.active = len(x)
            output_grad = self._output_grad(y, step.share)
            forward_backward(self.chain, self.places, work[: len(x)], arranged(self.chain, x), output_grad, updates)
            updates.move(step.number[:, None])
        rows[peers] = self.order.restored(work)

    def _train_privately(self, private: Private, rows: Tensor, peers: Tensor, round: int) -> None:
        """A round of private training: the noised sum of clipped gradients of single samples in each step."""
        task, work = self.task, rows[peers]
        optimiser = row_optimiser(work, task.settings, task.lr_in(round, peers))
        for step in batches(task, peers, round, range(task.epochs_of(peers))):
            x, y = task.batch(step.samples, step.keys)
            models, some = work[step.which], peers[step.which]
            each, grad = SampleGradients(models, x.shape[1]), self._output_grad(y, step.share)
            forward_backward(self.chain, self.places, self.order.sorted(models), arranged(self.chain, x), grad, each)
            sums = [clipped_sum(*own, private.clip) for own in zip(each.table, step.share, strict=True)]
            total = self.order.restored(torch.stack(sums))
            flat = private.noised(total, task.seed[some], task.ids[some], some, round, step.before)
            optimiser.step(models, flat.to(task.layout.dtype), step.which, step.number[:, None])
        rows[peers] = work

    def _output_grad(self, y: Tensor, share: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a function from outputs to the gradient of the batch's loss with respect to them."""
        return lambda outputs: self.gradient(outputs, y) * share[..., None]

    def predict(self, rows: Tensor, kept: Kept, x: Tensor) -> Tensor:
        work = self.order.sorted(rows)
        return self._outputs(x.shape[:2], lambda pairs: work[pairs], lambda pairs, some: x[pairs, some])

    def cross_evaluate(
        self, rows: Tensor, kept: Kept, model: Tensor, data: Tensor, samples: LossSamples = "train"
    ) -> Tensor:
        task, split = self.task, self.task.split(samples)
        index = split.samples(data, most_samples(task, data, samples))
        if task.layout.has_personal:
            return self.predict(with_personal(task, rows, model, data), kept, split.x[index])
        work = self.order.sorted(rows)
        return self._outputs(
            index.shape, lambda pairs: work[model[pairs]], lambda pairs, some: split.x[index[pairs, some]]
        )

    def _outputs(
        self, shape: Sequence[int], models: Callable[[slice], Tensor], samples: Callable[[slice, slice], Tensor]
    ) -> Tensor:
        """Return outputs [M, n, outputs] for M pairs of a model and n samples, which are looked up chunk by chunk."""
        (pairs, count), device = shape, self.task.ids.device
        out = torch.empty(pairs, count, self.chain.stages[-1].outputs, dtype=self.task.layout.dtype, device=device)
        size = max(self.task.settings.batch, _EVALUATED)

        def evaluate(those: slice) -> None:
            rows = models(those)
            for some in _slices(count, size):
                value = arranged(self.chain, self.task.cast(samples(those, some)))
                for stage, place in zip(self.chain.stages, self.places, strict=True):
                    value, _ = forwards(stage, place, rows, value)
                out[those, some] = value

        self._all(evaluate, _slices(pairs, self.chunk))
        return out


def _slices(count: int, size: int) -> list[slice]:
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]


def _one_thread() -> None:
    torch.set_num_threads(1)
