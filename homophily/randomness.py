"""Keyed randomness: every draw is a pure function of its keys and does not depend on earlier draws.

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
    """What a draw is used for. Draws with different purposes are independent; changing a value changes results."""

    INIT = 1
    SHUFFLE = 2  # the order of training samples in an epoch
    DROPOUT = 3
    MODULE = 4  # the seed of torch's generator for modules that draw random numbers themselves
    SHARE_TRAIN = 5  # which training samples each peer gets
    SHARE_TEST = 6  # which test samples each peer gets
    SHIFT = 7  # the random part of a shift (label pairs, Dirichlet proportions)
    SOURCE = 8  # synthetic data
    CONTACTS = 9  # which peers a peer knows
    MEET = 10  # which peers a peer asks for a model
    CHOOSE = 11  # which peers a peer merges with
    TIES = 12  # the order of equal values
    TOPOLOGY = 13  # random graphs
    SAMPLE = 14  # PANM's sample of neighbours
    SERVER = 15  # a server's initial models and the peers it selects
    SKETCH = 16  # buckets and signs of kin's sketches
    FINGERPRINT = 17  # the samples that a fingerprint is computed from
    KIN = 18  # kin's simulated noise, initial centres of k-means, reference point clouds
    RECORD = 19  # the order in which peers are recorded
    TRANSFORM = 20  # transforms of training inputs
    PRIVATE_BATCH = 21  # which samples are in a batch of private training
    PRIVATE_NOISE = 22  # the noise of private training
    PRIVATE_FINGERPRINT = 23  # noise and signs of the private fingerprints of simulated peers
    AUDIT = 30  # canaries, and the random numbers of the copies of peers that have them


_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _signed(word: int) -> int:
    """Return the signed 64-bit integer with the same bits as an unsigned one."""
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
    """Return 64 mixed bits of plain integer keys, as an unsigned integer."""
    state = 0
    for key in keys:
        state = _mix_int(state ^ (key & _WORD))
    return state


def bits(*keys: Key) -> Tensor:
    """Return 64 mixed bits per element of the broadcast keys, as int64. Pass the largest tensor last: it is fastest."""
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
    """``bits`` in numpy, which has unsigned integers and less overhead per operation than torch on a CPU."""
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
    """Return a torch CPU generator seeded by the keys, for the few library calls that need one."""
    return torch.Generator().manual_seed(word(*keys) >> 1)
