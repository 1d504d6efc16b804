"""The account of several releases: against other accountants, its algebra, and the noise that it solves for."""

from __future__ import annotations

import math
from dataclasses import replace

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants import PRVAccountant, RDPAccountant

from homophily.privacy.accountant import Budget, Noise, delta_of, epsilon_of, solve
from homophily.privacy.gaussian import gaussian_delta, gaussian_epsilon
from homophily.privacy.loss_distribution import Release

DELTA = 1e-5
TRAINING = [
    Release(1.0, 0.05, 1000),
    Release(0.6, 0.01, 1000),
    Release(2.0, 0.1, 600),
    Release(5.0, 0.3, 3000),
    Release(0.8, 0.001, 20000),
]

releases = st.builds(
    Release, st.floats(0.7, 10), st.sampled_from([0.01, 0.05, 0.3, 1.0]), st.integers(1, 300), st.just(1)
)


def _event(release: Release) -> dp_accounting.DpEvent:
    gaussian = dp_accounting.GaussianDpEvent(release.noise)
    return gaussian if release.rate == 1 else dp_accounting.PoissonSampledDpEvent(release.rate, gaussian)


def _by_dp_accounting(together: list[Release], delta: float) -> float:
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for release in together:
        accountant.compose(_event(release), release.times)
    return float(accountant.get_epsilon(delta))


@pytest.mark.parametrize("release", TRAINING, ids=str)
def test_epsilon_of_training_is_within_1_percent_of_other_accountants(release: Release) -> None:
    epsilon = epsilon_of([release], DELTA)
    assert epsilon == pytest.approx(_by_dp_accounting([release], DELTA), rel=2e-3)
    prv, rdp = PRVAccountant(), RDPAccountant()
    prv.history = rdp.history = [(release.noise, release.rate, release.times)]
    assert epsilon == pytest.approx(prv.get_epsilon(DELTA), rel=1e-2)
    assert epsilon < rdp.get_epsilon(DELTA)  # Rényi accounting is an upper bound, and not a tight one


def test_epsilon_of_a_fingerprint_and_training_together() -> None:
    together = [Release(1.5), Release(1.2, 0.05, 1500)]
    epsilon = epsilon_of(together, DELTA)
    assert epsilon == pytest.approx(_by_dp_accounting(together, DELTA), rel=2e-3)
    alone = [epsilon_of([one], DELTA) for one in together]
    assert max(alone) < epsilon < sum(alone)


@pytest.mark.parametrize("group", [2, 5])
def test_epsilon_of_a_person_with_several_samples(group: int) -> None:
    release = Release(2.0 * group, 0.05, 400, group)
    event = dp_accounting.dp_event.MixtureOfGaussiansDpEvent(release.noise, range(group + 1), release.weights.tolist())
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(event, release.times)
    assert epsilon_of([release], DELTA) == pytest.approx(accountant.get_epsilon(DELTA), rel=5e-3)


@given(st.floats(0.5, 30), st.integers(1, 50))
@settings(max_examples=15, deadline=None)
def test_gaussian_releases_compose_to_one_of_less_noise(noise: float, times: int) -> None:
    exact = gaussian_epsilon(noise / times**0.5, DELTA)
    assert epsilon_of([Release(noise, 1.0, times)], DELTA) == pytest.approx(exact, rel=1e-3)
    assert epsilon_of([Release(noise, 1.0, times)], DELTA) >= exact * (1 - 1e-9)
    assert epsilon_of([Release(noise * 3, 1.0, times, group=3)], DELTA) == pytest.approx(exact, rel=1e-3)


@given(releases)
@settings(max_examples=15, deadline=None)
def test_delta_and_epsilon_are_inverse(release: Release) -> None:
    epsilon = epsilon_of([release], DELTA)
    assert delta_of([release], epsilon) == pytest.approx(DELTA, rel=1e-3) or epsilon == 0


@given(releases, releases)
@settings(max_examples=15, deadline=None)
def test_more_releases_more_noise_and_a_larger_sample_cost_what_they_should(one: Release, other: Release) -> None:
    epsilon, slack = epsilon_of([one], DELTA), 1 + 1e-3
    assert epsilon <= epsilon_of([one, other], DELTA) * slack
    assert epsilon_of([one, other], DELTA) <= (epsilon_of([one], DELTA / 2) + epsilon_of([other], DELTA / 2)) * slack
    assert epsilon_of([replace(one, times=one.times + 5)], DELTA) * slack >= epsilon
    assert epsilon_of([replace(one, noise=one.noise * 1.2)], DELTA) <= epsilon * slack
    assert epsilon_of([replace(one, rate=one.rate / 2)], DELTA) <= epsilon * slack


def test_releases_in_parts_and_in_any_order_have_one_account() -> None:
    first, second = Release(1.5), Release(1.2, 0.05, 100)
    parts = [replace(second, times=60), first, replace(second, times=40), replace(second, times=0)]
    assert epsilon_of(parts, DELTA) == epsilon_of([first, second], DELTA)
    assert epsilon_of([], DELTA) == delta_of([], 1.0) == 0.0


@pytest.mark.parametrize(
    "budget",
    [
        Budget(8.0, DELTA, 0.05, 3600, 1),
        Budget(1.0, DELTA, 0.5, 200, 3, share=0.3),
        Budget(4.0, DELTA, 0.1, 500),
        Budget(4.0, DELTA, 0.1, 300, 1, group=3),
        Budget(2.0, DELTA, fingerprints=2),
    ],
    ids=str,
)
def test_the_noise_is_the_smallest_that_keeps_the_promise(budget: Budget) -> None:
    noise = solve(budget)

    def spent(noise: Noise) -> float:
        return epsilon_of(noise.releases(budget.rate, budget.steps, budget.fingerprints, budget.group), budget.delta)

    assert budget.epsilon * 0.995 < spent(noise) <= budget.epsilon * (1 + 1e-6)
    if noise.fingerprint is not None and noise.training is not None:
        alone = spent(replace(noise, training=None))
        assert alone == pytest.approx(budget.share * budget.epsilon, rel=1e-3)
    assert (noise.fingerprint is None) == (budget.fingerprints == 0)
    assert (noise.training is None) == (budget.steps == 0)


@given(st.floats(0.5, 20.0), st.sampled_from([0.02, 0.1, 0.5]), st.integers(5, 200), st.integers(0, 2))
@settings(max_examples=4, deadline=None)
def test_a_larger_promise_fewer_steps_and_rarer_sampling_need_no_more_noise(
    epsilon: float, rate: float, steps: int, fingerprints: int
) -> None:
    budget, slack = Budget(epsilon, DELTA, rate, steps, fingerprints), 1 + 1e-3
    noise = solve(budget).training or 0.0
    for easier in (
        replace(budget, epsilon=1.5 * epsilon),
        replace(budget, steps=steps - 4),
        replace(budget, rate=rate / 2),
        replace(budget, delta=10 * DELTA),
    ):
        assert (solve(easier).training or 0.0) <= noise * slack


def test_a_promise_that_no_noise_keeps_needs_infinite_noise() -> None:
    assert math.isinf(solve(Budget(1e-4, 1e-9, 1.0, 10**6)).training or 0)


def test_one_release_is_the_analytic_gaussian() -> None:
    for epsilon in (0.0, 0.5, 3.0):
        assert delta_of([Release(1.3)], epsilon) == pytest.approx(gaussian_delta(1.3, epsilon), rel=1e-4)


def test_noise_that_was_released_before_is_kept_if_only_its_last_digits_differ() -> None:
    budget = Budget(4.0, DELTA, 0.25, 40, 1)
    solved = solve(budget)
    assert solved.fingerprint is not None
    assert solved.training is not None
    near = Noise(solved.fingerprint * (1 + 1e-13), solved.training * (1 + 1e-4))
    assert solve(budget, near) == near
    assert solve(budget, Noise(2 * solved.fingerprint, 0.9 * solved.training)) == solved
