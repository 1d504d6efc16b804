"""SGD, Adam and AdamW as in torch.optim, on rows of weights; a gradient arrives as the factors of a matrix product."""

from __future__ import annotations

import torch
from torch import Tensor

from homophily.training.optimisers import row_optimiser
from homophily.training.stacked.written_out import Part
from homophily.training.task import Settings


class RowUpdates:
    """Updates rows [P, D], of which the first ``active`` take the current step; state starts at zero. lr: [P, 1].

    The matrix product is accumulated directly into its target: the weights (plain SGD), the velocity (momentum) or the
    gradient, if an optimiser needs it.
    """

    def __init__(self, rows: Tensor, settings: Settings, lr: Tensor) -> None:
        self.rows, self.active = rows, len(rows)
        self.lr, self.weight_decay = lr.to(rows.dtype), settings.weight_decay
        into_state = settings.optimizer == "sgd" and settings.clip is None and not settings.nesterov
        into_rows = into_state and not settings.momentum and bool((lr == lr[0]).all())
        into_velocity = into_state and settings.momentum > 0
        self.optimiser = None if into_rows or into_velocity else row_optimiser(rows, settings, lr)
        self.held = None if into_rows else torch.zeros_like(rows)  # gradient or velocity
        if into_rows:
            rate = float(lr[0])
            self._beta, self._alpha = 1.0 - rate * settings.weight_decay, -rate
        else:
            self._beta, self._alpha = settings.momentum if into_velocity else 0.0, 1.0

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
        active = slice(0, self.active)
        rows, held = self.rows[active], self.held[active]
        if self.optimiser:
            self.optimiser.step(rows, held, active, steps)
            return
        if self.weight_decay:
            held.add_(rows, alpha=self.weight_decay)
        rows.addcmul_(held, self.lr[active], value=-1)
