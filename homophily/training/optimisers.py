"""SGD, Adam and AdamW as in torch.optim, on rows of parameters; each row has its own rate and step count."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from homophily.training.task import Settings


class RowOptimiser(ABC):
    """Updates rows [P, T] of trainable parameters. lr: [P, 1] float64; state starts at zero."""

    def __init__(self, rows: Tensor, settings: Settings, lr: Tensor) -> None:
        self.clip, self.weight_decay = settings.clip, settings.weight_decay
        self.lr = lr
        self.state: list[Tensor] = []  # [P, T] each

    def restart(self, lr: Tensor) -> None:
        """Begin a round with the learning rates ``lr`` [P, 1]. Everything is changed in place."""
        self.lr.copy_(lr)
        for table in self.state:
            table.zero_()

    def step(self, rows: Tensor, grad: Tensor, which: slice, steps: Tensor) -> None:
        """Update ``rows`` (the rows ``which`` of all) by ``grad``, which is overwritten.

        steps: [P, 1] float64, the steps that each row has taken, this one included.
        """
        if self.clip is not None:
            clip_rows(grad, self.clip)
        self._move(rows, grad, which, steps)

    @abstractmethod
    def _move(self, rows: Tensor, grad: Tensor, which: slice, steps: Tensor) -> None: ...


class RowSGD(RowOptimiser):
    """SGD with momentum, Nesterov's momentum and weight decay."""

    def __init__(self, rows: Tensor, settings: Settings, lr: Tensor) -> None:
        super().__init__(rows, settings, lr)
        self.lr, self.momentum, self.nesterov = lr.to(rows.dtype), settings.momentum, settings.nesterov
        self.velocity = torch.zeros_like(rows) if self.momentum else None
        self.state = [] if self.velocity is None else [self.velocity]

    def _move(self, rows: Tensor, grad: Tensor, which: slice, steps: Tensor) -> None:
        if self.weight_decay:
            grad.add_(rows, alpha=self.weight_decay)
        if self.velocity is not None:
            velocity = self.velocity[which].mul_(self.momentum).add_(grad)
            grad = grad.add_(velocity, alpha=self.momentum) if self.nesterov else velocity
        rows.addcmul_(grad, self.lr[which], value=-1)


class RowAdam(RowOptimiser):
    """Adam and AdamW with torch's defaults (0.9, 0.999, 1e-8); Adam adds weight decay to the gradient."""

    beta1, beta2, eps = 0.9, 0.999, 1e-8

    def __init__(self, rows: Tensor, settings: Settings, lr: Tensor) -> None:
        super().__init__(rows, settings, lr)
        self.decoupled = settings.optimizer == "adamw"
        self.state = self.mean, self.square = [torch.zeros_like(rows), torch.zeros_like(rows)]

    def _move(self, rows: Tensor, grad: Tensor, which: slice, steps: Tensor) -> None:
        lr = self.lr[which]
        if self.weight_decay and self.decoupled:
            rows.mul_((1 - lr * self.weight_decay).to(rows.dtype))
        elif self.weight_decay:
            grad.add_(rows, alpha=self.weight_decay)
        mean = self.mean[which].lerp_(grad, 1 - self.beta1)
        square = self.square[which].mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
        size = (lr / (1 - self.beta1**steps)).to(rows.dtype)
        root = (1 - self.beta2**steps).sqrt().to(rows.dtype)
        rows.sub_(size * mean / (square.sqrt().div_(root).add_(self.eps)))


def row_optimiser(rows: Tensor, settings: Settings, lr: Tensor) -> RowOptimiser:
    """Return a new optimiser for rows [P, T] of trainable parameters. lr: [P, 1] float64."""
    return RowSGD(rows, settings, lr) if settings.optimizer == "sgd" else RowAdam(rows, settings, lr)


def clip_rows(grad: Tensor, most: float) -> None:
    """Scale each row [P, T] whose norm is above ``most`` to that norm, as torch.nn.utils.clip_grad_norm_ does."""
    norm = torch.linalg.vector_norm(grad, dim=1, keepdim=True)
    grad.mul_((most / (norm + 1e-6)).clamp_(max=1.0))
