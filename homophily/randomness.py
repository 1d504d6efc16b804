"""Keyed randomness: every draw is a pure function of its keys, never of a generator's history.

The keys are usually (seed, peer, round, purpose, index). They are mixed with the SplitMix64 finaliser on whole
int64 tensors, so the same keys give the same numbers alone or in a batch, in any order, on a CPU or a GPU.
"""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

Key = int | Tensor


class Purpose(IntEnum):
    """What a draw is for: two draws with different purposes never share numbers. Values are part of the results."""

    INIT = 1
    SHUFFLE = 2  # the order of training samples in an epoch
    DROPOUT = 3
    MODULE = 4  # seeds torch's generator for modules that draw by themselves
    SHARE_TRAIN = 5  # which training samples go to whom
    SHARE_TEST = 6
    SHIFT = 7  # what a shift leaves to chance (label pairs, Dirichlet proportions)
    SOURCE = 8  # synthetic data
    CONTACTS = 9  # whom a peer knows
    MEET = 10
    CHOOSE = 11
    TIES = 12
    TOPOLOGY = 13
    SAMPLE = 14  # PANM's sample of neighbours
    SERVER = 15  # initial models of a server, and whom it asks
    SKETCH = 16  # buckets and signs of kin's sketches
    FINGERPRINT = 17  # samples behind a fingerprint
    KIN = 18  # kin's simulated noise, starts of k-means, clouds


_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _signed(word: int) -> int:
    """The int64 with the same bits."""
    return word - (1 << 64) if word >> 63 else word


def _shifted(x: Tensor, by: int) -> Tensor:
    """Logical right shift of int64."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _mix_int(x: int) -> int:
    x = (x + _GOLDEN) & _WORD
    x = ((x ^ (x >> 30)) * _FIRST) & _WORD
    x = ((x ^ (x >> 27)) * _SECOND) & _WORD
    return x ^ (x >> 31)


def _mix(x: Tensor) -> Tensor:
    x = x + _signed(_GOLDEN)
    x = (x ^ _shifted(x, 30)) * _signed(_FIRST)
    x = (x ^ _shifted(x, 27)) * _signed(_SECOND)
    return x ^ _shifted(x, 31)


def word(*keys: int) -> int:
    """64 mixed bits of plain integer keys, unsigned."""
    state = 0
    for key in keys:
        state = _mix_int(state ^ (key & _WORD))
    return state


def bits(*keys: Key) -> Tensor:
    """64 mixed bits per element of the broadcast keys, as int64. The largest tensor last: earlier mixes stay small."""
    if not any(isinstance(key, Tensor) and (key.is_cuda or is_functorch_wrapped_tensor(key)) for key in keys):
        return _bits_on_cpu(*keys)
    scalars = 0
    while scalars < len(keys) and not isinstance(keys[scalars], Tensor):
        scalars += 1
    state: Key = word(*(int(key) for key in keys[:scalars]))
    for key in keys[scalars:]:
        if isinstance(state, int):
            state = _signed(state)
        if not isinstance(key, Tensor):
            key = _signed(int(key) & _WORD)
        state = _mix(key ^ state)  # type: ignore[arg-type]
    return state if isinstance(state, Tensor) else torch.tensor(_signed(state))


def _bits_on_cpu(*keys: Key) -> Tensor:
    """The same in numpy, which has unsigned words and costs less for each operation."""
    state = np.zeros((), dtype=np.uint64)
    for key in keys:
        whole = key.long().numpy().view(np.uint64) if isinstance(key, Tensor) else np.uint64(int(key) & _WORD)
        state = np.atleast_1d(state ^ whole) + np.uint64(_GOLDEN)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(_FIRST)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(_SECOND)
        state ^= state >> np.uint64(31)
    out = torch.from_numpy(state.view(np.int64))
    return out if any(isinstance(key, Tensor) and key.dim() for key in keys) else out[0]


def uniform(*keys: Key) -> Tensor:
    """float64 in [0, 1), per element of the broadcast keys."""
    return _shifted(bits(*keys), 11).to(torch.float64) * 2.0**-53


def normal(*keys: Key) -> Tensor:
    """Standard normal float64 (Box-Muller), per element of the broadcast keys."""
    radius = torch.sqrt(-2.0 * torch.log1p(-uniform(*keys, 0)))
    return radius * torch.cos(2.0 * math.pi * uniform(*keys, 1))


def permutation(n: int, *keys: int) -> Tensor:
    """A uniform permutation of range(n)."""
    return bits(*keys, torch.arange(n)).argsort(stable=True)


def generator(*keys: int) -> torch.Generator:
    """A torch CPU generator started from the keys, for the few library calls that need one."""
    return torch.Generator().manual_seed(word(*keys) >> 1)
