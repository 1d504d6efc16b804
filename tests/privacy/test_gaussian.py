"""The analytic Gaussian mechanism, against dp-accounting's, and its inverses."""

from __future__ import annotations

import math

import pytest
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian, get_sigma_gaussian
from hypothesis import given
from hypothesis import strategies as st

from homophily.privacy.gaussian import gaussian_delta, gaussian_epsilon, gaussian_noise

noises = st.floats(0.2, 50)
epsilons = st.floats(0.01, 20)
deltas = st.floats(1e-9, 0.05)


@pytest.mark.parametrize("noise", [0.5, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
def test_epsilon_equals_that_of_dp_accounting(noise: float, delta: float) -> None:
    assert gaussian_epsilon(noise, delta) == pytest.approx(get_epsilon_gaussian(noise, delta), rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_noise_equals_that_of_dp_accounting(epsilon: float) -> None:
    assert gaussian_noise(epsilon, 1e-5) == pytest.approx(get_sigma_gaussian(epsilon, 1e-5), rel=1e-6)


@given(noises, deltas)
def test_epsilon_is_the_inverse_of_delta(noise: float, delta: float) -> None:
    epsilon = gaussian_epsilon(noise, delta)
    assert gaussian_delta(noise, epsilon) <= delta * (1 + 1e-6)
    assert epsilon == 0 or gaussian_delta(noise, epsilon) == pytest.approx(delta, rel=1e-6)


@given(epsilons, deltas)
def test_noise_keeps_the_promise_and_no_less_noise_does(epsilon: float, delta: float) -> None:
    noise = gaussian_noise(epsilon, delta)
    assert gaussian_delta(noise, epsilon) <= delta
    assert gaussian_delta(noise * 0.999, epsilon) > delta


def test_an_impossible_promise_needs_infinite_noise() -> None:
    assert math.isinf(gaussian_noise(1e-13, 1e-12))
