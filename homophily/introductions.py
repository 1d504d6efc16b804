"""What peers tell each other once, before the first round: fingerprints, as they are after travelling."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BUCKETS = 1024
ROWS = 64  # samples behind the noise of a fingerprint, at most


@dataclass(frozen=True)
class Fingerprints:
    """Of N peers, rounded to what travels. A peer whose fingerprint cannot be used has count 0."""

    mean: Tensor  # [N, 1024] float32: mean of the sketched gradients
    factor: Tensor  # [N, F, 1024] float32: triangular R, R'R = freedom times their covariance; padded with 0
    count: Tensor  # [N] int64: samples behind the mean
    bytes: Tensor  # [N] int64: what it takes to send it

    @property
    def freedom(self) -> Tensor:
        """[N] int64: degrees of freedom behind the factor, which is made of 64 samples at most."""
        return (self.count.clamp(max=ROWS) - 1).clamp(min=0)

    def to(self, device: torch.device) -> Fingerprints:
        return Fingerprints(self.mean.to(device), self.factor.to(device), self.count.to(device), self.bytes.to(device))

    def of(self, peers: Tensor) -> Fingerprints:
        """Those of some peers [M]."""
        return Fingerprints(self.mean[peers], self.factor[peers], self.count[peers], self.bytes[peers])


def checked(mean: Tensor, factor: Tensor, count: Tensor) -> Fingerprints:
    """Fingerprints as received: those that are not finite or have fewer than two samples are left out (count 0)."""
    usable = (count >= 2) & mean.isfinite().all(1) & factor.isfinite().flatten(1).all(1)
    rows = (count.clamp(max=ROWS) - 1).clamp(min=0)
    numbers = BUCKETS * (1 + rows) - rows * (rows - 1) // 2  # mean, and factor without the zeros below its diagonal
    size = 2 * numbers + 16  # as float16; the count and two scales
    return Fingerprints(
        torch.where(usable[:, None], mean, 0.0),
        torch.where(usable[:, None, None], factor, 0.0),
        torch.where(usable, count, 0),
        torch.where(usable, size, 0),
    )
