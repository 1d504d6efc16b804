"""Privacy loss distributions: the exact account of many releases together, rounded so that it is never too small.

A release is compared on a data set and on the same without one unit. Its *privacy loss* is the logarithm of the ratio
of the two probabilities of what was released; losses of independent releases add up. The loss is discretised on a
grid: the mass between two points is divided between them so that both probabilities are kept ("connect the dots",
Doroshenko et al., 2022, arXiv 2207.04380), which can only raise delta. Sums of losses are convolutions, computed with
the FFT.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor, inf, log, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.special import logsumexp, ndtr
from scipy.stats import binom

Values = NDArray[np.float64]

_REACH = 9.0  # standard deviations of the noise that are on the grid; what lies beyond counts as an infinite loss
_TAIL = 1e-13  # mass beyond the largest sum of losses on the grid, added to delta
_FINE = 10  # grid points per standard deviation of the loss of one release
_FINE_SUM = 1500  # grid points per standard deviation of the sum
_CHERNOFF = np.geomspace(0.1, 60, 16)  # exponents of the tail bound, in units of the sum's standard deviation


@dataclass(frozen=True)
class Release:
    """``times`` releases of a sum over units, each with Gaussian noise and on a fresh Poisson sample of the data.

    noise: standard deviation of the noise, divided by the largest contribution of one sample. rate: the probability
    with which each sample is in the sum. group: the most samples that one protected unit has.
    """

    noise: float
    rate: float = 1.0
    times: int = 1
    group: int = 1

    @cached_property
    def weights(self) -> Values:
        """[group + 1]: the probability that so many samples of one unit are in the sum."""
        return np.asarray(binom.pmf(np.arange(self.group + 1), self.group, self.rate), dtype=np.float64)

    def loss(self, x: Values) -> Values:
        """The privacy loss of the released number x if the unit takes part; it rises with x."""
        k = np.flatnonzero(self.weights)
        terms = (2 * np.multiply.outer(x, k) - k**2) / (2 * self.noise**2)
        return np.asarray(logsumexp(terms, axis=-1, b=self.weights[k]))

    def at_loss(self, losses: Values) -> Values:
        """The released number with a given privacy loss; minus infinity for a loss that is too small to occur."""
        least = log(self.weights[0]) if self.weights[0] > 0 else -inf
        possible = losses > least
        out = np.full(losses.shape, -inf)
        if self.group == 1:
            inside = np.exp(losses[possible]) - self.weights[0]
            out[possible] = self.noise**2 * np.log(inside / self.weights[1]) + 0.5
            return out
        low = np.full(int(possible.sum()), -self.edge)
        high = np.full_like(low, self.edge)
        for _ in range(60):
            middle = (low + high) / 2
            below = self.loss(middle) < losses[possible]
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        out[possible] = low
        return out

    @property
    def edge(self) -> float:
        """The largest absolute value of a released number that is on the grid."""
        return self.group + _REACH * self.noise

    def mass(self, low: Values, high: Values, shifted: bool) -> Values:
        """The probability of numbers between two bounds; shifted: if the unit takes part."""
        if not shifted:
            return _between(low / self.noise, high / self.noise)
        found = np.zeros(low.shape)
        for k in np.flatnonzero(self.weights):
            found += self.weights[k] * _between((low - k) / self.noise, (high - k) / self.noise)
        return found

    def deviation(self) -> float:
        """The standard deviation of the privacy loss of one release, roughly."""
        x = np.linspace(-self.edge, self.edge, 2001)
        weight = self.mass(x[:-1], x[1:], shifted=True)
        loss = self.loss((x[:-1] + x[1:]) / 2)
        mean = (weight * loss).sum() / weight.sum()
        return float(sqrt((weight * (loss - mean) ** 2).sum() / weight.sum()))


def _between(low: Values, high: Values) -> Values:
    """The mass of a standard normal number between bounds, without cancellation in the upper tail."""
    flip = low > 0
    return np.asarray(np.where(flip, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low)))


@dataclass(frozen=True)
class _Discrete:
    """Probabilities of the losses ``(first + i) * step``, and of an infinite loss."""

    first: int
    mass: Values
    infinite: float

    def log_moment(self, exponents: Values, step: float) -> Values:
        """The logarithm of the mean of exp(exponent * loss), per exponent."""
        kept = np.flatnonzero(self.mass)
        losses = (self.first + kept) * step
        return np.asarray(logsumexp(np.multiply.outer(exponents, losses), axis=-1, b=self.mass[kept]))


def _discretised(release: Release, step: float, removal: bool) -> _Discrete:
    """The loss of one release on the grid. removal: the data with the unit against the data without, else reversed."""
    ends = release.loss(np.array([-release.edge, release.edge]))
    low, high = (ends[0], ends[1]) if removal else (-ends[1], -ends[0])
    first, last = floor(low / step), ceil(high / step)
    losses = np.arange(first, last + 1) * step
    x = release.at_loss(losses if removal else -losses)
    below, above = (x[:-1], x[1:]) if removal else (x[1:], x[:-1])
    p, q = release.mass(below, above, removal), release.mass(below, above, not removal)
    lower = np.clip((q * np.exp(losses[:-1]) - p * np.exp(-step)) / -np.expm1(-step), 0.0, p)
    mass = np.zeros(len(losses))
    mass[:-1] += lower
    mass[1:] += p - lower
    ends_low, ends_high = (np.array([-inf, x[-1]]), np.array([x[0], inf]))
    if not removal:
        ends_low, ends_high = (np.array([x[0], -inf]), np.array([inf, x[-1]]))
    below_all, above_all = release.mass(ends_low, ends_high, removal)
    mass[0] += below_all
    return _Discrete(first, mass, float(above_all))


class LossDistribution:
    """The distribution of the summed privacy loss of some releases, for one of the two directions."""

    def __init__(self, releases: Sequence[Release], removal: bool) -> None:
        deviations = [release.deviation() for release in releases]
        total = sqrt(sum(r.times * d**2 for r, d in zip(releases, deviations, strict=True)))
        self.step = min(min(deviations) / _FINE, total / _FINE_SUM)
        parts = [(_discretised(release, self.step, removal), release.times) for release in releases]
        low, high = self._range(parts, total)
        size = fft.next_fast_len(high - low + 1, real=True)
        spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
        for part, times in parts:
            wrapped = np.bincount(np.arange(part.first, part.first + len(part.mass)) % size, part.mass, size)
            spectrum *= fft.rfft(wrapped) ** times
        mass = np.clip(fft.irfft(spectrum, size), 0.0, None)
        self.losses = np.arange(low, low + size) * self.step
        self.mass = np.roll(mass, -(low % size))
        self.infinite = sum(part.infinite * times for part, times in parts) + _TAIL

    def _range(self, parts: Sequence[tuple[_Discrete, int]], deviation: float) -> tuple[int, int]:
        """The grid points between which the sum lies, except with the probability ``_TAIL`` on each side (Chernoff)."""
        exponents = _CHERNOFF / deviation

        def farthest(sign: int) -> int:
            moments = sum(times * part.log_moment(sign * exponents, self.step) for part, times in parts)
            return ceil(float(((moments - log(_TAIL)) / exponents).min()) / self.step)

        return -farthest(-1), farthest(1)

    def delta(self, epsilon: float) -> float:
        above = self.losses > epsilon
        return float(self.infinite - (self.mass[above] * np.expm1(epsilon - self.losses[above])).sum())

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon of at least 0; infinite if no epsilon has so small a delta."""
        if self.infinite > delta:
            return inf
        k = bisect_left(range(len(self.losses)), True, key=lambda i: self.delta(float(self.losses[i])) <= delta)
        shrunk = (self.mass[k:] * np.exp(self.losses[k] - self.losses[k:])).sum()
        return max(0.0, float(self.losses[k] + np.log((self.infinite + self.mass[k:].sum() - delta) / shrunk)))
