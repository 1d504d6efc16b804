"""How a headline metric is written in tables."""

from __future__ import annotations

import pytest

from homophily.runs.headline import ACCURACY, MSE


@pytest.mark.parametrize(
    ("value", "text"), [(1.00012, "1.000"), (1.0013, "1.001"), (0.5, "0.5000"), (1234.4, "1234"), (None, "-")]
)
def test_a_number_has_four_significant_digits(value: float | None, text: str) -> None:
    assert MSE.text(value) == text


def test_a_percentage_has_one_decimal() -> None:
    assert ACCURACY.text(71.26) == "71.3"
