"""The formula of the samples needed, against singular values that were drawn, and against a closed form."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from homophily.errors import UserError
from homophily.introductions import BUCKETS
from homophily.kinship import folded, ridge, whitening
from homophily.power import edge, expected, folded_strength, samples_needed, strength, typical_levels

PEERS, SAMPLES, NUMBERS, KINDS = 60, 20, 64, 3
VARIANCE = torch.arange(1, NUMBERS + 1, dtype=torch.float64) ** -1.0
LEVELS = VARIANCE / (VARIANCE + ridge(VARIANCE.diag()))
AT = 6  # the first of the directions in which kinds differ


def drawn(distance: float, seed: int) -> Tensor:
    """Squared singular values of whitened means of three kinds, at corners of a triangle with that whitened side."""
    chance = torch.Generator().manual_seed(seed)
    corners = torch.zeros(KINDS, NUMBERS, dtype=torch.float64)
    corners[:, AT : AT + KINDS] = torch.eye(KINDS).double() * distance / math.sqrt(2.0)
    corners = corners * (VARIANCE + ridge(VARIANCE.diag())).sqrt()
    noise = torch.randn(PEERS, SAMPLES, NUMBERS, generator=chance, dtype=torch.float64) * VARIANCE.sqrt()
    x = noise + corners[torch.arange(PEERS) % KINDS, None]
    mean = x.mean(1)
    within = (x - mean[:, None]).flatten(0, 1)
    covariance = within.T @ within / (PEERS * (SAMPLES - 1))
    scaled = math.sqrt(SAMPLES) * (mean - mean.mean(0)) @ whitening(covariance, ridge(covariance))
    return torch.linalg.svdvals(scaled).square()


def test_noise_ends_at_the_edge() -> None:
    tops = torch.tensor([float(drawn(0.0, seed)[0]) for seed in range(20)])
    told = edge(PEERS, SAMPLES, LEVELS)
    assert float(tops.mean()) < told < float(tops.mean() + 4 * tops.std())
    assert told == pytest.approx(float(tops.mean()), rel=0.1)


@pytest.mark.parametrize("distance", [1.0, 2.0])
def test_kinds_show_as_many_directions_as_strong_as_expected(distance: float) -> None:
    values = torch.stack([drawn(distance, seed) for seed in range(20)]).mean(0)
    level = float(LEVELS[AT : AT + KINDS].mean())
    told = expected(strength(distance, PEERS, KINDS), level, PEERS, SAMPLES, LEVELS)
    assert told == pytest.approx(float(values[: KINDS - 1].mean()), rel=0.04)
    assert float(values[KINDS - 1]) < edge(PEERS, SAMPLES, LEVELS) < told


@pytest.mark.parametrize("distance", [0.8, 1.5])
def test_without_a_ridge_it_is_the_largest_root_of_a_fisher_matrix(distance: float) -> None:
    """For which there is a closed form (Wang and Yao, 2017)."""
    own, estimated = NUMBERS / (PEERS - 1), NUMBERS / (PEERS * (SAMPLES - 1))
    spread = math.sqrt(own + estimated - own * estimated)
    whole = torch.ones(NUMBERS, dtype=torch.float64)
    assert edge(PEERS, SAMPLES, whole) == pytest.approx((PEERS - 1) * ((1 + spread) / (1 - estimated)) ** 2)
    per_sample = strength(distance, PEERS, KINDS)
    root = 1 + per_sample * SAMPLES / (PEERS - 1)
    assert root > (1 + spread) / (1 - estimated)
    closed = (PEERS - 1) * root * (root - 1 + own) / (root - 1 - root * estimated)
    assert expected(per_sample, 1.0, PEERS, SAMPLES, whole) == pytest.approx(closed)


def test_a_weak_difference_does_not_come_out_of_the_noise() -> None:
    weak = expected(strength(0.1, PEERS, KINDS), 0.7, PEERS, SAMPLES, LEVELS)
    assert weak == edge(PEERS, SAMPLES, LEVELS)


def test_typical_levels_fall_from_nearly_one() -> None:
    levels = typical_levels(512)
    assert 0.99 < float(levels[0]) < 1.0
    assert bool((levels.diff() < 0).all())
    assert float(levels.sum()) == pytest.approx(210.6, abs=0.1)  # 190 to 212 with the MLP on Fashion-MNIST


def test_folding_costs_a_difference_the_more_the_lower_its_level() -> None:
    """Gradients with the usual fall of variances over 8,192 coordinates, hashed into buckets; a difference in a few.

    The formula is a rule of thumb: within a third.
    """
    chance = torch.Generator().manual_seed(0)
    variance = torch.arange(1, 8193, dtype=torch.float64) ** (-4 / 3)
    sign = 1.0 - 2.0 * torch.randint(2, (8192, 1), generator=chance).double()
    bucket = torch.randint(BUCKETS, (8192, 1), generator=chance)
    sketch = torch.zeros(8192, BUCKETS, dtype=torch.float64).scatter_(1, bucket, sign)

    def strength_and_level(some: slice, numbers: int) -> tuple[float, float]:
        matrix = folded(sketch, numbers)
        covariance = matrix.T @ (variance[:, None] * matrix)
        whiten = whitening(covariance, ridge(covariance))
        means = matrix[some] @ whiten
        noise = means @ (whiten.T @ covariance @ whiten) @ means.T
        return float(means.square().sum()), float(noise.trace() / means.square().sum())

    for some in (slice(10, 30), slice(40, 80)):
        whole, level = strength_and_level(some, BUCKETS)
        for numbers in (256, 128):
            left = strength_and_level(some, numbers)[0] / whole
            assert folded_strength(1.0, level, numbers) == pytest.approx(left, rel=1 / 3)


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
    with pytest.raises(UserError, match=r"level = 1\.5"):
        samples_needed(1.0, 3, level=1.5)
