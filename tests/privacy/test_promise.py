"""The table [privacy]: what a promise can be, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from homophily.errors import UserError
from homophily.privacy.accountant import Budget
from homophily.simulation.configuration import make


def test_a_promise_has_an_epsilon_and_defaults() -> None:
    promise = make({"privacy": {"epsilon": 8.0}}).privacy
    assert promise is not None
    assert (promise.delta, promise.unit, promise.group) == (1e-5, "sample", 1)
    assert Budget.of(promise, 0.1, 30, 2) == Budget(8.0, 1e-5, 0.1, 30, 2, 0.5, 1)


def test_a_person_has_a_bounded_number_of_samples() -> None:
    promise = make({"privacy": {"epsilon": 8.0, "unit": "person", "samples_per_person": 3}}).privacy
    assert promise is not None
    assert promise.group == 3


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "privacy.epsilon"),
        ({"epsilon": 0.0}, "privacy.epsilon"),
        ({"epsilon": 1.0, "delta": 0.5}, "privacy.delta"),
        ({"epsilon": 1.0, "unit": "peer"}, "depends on the whole peer"),
        ({"epsilon": 1.0, "unit": "person"}, "samples_per_person"),
        ({"epsilon": 1.0, "samples_per_person": 2}, "samples_per_person"),
        ({"epsilon": 1.0, "clipp": 2.0}, "did you mean clip"),
        ({"epsilon": 1.0, "clip": 1e-13}, "privacy.clip"),
    ],
)
def test_a_promise_that_cannot_be_kept_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make({"privacy": keys})
