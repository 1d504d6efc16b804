"""Cross-evaluation: peers' models evaluated on the training data of other peers."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from homophily.federation.layout import Kept
from homophily.training.task import Task


class CrossEvaluation(ABC):
    """Implements cross_evaluate for an engine by its predict: copies the model and the samples of each pair."""

    task: Task

    @abstractmethod
    def predict(self, rows: Tensor, kept: Kept, x: Tensor) -> Tensor: ...

    def cross_evaluate(self, rows: Tensor, kept: Kept, model: Tensor, data: Tensor) -> Tensor:
        task, train = self.task, self.task.data.train
        samples = train.samples(data, most_samples(task, data))
        kept = {name: table[data] for name, table in kept.items()}
        return self.predict(with_personal(task, rows, model, data), kept, train.x[samples])


def with_personal(task: Task, rows: Tensor, model: Tensor, data: Tensor) -> Tensor:
    """Return the rows ``model`` [M] with the personal parameters of the peers ``data`` [M]: [M, D]."""
    if not task.layout.has_personal:
        return rows[model]
    return torch.where(task.layout.mask(shared=True).to(rows.device), rows[model], rows[data])


def most_samples(task: Task, peers: Tensor) -> int:
    """Return the largest number of training samples of any of the peers."""
    least, most = (int(count) for count in task.counts.aminmax())
    return most if least == most else int(task.counts[peers.cpu()].max())
