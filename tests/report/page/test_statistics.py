"""Intervals and tests over seeds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from homophily.report.page.statistics import Interval, holm, paired_t

CHANCES = st.lists(st.floats(0, 1), min_size=1, max_size=20)


def test_the_interval_is_student_s() -> None:
    """With 5 values the 97.5% quantile of t is 2.776; the standard deviation of 1 to 5 is the root of 2.5."""
    found = Interval.of([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3.0
    assert found.half == pytest.approx(2.776445 * 2.5**0.5 / 5**0.5, rel=1e-6)
    assert (found.low, found.high) == (found.mean - found.half, found.mean + found.half)


def test_one_seed_has_no_interval() -> None:
    assert Interval.of([4.0]) == Interval(4.0, None)
    assert Interval.of([4.0]).low is None


@pytest.mark.parametrize("seed", range(5))
def test_the_paired_test_equals_scipy_s(seed: int) -> None:
    first, second = np.random.default_rng(seed).normal(size=(2, 5 + seed))
    assert paired_t((first - second).tolist()) == pytest.approx(ttest_rel(first, second).pvalue)


def test_equal_differences_have_no_test_unless_they_are_zero() -> None:
    assert paired_t([0.0] * 5) == 1.0
    assert paired_t([2.0] * 5) is None


def test_holm_by_hand() -> None:
    """Holm's example: 0.01, 0.04, 0.03, 0.005 of four tests."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_a_test_without_p_still_counts() -> None:
    assert holm([0.01, None]) == [0.02, None]


@given(CHANCES)
def test_holm_keeps_the_order_and_only_raises(chances: list[float]) -> None:
    adjusted = holm(chances)
    assert all(after is not None and before <= after <= 1 for before, after in zip(chances, adjusted, strict=True))
    ranked = [after for _, after in sorted(zip(chances, adjusted, strict=True))]
    assert ranked == sorted(ranked)
