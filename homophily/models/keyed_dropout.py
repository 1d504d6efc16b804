"""Dropout whose mask is a pure function of a key, so that simulated and real peers drop the same units."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from homophily.models.copying import copied
from homophily.randomness import uniform

_WHOLE_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


class KeyedDropout(nn.Module):
    """Drops elements (or whole channels) by a mask drawn from ``key``, which the trainer sets before each step.

    A layer that is used several times in a forward pass draws a new mask each time.
    """

    key: Tensor

    def __init__(self, p: float, channels: bool) -> None:
        super().__init__()
        self.p, self.channels, self.uses = p, channels, 0
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        shape = (*x.shape[:2], *(1 for _ in x.shape[2:])) if self.channels else tuple(x.shape)
        count = 1
        for size in shape:
            count *= size
        index = torch.arange(count, device=x.device).view(shape)
        keep = (uniform(self.key, self.uses, index) >= self.p).to(x.dtype)
        self.uses += 1
        return x * keep / (1.0 - self.p) if self.p < 1.0 else x * keep


def with_keyed_dropout(module: nn.Module) -> nn.Module:
    """Return a copy of the network with every dropout layer replaced by a keyed one."""
    if isinstance(module, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
        return KeyedDropout(module.p, isinstance(module, _WHOLE_CHANNELS))
    clone = copied(module)
    replaced = 0
    for parent in list(clone.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
                setattr(parent, name, KeyedDropout(child.p, isinstance(child, _WHOLE_CHANNELS)))
                replaced += 1
    if replaced:
        reset_uses_before_calls(clone)
    return clone


def reset_uses_before_calls(network: nn.Module) -> None:
    """Let a network count the uses of its keyed dropout layers anew in every forward pass."""
    network.register_forward_pre_hook(_reset_uses)


def _reset_uses(network: nn.Module, inputs: object) -> None:
    """Set the use counts of all keyed dropout layers to 0 at the beginning of a forward pass."""
    for layer in network.modules():
        if isinstance(layer, KeyedDropout):
            layer.uses = 0


def dropout_keys(module: nn.Module) -> list[str]:
    """Return the names of the key buffers of all keyed dropout layers."""
    return [f"{n}.key" if n else "key" for n, m in module.named_modules() if isinstance(m, KeyedDropout)]
