"""A lower confidence bound of epsilon from guesses about canaries: samples that were put into the data by coin.

Every canary is in the data of another release with probability 1/2, independently, and an attacker guesses which were.
If releases are (epsilon, delta)-private, a guess is right with probability at most (e^epsilon + delta) / (1 +
e^epsilon). So too many right guesses show that epsilon is larger. That holds for any mechanism, but 1,000 guesses can
never show an epsilon above about 5. A second bound assumes the mechanism of the account, Gaussian noise on sampled
sums, with noise of unknown scale: the rates of hits and false alarms show the largest scale that is possible (as Nasr
et al., 2023, arXiv 2302.07956, do).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt

import numpy as np
from scipy.stats import beta
from torch import Tensor

from homophily.privacy.accountant import epsilon_of
from homophily.privacy.loss_distribution import LossDistribution, Release

CONFIDENCE = 0.99
_MOST_SCALE = 16.0  # noise scales between 1 / 16 and 16 times the account's are considered
_SEARCH = 16  # halvings of the interval of scales


@dataclass(frozen=True)
class Guesses:
    """How many canaries were guessed to be in the data."""

    members: int  # canaries that were in the data
    hits: int  # of them, those guessed to be
    others: int  # canaries that were not
    alarms: int  # of them, those guessed to be

    @property
    def number(self) -> int:
        return self.members + self.others

    @property
    def correct(self) -> int:
        return self.hits + self.others - self.alarms

    @classmethod
    def of(cls, score: Tensor, inside: Tensor, limit: float | None) -> Guesses:
        """Guess that canaries with a score [m] above the limit were in the data; ``inside`` [m] tells which were.

        limit: None: the first half of the canaries sets it, and the guesses are about the second half.
        """
        if limit is None:
            half = len(score) // 2
            limit = _best_limit(score[:half], inside[:half])
            score, inside = score[half:], inside[half:]
        guess = score > limit
        members, hits, alarms = int(inside.sum()), int((guess & inside).sum()), int((guess & ~inside).sum())
        return cls(members, hits, len(inside) - members, alarms)

    def epsilon_of_any_mechanism(self, delta: float, confidence: float = CONFIDENCE) -> float:
        """What epsilon is at least, whatever the mechanism is; at least 0."""
        right = _lower(self.correct, self.number, 1 - confidence)
        return max(0.0, log((right - delta) / (1 - right))) if right > delta else 0.0

    def epsilon_of_gaussian(self, releases: Sequence[Release], delta: float, confidence: float = CONFIDENCE) -> float:
        """What epsilon is at least if ``releases`` have noise of another scale than their account says."""
        scale = self.largest_scale(releases, confidence)
        return epsilon_of([replace(release, noise=scale * release.noise) for release in releases], delta)

    def largest_scale(self, releases: Sequence[Release], confidence: float = CONFIDENCE) -> float:
        """The largest factor of the noise of ``releases`` with which such guesses are not too good to be chance."""
        chance = (1 - confidence) / 2  # for each of the two rates
        hits, alarms = (
            _lower(self.hits, self.members, chance),
            1 - _lower(self.others - self.alarms, self.others, chance),
        )
        low, high = 1 / _MOST_SCALE, _MOST_SCALE
        for _ in range(_SEARCH):
            middle = sqrt(low * high)
            possible = _possible([replace(release, noise=middle * release.noise) for release in releases], hits, alarms)
            low, high = (middle, high) if possible else (low, middle)
        return high  # the rounding makes the bound of epsilon smaller


def _best_limit(score: Tensor, inside: Tensor) -> float:
    """The limit with the most right guesses; of several the median."""
    values, order = score.sort()
    truth = inside[order].long()
    right = (1 - truth).cumsum(0) + truth.sum() - truth.cumsum(0)  # if everything up to a value is guessed to be out
    best = (right == right.max()).nonzero()[:, 0]
    at = int(best[len(best) // 2])
    after = min(at + 1, len(values) - 1)
    return float((values[at] + values[after]) / 2)


def _lower(right: int, of: int, chance: float) -> float:
    """A lower bound of a probability, which is too large with probability ``chance`` (Clopper and Pearson)."""
    return float(beta.ppf(chance, right, of - right + 1)) if right else 0.0


def _possible(releases: Sequence[Release], hits: float, alarms: float) -> bool:
    """Whether releases allow a guess with these rates: hits <= e^epsilon alarms + delta, and so for being out."""
    for removal, better, worse in ((True, hits, alarms), (False, 1 - alarms, 1 - hits)):
        found = LossDistribution(releases, removal)
        top = max(float(found.losses[-1]), 0.0)
        for epsilon in np.linspace(0.0, min(top, log(better / worse) if 0 < worse < better else top), 50):
            if better > exp(epsilon) * worse + found.delta(float(epsilon)):
                return False
    return True
