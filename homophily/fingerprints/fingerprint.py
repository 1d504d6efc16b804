"""Fingerprints, which peers send each other once before the first round, as they arrive."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BUCKETS = 512  # numbers of a sketch; a large network's has twice as many
ROWS = 64  # samples behind the noise of a fingerprint, at most


def buckets(parameters: int) -> int:
    """Of the sketches of a network's gradients: 1,024 if a fingerprint is then a tenth of a model at most; else 512."""
    largest = int(print_bytes(2 * BUCKETS, torch.tensor(ROWS)))
    return 2 * BUCKETS if 10 * largest <= 4 * parameters else BUCKETS


def print_bytes(buckets: int, count: Tensor) -> Tensor:
    """Bytes of fingerprints of so many samples: mean, factor without the zeros below its diagonal, as float16; scales.

    Fewer than two samples make none, and cost nothing.
    """
    rows = _rows(count)
    return torch.where(count >= 2, 2 * (buckets * (1 + rows) - rows * (rows - 1) // 2) + 16, 0)


def _rows(count: Tensor) -> Tensor:
    """Degrees of freedom behind the factor, which is made of 64 samples at most."""
    return (count.clamp(max=ROWS) - 1).clamp(min=0)


@dataclass(frozen=True)
class Fingerprints:
    """Of N peers, d numbers a sketch, rounded to what travels. A peer whose fingerprint cannot be used has count 0."""

    mean: Tensor  # [N, d] float32: mean of the sketched gradients
    factor: Tensor  # [N, F, d] float32: triangular R, R'R = freedom times their covariance; padded with 0
    count: Tensor  # [N] int64: samples behind the mean
    bytes: Tensor  # [N] int64: what it takes to send it

    @property
    def freedom(self) -> Tensor:
        """[N] int64: degrees of freedom behind the factor."""
        return _rows(self.count)

    def to(self, device: torch.device) -> Fingerprints:
        return Fingerprints(self.mean.to(device), self.factor.to(device), self.count.to(device), self.bytes.to(device))

    def of(self, peers: Tensor) -> Fingerprints:
        """Those of some peers [M]."""
        return Fingerprints(self.mean[peers], self.factor[peers], self.count[peers], self.bytes[peers])


def checked(mean: Tensor, factor: Tensor, count: Tensor) -> Fingerprints:
    """Fingerprints as received: those that are not finite or have fewer than two samples are left out (count 0)."""
    usable = (count >= 2) & mean.isfinite().all(1) & factor.isfinite().flatten(1).all(1)
    count = torch.where(usable, count, 0)
    return Fingerprints(
        torch.where(usable[:, None], mean, 0.0),
        torch.where(usable[:, None, None], factor, 0.0),
        count,
        print_bytes(mean.shape[1], count),
    )
