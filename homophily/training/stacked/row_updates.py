"""torch.optim's SGD and Adam on rows of weights, where each layer's gradient comes as the product of two matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from homophily.training.optimisers import RowAdam
from homophily.training.stacked.written_out import Part
from homophily.training.task import Settings


class RowUpdates:
    """Moves rows [P, D], of which the first ``active`` take the present step; state starts at zero.

    The product goes straight to where it is needed: into the weights (plain SGD), the velocity or, for Adam, the
    gradient.
    """

    def __init__(self, rows: Tensor, settings: Settings, round: int) -> None:
        self.rows, self.active = rows, len(rows)
        self.lr, self.weight_decay = settings.lr_in(round), settings.weight_decay
        self.adam = RowAdam(rows, settings, round) if settings.optimizer == "adam" else None
        self.held = torch.zeros_like(rows) if self.adam or settings.momentum else None  # gradient or velocity
        if self.held is None:
            self._beta, self._alpha = 1.0 - self.lr * settings.weight_decay, -self.lr
        else:
            self._beta, self._alpha = 0.0 if self.adam else settings.momentum, 1.0

    def _target(self, part: Part) -> Tensor:
        return part((self.rows if self.held is None else self.held)[: self.active])

    def product(self, part: Part, g: Tensor, x: Tensor) -> None:
        self._target(part).baddbmm_(g.mT, x, beta=self._beta, alpha=self._alpha)

    def sum(self, part: Part, g: Tensor) -> None:
        target = self._target(part)
        if self._beta:
            target.mul_(self._beta).add_(g.sum(1), alpha=self._alpha)
        else:  # what was there may be anything
            target.copy_(g.sum(1).mul_(self._alpha))

    def move(self, steps: Tensor) -> None:
        """All gradients of a step have come: move the rows. steps: [P, 1] float64, this one included."""
        if self.held is None:
            return
        rows, held = self.rows[: self.active], self.held[: self.active]
        if self.adam:
            self.adam.step(rows, held, slice(0, self.active), steps)
            return
        if self.weight_decay:
            held.add_(rows, alpha=self.weight_decay)
        rows.sub_(held, alpha=self.lr)
