"""Fingerprints as peers send them to each other: once, before the first round, or every ``renew`` rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from homophily.fingerprints.embedding import BUCKETS
from homophily.randomness import Purpose, bits

SAMPLES = 500  # the most samples of a peer that its fingerprint is computed from
ROWS = 64  # the most samples that the noise of a fingerprint is computed from
LARGE = 1000  # peers of a large federation: fingerprints are smaller, and at most so many are compared


@dataclass(frozen=True)
class Format:
    """What a fingerprint holds of a peer's embedded samples: their mean, and directions of their noise."""

    buckets: int  # numbers of the mean and of each direction
    rows: int  # directions of noise, at most

    def freedom(self, count: Tensor) -> Tensor:
        """Return the number of noise directions of fingerprints made from ``count`` samples."""
        return (count - 1).clamp(min=0, max=self.rows)

    def bytes(self, count: Tensor) -> Tensor:
        """Return the size in bytes of fingerprints made from ``count`` samples.

        It counts the mean and the directions in float16, without the zeros of the triangle, and two scales. A peer with
        fewer than two samples has no fingerprint: 0 bytes.
        """
        rows = self.freedom(count)
        return torch.where(count >= 2, 2 * (self.buckets * (1 + rows) - rows * (rows - 1) // 2) + 16, 0)


SMALL_FEDERATION = Format(BUCKETS, ROWS - 1)
LARGE_FEDERATION = Format(BUCKETS // 2, 1)


def format_of(peers: int) -> Format:
    """Return the format of fingerprints in a federation of so many peers.

    In a large federation one direction per peer is enough to estimate the pooled noise, and the mean has 256 numbers.
    """
    return LARGE_FEDERATION if peers >= LARGE else SMALL_FEDERATION


@dataclass(frozen=True)
class Fingerprints:
    """Fingerprints of N peers with d numbers per row, rounded as sent. A peer without a usable one has count 0."""

    mean: Tensor  # [N, d] float32: mean of the embedded samples
    factor: Tensor  # [N, F, d] float32: directions of their noise; R'R = freedom times their covariance; padded with 0
    count: Tensor  # [N] int64: samples behind the mean
    freedom: Tensor  # [N] int64: degrees of freedom behind the factor
    bytes: Tensor  # [N] int64: size of the fingerprint when it is sent

    def to(self, device: torch.device) -> Fingerprints:
        return Fingerprints(*(table.to(device) for table in self._tables()))

    def of(self, peers: Tensor) -> Fingerprints:
        """Return the fingerprints of some peers [M]."""
        return Fingerprints(*(table[peers] for table in self._tables()))

    def each(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply a function of means [M, d], which computes row by row, to those of all N peers."""
        return function(self.mean)

    def _tables(self) -> tuple[Tensor, ...]:
        return self.mean, self.factor, self.count, self.freedom, self.bytes


def sampled(prints: Fingerprints, ids: Tensor, seed: int) -> Tensor:
    """Return the peers [S], ascending, that are compared: all with a usable fingerprint, or 1,000 drawn by keys."""
    usable = (prints.count >= 2).nonzero()[:, 0]
    if len(usable) <= LARGE:
        return usable
    order = bits(seed, Purpose.KIN, ids[usable]).argsort(stable=True)
    return usable[order[:LARGE]].sort().values


def checked(mean: Tensor, factor: Tensor, count: Tensor, form: Format) -> Fingerprints:
    """Return fingerprints from their parts; those not finite or with fewer than two samples are left out (count 0)."""
    usable = (count >= 2) & mean.isfinite().all(1) & factor.isfinite().flatten(1).all(1)
    count = torch.where(usable, count, 0)
    return Fingerprints(
        torch.where(usable[:, None], mean, 0.0),
        torch.where(usable[:, None, None], factor, 0.0),
        count,
        form.freedom(count),
        form.bytes(count),
    )
