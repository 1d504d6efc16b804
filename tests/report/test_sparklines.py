"""Scores by round as blocks of text, on one scale for all methods."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from homophily.report.sparklines import _shortened, sparkline
from homophily.runs.statistics import mean_by_round


def test_the_lowest_and_highest_values_have_the_lowest_and_highest_blocks() -> None:
    assert sparkline([0.0, 50.0, 100.0], 0.0, 100.0) == "▁▅█"
    assert sparkline([50.0, 60.0], 0.0, 100.0) == "▅▅"
    assert sparkline([3.0, 3.0], 3.0, 3.0) == "██"
    assert sparkline([], 0.0, 1.0) == ""


@given(st.lists(st.floats(-1e6, 1e6), max_size=200))
def test_a_long_curve_is_shortened_to_means_of_its_parts(values: list[float]) -> None:
    short = _shortened(values)
    assert len(short) == min(16, len(values))
    if len(values) <= 16:
        assert short == values
    elif values:
        assert min(values) - 1e-3 <= min(short) <= max(short) <= max(values) + 1e-3


def test_rounds_in_which_a_seed_has_no_score_are_left_out() -> None:
    first = [{"round": 1, "accuracy": 10.0}, {"round": 2}, {"round": 3, "accuracy": 30.0}]
    second = [{"round": 1, "accuracy": 20.0}, {"round": 2, "accuracy": 5.0}, {"round": 3, "accuracy": None}]
    assert mean_by_round([first, second], "accuracy") == {1: 15.0}
