"""Statistics over seeds. Peers of one run depend on one another, so no test is made over peers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtr, stdtrit

CONFIDENCE = 0.95
LEAST_SEEDS = 5  # for a test
WHY = (
    "Each row is a paired t-test over seeds: two methods with the same seed share the federation and the initial "
    "model, so the test uses the difference for each seed. Wilcoxon's signed-rank test is not used because with 5 "
    "seeds its smallest possible p is 0.0625. Holm's correction is over all rows of this table. Peers are never used "
    "as samples, because peers that merge depend on one another."
)


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, and half the width of its 95% confidence interval (Student's t); None with one seed."""

    mean: float
    half: float | None

    @property
    def low(self) -> float | None:
        return None if self.half is None else self.mean - self.half

    @property
    def high(self) -> float | None:
        return None if self.half is None else self.mean + self.half

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        mean, n = statistics.fmean(values), len(values)
        if n < 2:
            return cls(mean, None)
        return cls(mean, float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * statistics.stdev(values) / n**0.5)


def paired_t(differences: Sequence[float]) -> float | None:
    """The two-sided p of the hypothesis that the mean difference is 0; None if all differences are the same."""
    n, deviation = len(differences), statistics.stdev(differences)
    if deviation == 0.0:
        return None if differences[0] else 1.0
    t = abs(statistics.fmean(differences)) / (deviation / n**0.5)
    return float(2.0 * stdtr(n - 1, -t))


def holm(chances: Sequence[float | None]) -> list[float | None]:
    """Adjusted p values by Holm's step-down procedure; a p that is None counts as a test and stays None."""
    order = sorted((p, place) for place, p in enumerate(chances) if p is not None)
    adjusted: list[float | None] = [None] * len(chances)
    least = 0.0
    for rank, (p, place) in enumerate(order):
        least = max(least, min(1.0, (len(chances) - rank) * p))
        adjusted[place] = least
    return adjusted
