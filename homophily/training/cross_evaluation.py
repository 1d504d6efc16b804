"""Guests: models that are evaluated on the training data of others."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from homophily.federation.layout import Kept
from homophily.training.task import Task


class CrossEvaluation(ABC):
    """How an engine that can predict receives guests: each guest's row and its host's samples side by side."""

    task: Task

    @abstractmethod
    def predict(self, rows: Tensor, kept: Kept, x: Tensor) -> Tensor: ...

    def cross_evaluate(self, rows: Tensor, kept: Kept, guest: Tensor, host: Tensor) -> Tensor:
        task, data = self.task, self.task.data.train
        samples = data.samples(host, most_samples(task, host))
        kept = {name: table[host] for name, table in kept.items()}
        return self.predict(with_host_personal(task, rows, guest, host), kept, data.x[samples])


def with_host_personal(task: Task, rows: Tensor, guest: Tensor, host: Tensor) -> Tensor:
    """The rows of guests [M], with the personal numbers of their hosts: [M, D]."""
    if not task.layout.has_personal:
        return rows[guest]
    return torch.where(task.layout.mask(shared=True).to(rows.device), rows[guest], rows[host])


def most_samples(task: Task, peers: Tensor) -> int:
    """The largest number of training samples that one of them has."""
    least, most = (int(count) for count in task.counts.aminmax())
    return most if least == most else int(task.counts[peers.cpu()].max())
