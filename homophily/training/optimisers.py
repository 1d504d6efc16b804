"""SGD and Adam as in torch.optim, on rows of parameters; each row has its own step count."""

from __future__ import annotations

import torch
from torch import Tensor

from homophily.training.task import Settings


class RowSGD:
    """SGD with momentum and weight decay; state starts at zero."""

    def __init__(self, rows: Tensor, settings: Settings, round: int) -> None:
        self.lr, self.momentum, self.weight_decay = settings.lr_in(round), settings.momentum, settings.weight_decay
        self.velocity = torch.zeros_like(rows) if self.momentum else None

    def step(self, rows: Tensor, grad: Tensor, which: slice, steps: Tensor) -> None:
        """Update ``rows`` (the rows ``which`` of all) by ``grad``. steps: [P, 1], unused."""
        if self.weight_decay:
            grad.add_(rows, alpha=self.weight_decay)
        if self.velocity is not None:
            grad = self.velocity[which].mul_(self.momentum).add_(grad)
        rows.add_(grad, alpha=-self.lr)


class RowAdam:
    """Adam with torch's defaults (0.9, 0.999, 1e-8) and coupled weight decay; state starts at zero."""

    beta1, beta2, eps = 0.9, 0.999, 1e-8

    def __init__(self, rows: Tensor, settings: Settings, round: int) -> None:
        self.lr, self.weight_decay = settings.lr_in(round), settings.weight_decay
        self.mean, self.square = torch.zeros_like(rows), torch.zeros_like(rows)

    def step(self, rows: Tensor, grad: Tensor, which: slice, steps: Tensor) -> None:
        """Update ``rows`` (the rows ``which`` of all) by ``grad``. steps: [P, 1] float64, counted from 1."""
        if self.weight_decay:
            grad.add_(rows, alpha=self.weight_decay)
        mean = self.mean[which].lerp_(grad, 1 - self.beta1)
        square = self.square[which].mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
        size = (self.lr / (1 - self.beta1**steps)).to(rows.dtype)
        root = (1 - self.beta2**steps).sqrt().to(rows.dtype)
        rows.sub_(size * mean / (square.sqrt().div_(root).add_(self.eps)))


RowOptimiser = RowSGD | RowAdam


def row_optimiser(rows: Tensor, settings: Settings, round: int) -> RowOptimiser:
    """Return a new optimiser for rows [P, T] of trainable parameters."""
    return RowAdam(rows, settings, round) if settings.optimizer == "adam" else RowSGD(rows, settings, round)
