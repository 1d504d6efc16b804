"""Loss functions: (outputs [b, ...], targets [b, ...]) of a batch of b samples -> one loss per sample [b].

A sample's loss is the mean over its positions, labels or outputs. Engines and scores average over samples, so every
sample counts the same, however many of its positions count.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from homophily.data.task_kinds import IGNORED, counted
from homophily.plugins.registry import Registry

Loss = Callable[[Tensor, Tensor], Tensor]

losses: Registry[Loss] = Registry("loss")


@losses("cross-entropy")
def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of logits [b, classes]; of positions, [b, classes, length], the mean over those that count.

    A sample without a position that counts has loss 0.
    """
    loss = F.cross_entropy(outputs, targets, reduction="none", ignore_index=IGNORED)
    if loss.dim() == 1:
        return loss
    return loss.flatten(1).sum(1) / counted(targets).flatten(1).sum(1).clamp(min=1)


@losses("binary-cross-entropy")
def binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy of one logit per label [b, labels], averaged over a sample's labels."""
    return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(1)


@losses("mse")
def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squared error of each sample, averaged over its outputs."""
    return squared_error(outputs, targets).flatten(1).mean(1)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return squared errors in the shape of the targets; outputs [b] are accepted for targets [b, 1]."""
    return (outputs.reshape(targets.shape) - targets).square()


def _cross_entropy_gradient(outputs: Tensor, targets: Tensor) -> Tensor:
    one_hot = F.one_hot(targets, outputs.shape[-1]).to(outputs.dtype)
    return outputs.softmax(-1) - one_hot


def _mse_gradient(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets.reshape(outputs.shape)) * (2.0 / outputs.shape[-1])


def _binary_cross_entropy_gradient(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.sigmoid() - targets) / outputs.shape[-1]


output_gradients = {
    cross_entropy: _cross_entropy_gradient,
    binary_cross_entropy: _binary_cross_entropy_gradient,
    mse: _mse_gradient,
}
"""For each loss, the function that returns its gradient with respect to the outputs [..., outputs] (stacked engine)."""


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of each row over the entries whose mask is above 0: [P, n] -> [P] float64."""
    return torch.where(mask > 0, values.to(torch.float64), 0.0).sum(1) / mask.sum(1)
