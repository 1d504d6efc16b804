"""Bounds of epsilon from guesses about canaries."""

from __future__ import annotations

from math import log

import pytest
import torch

from homophily.privacy.accountant import epsilon_of
from homophily.privacy.guesses import Guesses
from homophily.privacy.loss_distribution import Release

DELTA = 1e-5


def _gaussian(noise: float, canaries: int, seed: int) -> Guesses:
    """Guesses about canaries of length 1 in a sum with Gaussian noise."""
    chance = torch.Generator().manual_seed(seed)
    inside = torch.rand(canaries, generator=chance) < 0.5
    return Guesses.of(inside + noise * torch.randn(canaries, generator=chance), inside, 0.5)


def test_guesses_count_hits_and_false_alarms() -> None:
    inside = torch.tensor([True, True, True, False, False])
    found = Guesses.of(torch.tensor([0.9, 0.8, 0.1, 0.7, 0.2]), inside, 0.5)
    assert (found.members, found.hits, found.others, found.alarms) == (3, 2, 2, 1)
    assert (found.number, found.correct) == (5, 3)


def test_without_a_limit_the_first_half_sets_it_and_the_second_is_guessed() -> None:
    inside = torch.tensor([False, True, False, True, True, False])
    found = Guesses.of(torch.tensor([10.0, 20.0, 11.0, 16.0, 14.0, 13.0]), inside, None)
    assert (found.members, found.hits, found.others, found.alarms) == (2, 1, 1, 0)  # the limit is between 11 and 20


@pytest.mark.parametrize(("noise", "reached"), [(0.7, 0.7), (4.0, 0.15)])
def test_a_correct_mechanism_is_rarely_contradicted_and_approached(noise: float, reached: float) -> None:
    account = epsilon_of([Release(noise)], DELTA)
    guesses = [_gaussian(noise, 2000, seed) for seed in range(5)]
    lower = [some.epsilon_of_gaussian([Release(noise)], DELTA) for some in guesses]
    assert max(lower) <= account
    assert sum(lower) / len(lower) > reached * account
    assert all(some.epsilon_of_any_mechanism(DELTA) <= account for some in guesses)


@pytest.mark.parametrize("noise", [0.7, 1.5])
def test_half_of_the_noise_is_noticed(noise: float) -> None:
    promised = epsilon_of([Release(noise)], DELTA)
    assert _gaussian(noise / 2, 1000, 0).epsilon_of_gaussian([Release(noise)], DELTA) > promised


def test_sampled_releases_are_judged_by_their_own_account() -> None:
    """A subsampled release shows less than a full one with equal noise, so equal guesses prove a smaller scale."""
    guesses = _gaussian(2.0, 1000, 0)
    assert guesses.largest_scale([Release(1.0, 0.2, 1)]) < guesses.largest_scale([Release(1.0, 1.0, 1)])


def test_right_guesses_bound_epsilon_of_any_mechanism() -> None:
    every = Guesses(500, 500, 500, 0)
    assert every.epsilon_of_any_mechanism(DELTA) == pytest.approx(log(1000 / -log(0.01)), abs=0.01)
    assert Guesses(500, 250, 500, 250).epsilon_of_any_mechanism(DELTA) == 0
    assert Guesses(500, 250, 500, 250).epsilon_of_gaussian([Release(1.0)], DELTA) < 0.3
