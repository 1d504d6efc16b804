"""One account for everything that a peer releases: epsilon and delta of releases together, and the noise they need.

Protected is one *unit*: a sample, or all samples of a person. The account holds for adding or removing one unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp, inf, isclose, log

from scipy.optimize import brentq

from homophily.config.privacy import Privacy
from homophily.privacy.gaussian import gaussian_noise
from homophily.privacy.loss_distribution import LossDistribution, Release

LEAST_NOISE, MOST_NOISE = 0.1, 1e4  # the noise of training steps that is searched
_RELATIVE = 2e-4  # a noise that is found exceeds the smallest one by at most this share


@lru_cache(maxsize=512)
def _distributions(releases: tuple[Release, ...]) -> tuple[LossDistribution, LossDistribution]:
    return LossDistribution(releases, removal=True), LossDistribution(releases, removal=False)


def _merged(releases: Sequence[Release]) -> tuple[Release, ...]:
    """The releases that happen at least once; equal ones are counted together, in a fixed order."""
    times: dict[Release, int] = {}
    for release in releases:
        if release.times:
            one = replace(release, times=1)
            times[one] = times.get(one, 0) + release.times
    one_first = sorted(times, key=lambda one: (one.rate, one.noise, one.group))
    return tuple(replace(one, times=times[one]) for one in one_first)


def epsilon_of(releases: Sequence[Release], delta: float) -> float:
    """The smallest epsilon, at this delta, of all releases together. 0 if nothing is released."""
    merged = _merged(releases)
    return max(found.epsilon(delta) for found in _distributions(merged)) if merged else 0.0


def delta_of(releases: Sequence[Release], epsilon: float) -> float:
    """The smallest delta, at this epsilon, of all releases together. 0 if nothing is released."""
    merged = _merged(releases)
    return max(found.delta(epsilon) for found in _distributions(merged)) if merged else 0.0


@dataclass(frozen=True)
class Budget:
    """What a peer promises, and what it is going to release.

    rate: the probability with which a sample is in a training step. fingerprints: the number of fingerprints that are
    released. share: the fingerprints alone may cost this share of epsilon. group: the most samples of one unit.
    """

    epsilon: float
    delta: float
    rate: float = 1.0
    steps: int = 0
    fingerprints: int = 0
    share: float = 0.5
    group: int = 1

    @classmethod
    def of(cls, promise: Privacy, rate: float, steps: int, fingerprints: int) -> Budget:
        """The budget of a peer that makes this promise."""
        return cls(promise.epsilon, promise.delta, rate, steps, fingerprints, promise.share, promise.group)


@dataclass(frozen=True)
class Noise:
    """Standard deviations of the noise, each divided by the largest contribution of one sample; None: no release."""

    fingerprint: float | None
    training: float | None

    def releases(self, rate: float, steps: int, fingerprints: int, group: int = 1) -> list[Release]:
        """What so many steps and fingerprints with this noise release."""
        out = []
        if self.fingerprint is not None:
            out.append(Release(self.fingerprint, 1.0, fingerprints, group))
        if self.training is not None:
            out.append(Release(self.training, rate, steps, group))
        return out


NOTHING = Noise(None, None)


@lru_cache(maxsize=4096)
def solve(budget: Budget, earlier: Noise = NOTHING) -> Noise:
    """The smallest noise that keeps the promise.

    The noise of the fingerprints is the smallest with which they alone keep ``share`` of epsilon, all of it if there
    are no training steps; that of training is the smallest with which all releases together keep epsilon. It is
    infinite if there is none of at most ``MOST_NOISE``.

    earlier: the noise of what was released before under this budget. It is kept if it differs only as the results of
    two machines or versions of a library do; a release with other noise would not be in the account.
    """
    share = budget.share if budget.steps else 1.0
    fingerprint = None
    if budget.fingerprints:
        # Gaussian releases compose to one whose noise is smaller by the root of their number.
        one = gaussian_noise(share * budget.epsilon, budget.delta)
        fingerprint = _kept(earlier.fingerprint, one * budget.group * budget.fingerprints**0.5)
    if not budget.steps:
        return Noise(fingerprint, None)

    def spent(training: float) -> float:
        releases = Noise(fingerprint, training).releases(budget.rate, budget.steps, budget.fingerprints, budget.group)
        return epsilon_of(releases, budget.delta)

    return Noise(fingerprint, _kept(earlier.training, _smallest(spent, budget.epsilon)))


def _kept(earlier: float | None, now: float) -> float:
    return earlier if earlier is not None and isclose(earlier, now, rel_tol=10 * _RELATIVE) else now


def _smallest(spent: Callable[[float], float], epsilon: float) -> float:
    """The smallest noise at which ``spent`` is at most epsilon; it falls with the noise."""

    def excess(logarithm: float) -> float:
        return min(log(max(spent(exp(logarithm)), 1e-9) / epsilon), 50.0)

    low, high = log(LEAST_NOISE), log(1.0)
    while excess(high) > 0:
        low, high = high, high + log(2)
        if high > log(MOST_NOISE):
            return inf
    if excess(low) <= 0:
        return exp(low)
    found = float(brentq(excess, low, high, xtol=_RELATIVE / 2))
    while excess(found) > 0:  # so that the promise is kept, and not only nearly
        found = min(found + _RELATIVE / 2, high)
    return exp(found)
