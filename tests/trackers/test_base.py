"""Names and numbers as trackers take them."""

from __future__ import annotations

import pytest

from homophily.trackers.base import ascii_name, numbers


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("accuracy", "accuracy"),
        ("accuracy_by_cluster/90°", "accuracy_by_cluster/90_degree_sign"),
        ("contrast 0.5", "contrast_0.5"),
        ("über", "_latin_small_letter_u_with_diaeresisber"),
        ("a/../b", "a/___/b"),
        ("a//b", "a/_/b"),
    ],
)
def test_refused_characters_become_words(name: str, accepted: str) -> None:
    assert ascii_name(name) == accepted


def test_numbers_of_a_line() -> None:
    line = {
        "round": 3, "accuracy": 50.0, "loss": None, "accuracy_by_cluster": {"a": 1.0, "b": None}, "diverged": [4, 7],
        "headline": "accuracy", "clients_of_model": [1, 2], "flag": True, "mine": float("nan"),
    }  # fmt: skip
    assert numbers(line) == {"round": 3, "accuracy": 50.0, "accuracy_by_cluster/a": 1.0, "diverged": 2}
