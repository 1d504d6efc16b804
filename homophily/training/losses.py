"""Loss functions: (outputs [b, ...], targets [b, ...]) of a batch of b samples -> one loss per sample [b]."""

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
    """Cross-entropy of logits [b, classes]; for sequences, [b, classes, length], the mean over the sequence."""
    loss = F.cross_entropy(outputs, targets, reduction="none")
    return loss.flatten(1).mean(1) if loss.dim() > 1 else loss


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


output_gradients = {cross_entropy: _cross_entropy_gradient, mse: _mse_gradient}
"""For each loss, the function that returns its gradient with respect to the outputs [..., outputs] (stacked engine)."""


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of each row over the entries whose mask is above 0: [P, n] -> [P] float64."""
    return torch.where(mask > 0, values.to(torch.float64), 0.0).sum(1) / mask.sum(1)
