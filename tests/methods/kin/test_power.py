"""The formulas of the samples needed and of the smallest difference seen, against what was drawn and closed forms."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

import homophily
from homophily.errors import UserError
from homophily.fingerprints.compute import summed_up
from homophily.fingerprints.embedding import BUCKETS
from homophily.fingerprints.fingerprint import LARGE, ROWS, SMALL_FEDERATION, Fingerprints, checked
from homophily.methods.kin.families import Evidence, Kinship, dimension, folded, kinship, ridge, whitening
from homophily.methods.kin.power import (
    edge,
    expected,
    folded_strength,
    in_words,
    samples_needed,
    smallest_difference,
    strength,
    typical_levels,
)

PEERS, SAMPLES, NUMBERS, GROUPS = 60, 20, 64, 3
VARIANCE = torch.arange(1, NUMBERS + 1, dtype=torch.float64) ** -1.0
LEVELS = VARIANCE / (VARIANCE + ridge(VARIANCE.diag()))
AT = 6  # the first of the directions in which groups differ


def drawn(distance: float, seed: int) -> Tensor:
    """Squared singular values of whitened means of three groups, at corners of a triangle with that whitened side."""
    chance = torch.Generator().manual_seed(seed)
    corners = torch.zeros(GROUPS, NUMBERS, dtype=torch.float64)
    corners[:, AT : AT + GROUPS] = torch.eye(GROUPS).double() * distance / math.sqrt(2.0)
    corners = corners * (VARIANCE + ridge(VARIANCE.diag())).sqrt()
    noise = torch.randn(PEERS, SAMPLES, NUMBERS, generator=chance, dtype=torch.float64) * VARIANCE.sqrt()
    x = noise + corners[torch.arange(PEERS) % GROUPS, None]
    mean = x.mean(1)
    within = (x - mean[:, None]).flatten(0, 1)
    covariance = within.T @ within / (PEERS * (SAMPLES - 1))
    scaled = math.sqrt(SAMPLES) * (mean - mean.mean(0)) @ whitening(covariance, ridge(covariance))
    return torch.linalg.svdvals(scaled).square()


def test_noise_ends_at_the_edge() -> None:
    tops = torch.tensor([float(drawn(0.0, seed)[0]) for seed in range(20)])
    end = edge(PEERS, SAMPLES, LEVELS)
    assert float(tops.mean()) < end < float(tops.mean() + 4 * tops.std())
    assert end == pytest.approx(float(tops.mean()), rel=0.1)


@pytest.mark.parametrize("distance", [1.0, 2.0])
def test_groups_show_as_many_directions_as_strong_as_expected(distance: float) -> None:
    values = torch.stack([drawn(distance, seed) for seed in range(20)]).mean(0)
    level = float(LEVELS[AT : AT + GROUPS].mean())
    value = expected(strength(distance, PEERS, GROUPS), level, PEERS, SAMPLES, LEVELS)
    assert value == pytest.approx(float(values[: GROUPS - 1].mean()), rel=0.04)
    assert float(values[GROUPS - 1]) < edge(PEERS, SAMPLES, LEVELS) < value


@pytest.mark.parametrize("distance", [0.8, 1.5])
def test_without_a_ridge_it_is_the_largest_root_of_a_fisher_matrix(distance: float) -> None:
    """For which there is a closed form (Wang and Yao, 2017)."""
    own, estimated = NUMBERS / (PEERS - 1), NUMBERS / (PEERS * (SAMPLES - 1))
    spread = math.sqrt(own + estimated - own * estimated)
    whole = torch.ones(NUMBERS, dtype=torch.float64)
    assert edge(PEERS, SAMPLES, whole) == pytest.approx((PEERS - 1) * ((1 + spread) / (1 - estimated)) ** 2)
    per_sample = strength(distance, PEERS, GROUPS)
    root = 1 + per_sample * SAMPLES / (PEERS - 1)
    assert root > (1 + spread) / (1 - estimated)
    closed = (PEERS - 1) * root * (root - 1 + own) / (root - 1 - root * estimated)
    assert expected(per_sample, 1.0, PEERS, SAMPLES, whole) == pytest.approx(closed)


def test_a_weak_difference_does_not_come_out_of_the_noise() -> None:
    weak = expected(strength(0.1, PEERS, GROUPS), 0.7, PEERS, SAMPLES, LEVELS)
    assert weak == edge(PEERS, SAMPLES, LEVELS)


def test_typical_levels_fall_from_nearly_one() -> None:
    levels = typical_levels(512)
    assert 0.99 < float(levels[0]) < 1.0
    assert bool((levels.diff() < 0).all())
    assert float(levels.sum()) == pytest.approx(187.7, abs=0.1)  # directions that count, of 512


def test_folding_costs_a_difference_the_more_the_lower_its_level() -> None:
    """Features with the usual fall of variances over 8,192 coordinates, hashed into buckets; a difference in a few.

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


def test_of_more_than_1000_peers_a_sample_of_1000_is_compared() -> None:
    """So that more peers do not help, and one row of noise in 256 numbers is what there is."""
    distance = 0.3
    needed = [samples_needed(strength(distance, peers, 2), peers) for peers in (LARGE, 2 * LARGE, 50 * LARGE)]
    assert needed[0] is not None
    assert needed == [needed[0]] * 3
    assert needed[0] < (samples_needed(strength(distance, 100, 2), 100) or 0)
    fewer = samples_needed(strength(distance, LARGE - 1, 2), LARGE - 1)
    assert fewer is not None
    assert fewer <= needed[0]  # one peer less, and larger fingerprints


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(UserError, match="peers = 2"):
        samples_needed(1.0, 2)
    with pytest.raises(UserError, match=r"level = 1\.5"):
        samples_needed(1.0, 3, level=1.5)


def federation(distance: float, counts: list[int], groups: int, seed: int) -> Fingerprints:
    """Peers in turn of groups at this whitened distance, at a level near 0.7, with the usual fall of the variances."""
    chance = torch.Generator().manual_seed(seed)
    variance = torch.arange(1, BUCKETS + 1, dtype=torch.float64) ** (-4 / 3)
    variance = variance[torch.randperm(BUCKETS, generator=torch.Generator().manual_seed(0))]
    numbers = dimension(sum(min(n, ROWS) - 1 for n in counts))
    assert numbers is not None
    left = folded(variance, numbers)
    scale = (left + ridge(left.diag())).sqrt()
    at = (left / scale.square() - 0.7).abs().argsort()[:groups]
    corners = torch.zeros(groups, BUCKETS, dtype=torch.float64)
    corners[torch.arange(groups), at] = distance / math.sqrt(2.0) * scale[at]
    count = torch.tensor(counts)
    noise = torch.randn(len(counts), max(counts), BUCKETS, generator=chance, dtype=torch.float64) * variance.sqrt()
    x = noise + corners[torch.arange(len(counts)) % groups, None]
    mask = torch.arange(max(counts)) < count[:, None]
    made = summed_up(torch.where(mask[..., None], x, 0.0), count, torch.arange(len(counts)), seed, SMALL_FEDERATION)
    return checked(*made, count, SMALL_FEDERATION)


def found(prints: Fingerprints, seed: int) -> Kinship:
    return kinship(prints, torch.arange(len(prints.count)), seed)


def smallest(counts: list[int], groups: int = 2) -> float:
    """As measured in a federation without any difference."""
    evidence = found(federation(0.0, counts, groups, seed=0), 0).evidence
    assert evidence is not None
    value = smallest_difference(evidence, groups)
    assert value is not None
    return value


@pytest.mark.parametrize(
    ("counts", "groups"),
    [([20] * 40, 2), ([20] * 40, 4), ([10, 10, 40, 40] * 10, 2), ([100] * 12, 2)],
)
def test_a_difference_clearly_above_the_smallest_is_found_and_one_clearly_below_is_not(
    counts: list[int], groups: int
) -> None:
    """With equal and unequal numbers of samples, more than 64 of them too; groups have as many samples in all."""
    limit = smallest(counts, groups)
    above, below = (
        sum(found(federation(part * limit, counts, groups, 10 + seed), seed).conclusive for seed in range(8))
        for part in (1.4, 0.6)
    )
    assert above >= 7
    assert below <= 1


def test_a_difference_of_just_the_smallest_is_found_in_about_half_of_the_federations() -> None:
    counts = [20] * 40
    limit = smallest(counts)
    assert 4 <= sum(found(federation(limit, counts, 2, 10 + seed), seed).rank > 0 for seed in range(20)) <= 16


def test_the_smallest_difference_falls_with_more_samples_and_with_more_peers() -> None:
    by_samples = [smallest([samples] * 40) for samples in (10, 20, 40, 100)]
    by_peers = [smallest([20] * peers) for peers in (10, 20, 40, 80)]
    assert all(a > b for values in (by_samples, by_peers) for a, b in pairwise(values))


def measured(peers: int, samples: int, levels: Tensor, top: float) -> Evidence:
    return Evidence(peers, peers * samples, peers * (samples - 1), top, levels)


def test_with_a_covariance_that_is_known_it_is_the_inverse_of_the_expected_singular_value() -> None:
    """So many degrees of freedom that estimated levels are the true ones."""
    peers, samples, level = 60, 10**7, 0.4
    top = 1.2 * edge(peers, 64, LEVELS)
    evidence = Evidence(peers, peers * samples, peers * samples, top, LEVELS)
    for groups in (2, 4):
        distance = smallest_difference(evidence, groups, level)
        assert distance is not None
        noise = homophily.methods.kin.power._Noise(peers, peers * samples, LEVELS)
        assert noise.with_signal(samples * strength(distance, peers, groups), level) == pytest.approx(top, rel=1e-4)


def test_levels_of_an_estimated_covariance_say_what_the_true_ones_do() -> None:
    """A third as many numbers as degrees of freedom, as kin has at most: the spectra differ much."""
    peers, samples = 60, 11
    freedom = peers * (samples - 1)
    variance = torch.arange(1, 201, dtype=torch.float64) ** (-4 / 3)
    chance = torch.Generator().manual_seed(0)
    x = torch.randn(freedom, 200, generator=chance, dtype=torch.float64) * variance.sqrt()
    estimated = torch.linalg.eigvalsh(x.T @ x / freedom)
    true, seen = (v / (v + ridge(v.diag())) for v in (variance, estimated))
    assert homophily.methods.kin.power._MeasuredNoise(peers, freedom, seen).edge[1] == pytest.approx(
        edge(peers, samples, true), rel=0.01
    )
    assert edge(peers, samples, seen) < 0.97 * edge(peers, samples, true)  # taken for the true ones, they are not


def test_more_groups_and_lower_levels_need_larger_differences() -> None:
    evidence = measured(60, 20, LEVELS, 1.1 * edge(60, 20, LEVELS))
    two, four = smallest_difference(evidence, 2), smallest_difference(evidence, 4)
    assert two is not None
    assert four == pytest.approx(math.sqrt(2) * two)
    by_level = [smallest_difference(evidence, 2, level) or 0.0 for level in (0.0, 0.3, 0.7, 1.0)]
    assert all(a > b > 0 for a, b in pairwise(by_level))


def test_an_edge_below_that_of_the_formula_counts_as_the_formulas() -> None:
    """In very small federations: what does not come out of the noise at all is not seen."""
    low, at = (smallest_difference(measured(60, 20, LEVELS, part * edge(60, 20, LEVELS))) for part in (0.5, 0.6))
    assert low == at
    assert low is not None
    assert low > 0


def test_without_any_noise_the_smallest_difference_is_unknown() -> None:
    assert smallest_difference(measured(60, 20, torch.zeros(64).double(), 1.0)) is None
    assert smallest_difference(measured(60, 20, LEVELS, math.nan)) is None


def test_impossible_groups_are_refused() -> None:
    with pytest.raises(UserError, match=r"groups = 1, .* from 2 to the 60 peers"):
        smallest_difference(measured(60, 20, LEVELS, 1.0), groups=1)
    with pytest.raises(UserError, match="groups = 61"):
        smallest_difference(measured(60, 20, LEVELS, 1.0), groups=61)
    with pytest.raises(UserError, match=r"level = -0\.1"):
        smallest_difference(measured(60, 20, LEVELS, 1.0), level=-0.1)


def test_the_smallest_difference_in_words() -> None:
    unit = "standard deviations of one embedded sample"
    assert in_words(1.0) == f"two equal groups that differ by less than 1 {unit} (four groups: 1.4)"
