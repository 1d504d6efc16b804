"""All peers in one computation, layer by layer: for networks that are a chain of layers written out here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from homophily.layout import Kept
from homophily.losses import output_gradients
from homophily.training.chain import Chain
from homophily.training.row_updates import RowUpdates
from homophily.training.schedule import batches, chunks
from homophily.training.task import Task
from homophily.training.visiting import Visits
from homophily.training.written_out import arranged, backwards, forwards, places

_PIECES = 32  # samples a peer evaluates at a time, or a batch if that is more


class Stacked(Visits):
    """Trains ``chunk`` peers at a time, so that what is worked on stays in cache; chunks are shared among threads.

    A thread works on peers of its own from the first step of a round to the last: nobody waits for anybody.
    """

    name = "stacked"

    def __init__(self, task: Task, chain: Chain, chunk: int, workers: int) -> None:
        self.task, self.chain, self.chunk = task, chain, chunk
        self.places = places(chain)
        self.columns = chain.columns.to(task.ids.device)
        self.back = self.columns.argsort()
        self.gradient = output_gradients[task.loss]
        self.workers = (
            ThreadPoolExecutor(workers, initializer=lambda: torch.set_num_threads(1)) if workers > 1 else None
        )

    def _all(self, work: Callable[[Tensor], None], parts: Iterable[Tensor]) -> None:
        list((self.workers.map if self.workers else map)(work, parts))

    @torch.no_grad()
    def train(self, rows: Tensor, kept: Kept, peers: Tensor, round: int) -> None:
        self._all(lambda chunk: self._train(rows, chunk, round), chunks(self.task, peers, self.chunk))

    @torch.no_grad()
    def _train(self, rows: Tensor, peers: Tensor, round: int) -> None:
        peers = peers.to(rows.device)
        work = rows[peers][:, self.columns]
        updates = RowUpdates(work, self.task.settings, round)
        for step in batches(self.task, peers, round):
            x, y = self.task.batch(step.samples)
            updates.active = len(x)
            self._step(work[: len(x)], arranged(self.chain, x), y, step.share, updates)
            updates.move((step.before + 1)[:, None].double())
        rows[peers] = work[:, self.back]

    def _step(self, rows: Tensor, x: Tensor, y: Tensor, share: Tensor, updates: RowUpdates) -> None:
        """Forwards and back: every stage's gradient goes to ``updates``."""
        tapes = []
        for stage, place in zip(self.chain.stages, self.places, strict=True):
            x, tape = forwards(stage, place, rows, x)
            tapes.append(tape)
        g: Tensor | None = self.gradient(x, y) * share[..., None]
        for i in reversed(range(len(tapes))):
            assert g is not None
            after_relu = self.chain.stages[i - 1].relu if i else None
            g = backwards(self.chain.stages[i], self.places[i], rows, tapes[i], g, updates, after_relu)

    @torch.no_grad()
    def predict(self, rows: Tensor, kept: Kept, x: Tensor) -> Tensor:
        out = rows.new_empty(*x.shape[:2], self.chain.stages[-1].outputs)
        piece = max(self.task.settings.batch, _PIECES)

        @torch.no_grad()
        def some(peers: Tensor) -> None:
            work, mine = rows[peers][:, self.columns], slice(int(peers[0]), int(peers[-1]) + 1)
            for first in range(0, x.shape[1], piece):
                value = arranged(self.chain, self.task.cast(x[mine, first : first + piece]))
                for stage, place in zip(self.chain.stages, self.places, strict=True):
                    value, _ = forwards(stage, place, work, value)
                out[mine, first : first + piece] = value

        self._all(some, torch.arange(len(rows), device=rows.device).split(self.chunk))
        return out


def _one_thread() -> None:
    torch.set_num_threads(1)
