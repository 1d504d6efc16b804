"""Private training (DP-SGD): Poisson batches, clipped gradients of single samples, and noise on their sum.

A step draws each sample independently, clips the gradient of each to a norm, adds noise to the sum, and divides by the
expected batch (Abadi et al., 2016, arXiv 1607.00133). Everything after that uses only the noised gradient, so that
momentum, Adam, weight decay and the penalty of the objective cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

import torch
from scipy.stats import binom
from torch import Tensor

from homophily.privacy.draws import Draws

OVERFLOW = 0.01  # the share of delta that pays for batches that do not fit
_AT_ONCE = 1 << 20  # numbers of gradients that are clipped at a time: a CPU's cache holds them and their copies
_MOST_EXPONENT = 700.0  # beyond it, exp exceeds a float


def batch_room(samples: int, rate: float, steps: int, epsilon: float, delta: float) -> int:
    """The number of samples that fit into a batch, so that leaving out the others adds at most ``delta`` to delta.

    If more are drawn in any of the steps with probability p, what is released differs with this probability from a
    release without the limit, for both neighbouring data sets. So p (1 + e^epsilon) is added to delta (Chua et al.,
    2024, arXiv 2411.04205).
    """
    chance = delta / (1 + exp(min(epsilon, _MOST_EXPONENT)))
    return min(samples, int(binom.isf(chance / max(1, steps), samples, rate)))


@dataclass(frozen=True)
class Private:
    """How the N peers of a task train privately. All tensors are [N], on the CPU."""

    clip: float  # the largest norm of a sample's gradient
    noise: Tensor  # float64: standard deviation of the noise on the sum, divided by ``clip``
    rate: Tensor  # float64: the probability with which a sample is in a step
    expected: Tensor  # float64: the samples of a step that the sum is divided by
    steps: Tensor  # int64: steps per epoch
    room: int  # the most samples of a batch
    draws: Draws

    def drawn(
        self, seed: Tensor, ids: Tensor, rates: Tensor, counts: Tensor, round: int, step: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The samples of a step of P peers: positions [P, b], of which those with the mask [P, b] are in the batch.

        rates, counts: [P], of each peer; step: [P], its number in the round. More samples than fit are left out.
        """
        position = torch.arange(int(counts.max()), device=ids.device)
        chance = self.draws.uniform(seed[:, None], ids[:, None], round, step[:, None], position)
        inside = (chance < rates[:, None]) & (position < counts[:, None])
        order = inside.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, : self.room]
        return order.minimum(counts[:, None] - 1), inside.gather(1, order)

    def noised(self, total: Tensor, seed: Tensor, ids: Tensor, peers: Tensor, round: int, step: Tensor) -> Tensor:
        """The gradients [P, T] of a step from the sums [P, T] of clipped gradients of the ``peers`` [P] on the CPU.

        All are float64."""
        column = torch.arange(total.shape[1], device=total.device)
        noise = self.draws.normal(seed[:, None], ids[:, None], round, step[:, None], column)
        scale = (self.clip * self.noise[peers]).to(total.device)[:, None]
        expected = self.expected[peers].to(total.device)[:, None]
        out: Tensor = (total + scale * noise) / expected
        return out


def clipped_sum(gradients: Tensor, mask: Tensor, clip: float) -> Tensor:
    """The sum [T] of the gradients [b, T] of the samples in a batch [b], each scaled to a norm of at most ``clip``.

    A gradient that is not finite counts as zero, since a NaN would tell that its sample is there. The sum is float64:
    a sample must not change how the others are rounded.
    """
    gradients = gradients.float() if gradients.dtype.itemsize < 4 else gradients
    norm = torch.linalg.vector_norm(gradients, dim=1)
    usable = mask.bool() & norm.isfinite()
    factor = torch.where(usable, (clip / norm.clamp(min=clip)), 0.0).to(gradients.dtype)
    total, step = gradients.new_zeros(gradients.shape[1], dtype=torch.float64), max(1, _AT_ONCE // gradients.shape[1])
    for some, scale, inside in zip(gradients.split(step), factor.split(step), usable.split(step), strict=True):
        # Not a matrix product, which a GPU may round to fewer digits, so that a sample contributes more than ``clip``.
        total = total + torch.where(inside[:, None], scale[:, None] * some, 0.0).sum(0, dtype=torch.float64)
    return total
