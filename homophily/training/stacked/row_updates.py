"""SGD and Adam as in torch.optim, on rows of weights; a layer's gradient arrives as the factors of a matrix product."""

from __future__ import annotations

import torch
from torch import Tensor

from homophily.training.optimisers import RowAdam
from homophily.training.stacked.written_out import Part
from homophily.training.task import Settings


class RowUpdates:
    """Updates rows [P, D], of which the first ``active`` take the current step; state starts at zero.

    The matrix product is accumulated directly into its target: the weights (plain SGD), the velocity (momentum) or the
    gradient (Adam).
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
        else:  # the old content may be NaN, so it is not multiplied by 0
            target.copy_(g.sum(1).mul_(self._alpha))

    def move(self, steps: Tensor) -> None:
        """Update the rows after all gradients of a step were added. steps: [P, 1] float64, this one included."""
        if self.held is None:
            return
        rows, held = self.rows[: self.active], self.held[: self.active]
        if self.adam:
            self.adam.step(rows, held, slice(0, self.active), steps)
            return
        if self.weight_decay:
            held.add_(rows, alpha=self.weight_decay)
        rows.sub_(held, alpha=self.lr)
