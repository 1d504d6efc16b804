"""The one-by-one engine in several threads: each trains its share of the peers, and each peer as one thread would."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from homophily.federation.layout import Kept
from homophily.training.cross_evaluation import CrossEvaluation
from homophily.training.one_by_one import OneByOne
from homophily.training.task import Task


class OneByOneInThreads(CrossEvaluation):
    """Trains and evaluates peers in ``workers`` threads; the network must not draw random numbers itself."""

    name = "one-by-one"

    def __init__(self, task: Task, workers: int) -> None:
        self.task = task
        self.engines = [OneByOne(task) for _ in range(workers)]
        self.pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))

    def train(self, rows: Tensor, kept: Kept, peers: Tensor, round: int) -> None:
        # Peers are dealt out like cards: their numbers of samples often grow or fall with their ids.
        parts = [peers[first :: len(self.engines)] for first in range(len(self.engines))]
        done = [
            self.pool.submit(engine.train, rows, kept, part, round)
            for engine, part in zip(self.engines, parts, strict=True)
        ]
        for part in done:
            part.result()

    def predict(self, rows: Tensor, kept: Kept, x: Tensor) -> Tensor:
        splits = torch.arange(len(rows)).tensor_split(len(self.engines))
        done = [
            self.pool.submit(engine.predict, rows[part], {name: table[part] for name, table in kept.items()}, x[part])
            for engine, part in zip(self.engines, splits, strict=True)
            if len(part)
        ]
        return torch.cat([part.result() for part in done])
