"""The random numbers of private training: keyed in a simulation, secret on a real peer.

A draw that others can repeat protects nobody: noise that is known can be subtracted, and whoever knows the sampled
batches gets no benefit of doubt. Transforms are keyed by the place of a sample in the data, so that one sample more
changes how others are transformed, and whoever knows the keys sees it. So a real peer takes all of them from the
operating system and stores none.
"""

from __future__ import annotations

import math
import os
from typing import Protocol

import torch
from torch import Tensor

from homophily.randomness import Key, Purpose, bits, normal, uniform


class Draws(Protocol):
    """Numbers for the elements of the broadcast keys: (seed, peer, round, step, index)."""

    def uniform(self, *keys: Key) -> Tensor:
        """float64 in [0, 1): whether a sample is in a batch."""

    def normal(self, *keys: Key) -> Tensor:
        """Standard normal float64: the noise."""

    def bits(self, *keys: Key) -> Tensor:
        """int64: the keys of a transform's random numbers. Keys: (seed, peer, round, purpose, step, index)."""


class KeyedDraws:
    """Functions of their keys, for simulations."""

    def uniform(self, *keys: Key) -> Tensor:
        return uniform(*keys, Purpose.PRIVATE_BATCH)

    def normal(self, *keys: Key) -> Tensor:
        return normal(*keys, Purpose.PRIVATE_NOISE)

    def bits(self, *keys: Key) -> Tensor:
        return bits(*keys)


class SecretDraws:
    """From the operating system's generator; keys give only the shape and the device."""

    def uniform(self, *keys: Key) -> Tensor:
        return self._uniform(*_shape(*keys))

    def normal(self, *keys: Key) -> Tensor:
        shape, device = _shape(*keys)
        radius = torch.sqrt(-2.0 * torch.log1p(-self._uniform(shape, device)))
        return radius * torch.cos(2.0 * math.pi * self._uniform(shape, device))

    def bits(self, *keys: Key) -> Tensor:
        shape, device = _shape(*keys)
        return self._words(shape).to(device)

    def _uniform(self, shape: torch.Size, device: torch.device) -> Tensor:
        return (((self._words(shape) >> 11) & ((1 << 53) - 1)).to(torch.float64) * 2.0**-53).to(device)

    @staticmethod
    def _words(shape: torch.Size) -> Tensor:
        """int64 with 64 random bits each."""
        data = bytearray(os.urandom(8 * max(shape.numel(), 1)))
        return torch.frombuffer(data, dtype=torch.int64)[: shape.numel()].view(shape)


def _shape(*keys: Key) -> tuple[torch.Size, torch.device]:
    tensors = [key for key in keys if isinstance(key, Tensor)]
    return torch.broadcast_shapes(*(key.shape for key in tensors)), tensors[-1].device
