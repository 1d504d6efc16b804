"""Losses: (outputs [b, ...], targets [b, ...]) -> one loss per sample [b]."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from homophily.plugins.registry import Registry

Loss = Callable[[Tensor, Tensor], Tensor]

losses: Registry[Loss] = Registry("loss")


@losses("cross-entropy")
def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of class scores; for sequences (outputs [b, classes, length]) the mean over the sequence."""
    loss = F.cross_entropy(outputs, targets, reduction="none")
    return loss.flatten(1).mean(1) if loss.dim() > 1 else loss


@losses("mse")
def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean squared error over a sample's outputs."""
    return squared_error(outputs, targets).flatten(1).mean(1)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return squared errors in the shape of the targets; outputs [b] count as [b, 1] if the targets are [b, 1]."""
    return (outputs.reshape(targets.shape) - targets).square()


def _cross_entropy_gradient(outputs: Tensor, targets: Tensor) -> Tensor:
    chosen = F.one_hot(targets, outputs.shape[-1]).to(outputs.dtype)
    return outputs.softmax(-1) - chosen


def _mse_gradient(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets.reshape(outputs.shape)) * (2.0 / outputs.shape[-1])


output_gradients = {cross_entropy: _cross_entropy_gradient, mse: _mse_gradient}
"""Gradients of the per-sample losses with respect to the outputs [..., outputs], for the stacked engine."""


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the unmasked entries of each row: [P, n] -> [P] float64."""
    return torch.where(mask > 0, values.to(torch.float64), 0.0).sum(1) / mask.sum(1)
