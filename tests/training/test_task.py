"""The learning rate of a round."""

from math import cos, pi

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homophily.training.task import Settings

ROUNDS = st.integers(1, 200)


def factors(rounds: int, **keys: object) -> list[float]:
    settings = Settings(rounds=rounds, **keys)  # type: ignore[arg-type]
    return [settings.lr_factor(round) for round in range(1, rounds + 1)]


def test_schedules_follow_their_formulas() -> None:
    assert factors(4, decay=0.5) == [1, 0.5, 0.25, 0.125]
    assert factors(4, schedule="constant", decay=0.5) == [1, 1, 1, 1]
    expected = [(1 + cos(pi * t / 4)) / 2 for t in range(4)]
    assert factors(4, schedule="cosine", decay=0.5) == pytest.approx(expected)
    assert expected[2] == pytest.approx(0.5)


def test_warm_up_rises_linearly_and_the_schedule_begins_after_it() -> None:
    assert factors(6, warmup=3, decay=0.5) == [0.25, 0.5, 0.75, 1, 0.5, 0.25]
    assert factors(6, warmup=3, schedule="constant") == [0.25, 0.5, 0.75, 1, 1, 1]
    assert factors(5, warmup=1, schedule="cosine") == pytest.approx([0.5, *factors(4, schedule="cosine")])


@given(ROUNDS, st.integers(0, 250), st.sampled_from(["exponential", "cosine", "constant"]))
def test_every_round_has_a_rate_above_zero_that_peaks_after_the_warm_up(
    rounds: int, warmup: int, schedule: str
) -> None:
    found = factors(rounds, warmup=warmup, schedule=schedule)
    assert all(0 < factor <= 1 for factor in found)
    risen = found[: warmup + 1]
    assert risen == sorted(risen)
    assert found[warmup:] == sorted(found[warmup:], reverse=True)
    assert all(factor == 1 for factor in found[warmup : warmup + 1])
