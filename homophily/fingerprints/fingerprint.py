"""Fingerprints as they travel: peers send them to each other once, before the first round."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from homophily.fingerprints.embedding import BUCKETS
from homophily.randomness import Purpose, bits

SAMPLES = 500  # samples of a peer behind its fingerprint, at most
LARGE = 1000  # peers: from here on fingerprints are small; of more than these, a sample is compared


@dataclass(frozen=True)
class Format:
    """What a fingerprint holds of a peer's embedded samples: their mean, and directions of their noise."""

    buckets: int  # numbers of the mean and of each direction
    rows: int  # directions of noise, at most

    def freedom(self, count: Tensor) -> Tensor:
        """Directions of noise that fingerprints of so many samples hold."""
        return (count - 1).clamp(min=0, max=self.rows)

    def bytes(self, count: Tensor) -> Tensor:
        """Bytes of fingerprints of so many samples: mean and directions, without the zeros of a triangle, as float16,
        and two scales. Fewer than two samples make none, which costs nothing."""
        rows = self.freedom(count)
        return torch.where(count >= 2, 2 * (self.buckets * (1 + rows) - rows * (rows - 1) // 2) + 16, 0)


SMALL_FEDERATION = Format(BUCKETS, 63)
LARGE_FEDERATION = Format(BUCKETS // 2, 1)


def format_of(peers: int) -> Format:
    """How fingerprints travel in a federation of so many peers.

    In a large one everyone's noise together is known well from one direction of each, and 1,000 of these are compared
    in 256 numbers.
    """
    return LARGE_FEDERATION if peers >= LARGE else SMALL_FEDERATION


@dataclass(frozen=True)
class Fingerprints:
    """Of N peers, d numbers each, rounded to what travels. A peer whose fingerprint cannot be used has count 0."""

    mean: Tensor  # [N, d] float32: mean of the embedded samples
    factor: Tensor  # [N, F, d] float32: directions of their noise; R'R = freedom times their covariance; padded with 0
    count: Tensor  # [N] int64: samples behind the mean
    freedom: Tensor  # [N] int64: degrees of freedom behind the factor
    bytes: Tensor  # [N] int64: what it takes to send it

    def to(self, device: torch.device) -> Fingerprints:
        return Fingerprints(*(table.to(device) for table in self._tables()))

    def of(self, peers: Tensor) -> Fingerprints:
        """Those of some peers [M]."""
        return Fingerprints(*(table[peers] for table in self._tables()))

    def _tables(self) -> tuple[Tensor, ...]:
        return self.mean, self.factor, self.count, self.freedom, self.bytes


def sampled(prints: Fingerprints, ids: Tensor, seed: int) -> Tensor:
    """The peers [S], ascending, that are compared: all that can be, or a keyed draw of 1,000."""
    usable = (prints.count >= 2).nonzero()[:, 0]
    if len(usable) <= LARGE:
        return usable
    order = bits(seed, Purpose.KIN, ids[usable]).argsort(stable=True)
    return usable[order[:LARGE]].sort().values


def checked(mean: Tensor, factor: Tensor, count: Tensor, form: Format) -> Fingerprints:
    """Fingerprints as received: those that are not finite or have fewer than two samples are left out (count 0)."""
    usable = (count >= 2) & mean.isfinite().all(1) & factor.isfinite().flatten(1).all(1)
    count = torch.where(usable, count, 0)
    return Fingerprints(
        torch.where(usable[:, None], mean, 0.0),
        torch.where(usable[:, None, None], factor, 0.0),
        count,
        form.freedom(count),
        form.bytes(count),
    )
