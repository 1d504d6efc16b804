"""Cross-evaluation: peers' models evaluated on the training or validation samples of other peers."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from homophily.federation.layout import Kept
from homophily.federation.similarity import LossSamples
from homophily.training.task import Task


class CrossEvaluation(ABC):
    """Implements cross_evaluate for an engine by its predict: copies the model and the samples of each pair."""

    task: Task

    @abstractmethod
    def predict(self, rows: Tensor, kept: Kept, x: Tensor) -> Tensor: ...

    def cross_evaluate(
        self, rows: Tensor, kept: Kept, model: Tensor, data: Tensor, samples: LossSamples = "train"
    ) -> Tensor:
        task, split = self.task, self.task.split(samples)
        index = split.samples(data, most_samples(task, data, samples))
        kept = {name: table[data] for name, table in kept.items()}
        return self.predict(with_personal(task, rows, model, data), kept, split.x[index])


def with_personal(task: Task, rows: Tensor, model: Tensor, data: Tensor) -> Tensor:
    """Return the rows ``model`` [M] with the personal parameters of the peers ``data`` [M]: [M, D]."""
    if not task.layout.has_personal:
        return rows[model]
    return torch.where(task.layout.mask(shared=True).to(rows.device), rows[model], rows[data])


def most_samples(task: Task, peers: Tensor, samples: LossSamples) -> int:
    """Return the largest number of training or validation samples of any of the peers."""
    counts = task.counts_of(samples)
    least, most = (int(count) for count in counts.aminmax())
    return most if least == most else int(counts[peers.cpu()].max())
