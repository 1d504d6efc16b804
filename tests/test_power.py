"""The formula of the samples needed, against singular values that were drawn."""

from itertools import pairwise

import numpy as np
import pytest

from homophily.errors import UserError
from homophily.power import edge, expected, samples_needed, strength

PEERS, SAMPLES, NUMBERS, KINDS = 60, 20, 64, 3


def drawn(distance: float, seed: int) -> np.ndarray:
    """Squared singular values of whitened means of three kinds, at corners of a triangle with that side."""
    chance = np.random.default_rng(seed)
    corners = np.zeros((KINDS, NUMBERS))
    corners[:, :KINDS] = np.eye(KINDS) * distance / np.sqrt(2)
    x = chance.normal(size=(PEERS, SAMPLES, NUMBERS)) + corners[np.arange(PEERS) % KINDS, None]
    mean = x.mean(1)
    within = (x - mean[:, None]).reshape(-1, NUMBERS)
    covariance = within.T @ within / (PEERS * (SAMPLES - 1))
    values, vectors = np.linalg.eigh(covariance)
    scaled = np.sqrt(SAMPLES) * (mean - mean.mean(0)) @ (vectors / np.sqrt(values))
    return np.linalg.svd(scaled, compute_uv=False) ** 2


def test_noise_ends_at_the_edge() -> None:
    tops = np.array([drawn(0.0, seed)[0] for seed in range(20)])
    assert tops.mean() < edge(PEERS, SAMPLES, NUMBERS) < tops.mean() + 4 * tops.std()
    assert edge(PEERS, SAMPLES, NUMBERS) == pytest.approx(tops.mean(), rel=0.1)


@pytest.mark.parametrize("distance", [1.2, 2.0])
def test_kinds_show_as_many_directions_as_strong_as_expected(distance: float) -> None:
    values = np.mean([drawn(distance, seed) for seed in range(20)], axis=0)
    told = expected(strength(distance, PEERS, KINDS), PEERS, SAMPLES, NUMBERS)
    assert told == pytest.approx(values[: KINDS - 1].mean(), rel=0.06)
    assert values[KINDS - 1] < edge(PEERS, SAMPLES, NUMBERS) < told


def test_a_weak_difference_does_not_come_out_of_the_noise() -> None:
    weak = expected(strength(0.1, PEERS, KINDS), PEERS, SAMPLES, NUMBERS)
    assert weak == edge(PEERS, SAMPLES, NUMBERS)


def test_what_is_further_apart_or_has_more_peers_needs_fewer_samples() -> None:
    needed = [samples_needed(strength(distance, 100, 4), 100) for distance in (0.25, 0.5, 1.0, 2.0)]
    assert all(a is not None and b is not None and a > b for a, b in pairwise(needed))
    few, many = (samples_needed(strength(0.5, peers, 2), peers) for peers in (20, 200))
    assert few is not None
    assert many is not None
    assert few > many
    assert samples_needed(0.0, 100) is None


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(UserError, match="peers = 2"):
        samples_needed(1.0, 2)
