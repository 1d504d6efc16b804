"""Partitions with class proportions per peer, normalisation, and refusals. Samples as in test_partition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from homophily.data.shifts import shifts
from homophily.data.types import ClusterSpec, PartitionPlan, Samples, Source, Split
from homophily.errors import UserError
from tests.data.test_partition import (
    SEEDS,
    UNHURRIED,
    alike,
    all_numbers,
    class_counts,
    mixed,
    numbered,
    pools,
    shared,
)

# Class proportions per peer


MIXES = st.lists(st.lists(st.floats(0, 1), min_size=5, max_size=5), min_size=1, max_size=8)


@UNHURRIED
@given(MIXES, st.integers(1, 18), st.integers(0, 4), st.booleans(), SEEDS)
def test_with_any_class_proportions_peers_get_the_requested_amounts_without_overlap(
    mix: list[list[float]], train: int, validation: int, has_test: bool, seed: int
) -> None:
    plan = mixed(mix, numbered(n_test=100 if has_test else None))
    shares = shared(plan, len(mix), train=train, validation=validation, test=3, seed=seed)
    assert shares.train.count.tolist() == [train] * len(mix)
    assert shares.test.count.tolist() == [3] * len(mix)
    out = all_numbers(shares.train)
    if validation:
        out += all_numbers(shares.validation)
    if not has_test:
        out += all_numbers(shares.test)
    assert len(set(out)) == len(out)


def test_training_and_test_samples_follow_the_class_proportions() -> None:
    shares = shared(mixed([[0.5, 0.3, 0.2, 0, 0], [0, 0, 0, 0.1, 0.9]]), 2, train=20, validation=10, test=10)
    assert class_counts(shares.train).tolist() == [[10, 6, 4, 0, 0], [0, 0, 0, 2, 18]]
    assert class_counts(shares.validation).tolist() == [[5, 3, 2, 0, 0], [0, 0, 0, 1, 9]]
    assert class_counts(shares.test).tolist() == [[5, 3, 2, 0, 0], [0, 0, 0, 1, 9]]


def test_test_samples_follow_the_classes_of_the_training_samples() -> None:
    shares = shared(mixed([[1, 0, 0, 0, 0]]), 1, train=80, test=16)  # 40 of each class: half must be others
    assert class_counts(shares.train).tolist() == [[40, 10, 10, 10, 10]]
    assert class_counts(shares.test).tolist() == [[8, 2, 2, 2, 2]]


def test_missing_test_samples_of_a_class_come_from_the_peers_other_classes() -> None:
    both = mixed([[0.5, 0.5, 0, 0, 0]], numbered(n_test=15))  # 3 test samples of each class
    assert class_counts(shared(both, 1, test=5).test).tolist() == [[3, 2, 0, 0, 0]]
    assert class_counts(shared(both, 1, test=50).test).tolist() == [[3, 3, 0, 0, 0]]


@UNHURRIED
@given(MIXES, st.integers(0, 3), st.booleans(), SEEDS)
def test_train_all_with_proportions_uses_every_sample_and_at_least_two_per_peer(
    mix: list[list[float]], validation: int, has_test: bool, seed: int
) -> None:
    plan = mixed(mix, numbered(n_test=100 if has_test else None))
    shares = shared(plan, len(mix), train="all", validation=validation, test=2, seed=seed)
    out = all_numbers(shares.train)
    assert shares.train.count.min() >= 2
    if validation:
        assert shares.validation is not None
        assert shares.validation.count.tolist() == [validation] * len(mix)
        out += all_numbers(shares.validation)
    if not has_test:
        out += all_numbers(shares.test)
    assert sorted(out) == list(range(200))


def test_train_all_divides_each_class_by_the_peers_proportions() -> None:
    shares = shared(mixed([[0.8, 0.2, 0, 0, 0], [0.2, 0.2, 0.2, 0.2, 0.2]]), 2, train="all")
    assert class_counts(shares.train).tolist() == [[32, 20, 0, 0, 0], [8, 20, 40, 40, 40]]


@UNHURRIED
@given(SEEDS)
def test_a_small_alpha_makes_peers_with_fewer_labels(seed: int) -> None:
    source = numbered(n=400)
    plans = [shifts.get("dirichlet")(source, 10, seed, alpha=alpha) for alpha in (0.05, 100.0)]
    few, many = ((class_counts(shared(plan, 10, train=20).train) > 0).sum() for plan in plans)
    assert few < many


# What a model sees


def test_standard_scales_by_the_whole_training_set() -> None:
    shares = shared(alike(), 4, train=50, test="all", normalise="standard")
    every = torch.arange(200.0)
    assert shares.train.x.mean().abs() < 1e-4
    assert torch.allclose(shares.train.x.sort(dim=0).values.flatten(), (every - 99.5) / every.std(correction=0))
    assert torch.allclose(shares.test.peer(0)[0][0], (-1 - 99.5) / every.std(correction=0))


@pytest.mark.parametrize("normalise", ["unit", "half", "standard"])
def test_tokens_stay_whole_numbers(normalise: str) -> None:
    tokens = Samples(torch.arange(300).view(100, 3), torch.arange(100) % 2)
    shares = shared(alike(1, Source("tokens", tokens, None, 2)), 2, normalise=normalise)
    assert shares.train.x.dtype == torch.int64
    assert set(shares.train.x.flatten().tolist()) <= set(range(300))


def test_missing_values_become_the_peers_own_means() -> None:
    x = torch.stack([torch.arange(40.0), torch.arange(40.0) % 7, torch.full((40,), torch.nan)], dim=1)
    x[::3, 1] = torch.nan
    source = Source("gaps", Samples(x, torch.zeros(40, dtype=torch.int64)), None, 1)
    shares = shared(alike(1, source), 3, train=8, validation=2, test=3)
    assert shares.validation is not None
    for peer in range(3):
        own = x[numbers_in(shares.train, peer)][:, 1]
        for split in (shares.train, shares.validation, shares.test):
            raw = x[numbers_in(split, peer)][:, 1]
            expected = torch.where(raw.isnan(), own.nanmean(), raw)
            assert torch.allclose(split.peer(peer)[0][:, 1], expected)
            assert (split.peer(peer)[0][:, 2] == 0).all()  # never observed
    assert torch.equal(source.train.x[:, 1].isnan(), torch.arange(40) % 3 == 0)  # the source is not changed


def numbers_in(split: Split, peer: int) -> list[int]:
    """The numbers of a peer's samples, which are the first of several features."""
    return [int(i) for i in split.peer(peer)[0][:, 0].tolist()]


def test_missing_values_are_ignored_by_the_scale() -> None:
    x = torch.arange(80.0).view(40, 2)
    x[3, 1] = torch.nan
    source = Source("gap", Samples(x, torch.zeros(40, dtype=torch.int64)), None, 1)
    shares = shared(alike(1, source), 2, train=12, normalise="standard")
    assert shares.train.x.isfinite().all()
    assert shares.train.x[:, 1].std() > 0.5


def test_regression_has_an_output_for_each_target_and_no_classes() -> None:
    shares = shared(alike(1, numbered(classes=None)), 2)
    assert shares.classes is None
    assert shares.outputs == 1
    assert shares.train.y.shape == (20, 1)
    assert shared(alike()).outputs == shared(alike()).classes == 5


# Refusals


def few_of_class_4() -> PartitionPlan:
    """200 samples of 5 classes, of the last one only 4."""
    source = numbered()
    y = source.train.y.clone()
    y[(y == 4).nonzero().flatten()[4:]] = 0
    return alike(1, replace(source, train=replace(source.train, y=y)))


def no_test_samples_of_class_0() -> PartitionPlan:
    source = numbered()
    assert source.test is not None
    return mixed([[1, 0, 0, 0, 0]], replace(source, test=replace(source.test, y=source.test.y.clamp(min=1))))


def with_gaps() -> PartitionPlan:
    x = torch.full((20, 1), torch.nan)
    samples = Samples(x, torch.zeros(20, dtype=torch.int64))
    return alike(1, Source("gaps", samples, samples, 1))


MIX = mixed([[0.2] * 5] * 6)
UNTESTED = alike(1, numbered(n_test=None))
EMPTY = PartitionPlan([ClusterSpec("lonely", torch.arange(200), torch.arange(0))], numbered())

REFUSED = [
    (alike(), {"sizes": [6]}, "data.sizes has 1 numbers, but there are 2 clusters (cluster 0, cluster 1)"),
    (alike(), {"sizes": [3, 4]}, "data.sizes: 3 + 4 = 7, but there are 6 peers"),
    (alike(), {"sizes": [6, 0]}, "data.sizes: every cluster"),
    (alike(7), {}, "peers = 6: too few for 7 clusters"),
    (alike(), {"train": 0}, "data.train must be at least 1"),
    (alike(), {"validation": -1}, "data.validation must be at least 0"),
    (alike(), {"test": 0}, "data.test must be at least 1"),
    (
        alike(),
        {"train": 30, "validation": 4},
        "data.train: 6 peers x (30 train + 4 validation) need 204 samples, but the training pool (cluster 0, "
        "cluster 1) has 200",
    ),
    (
        UNTESTED,
        {"train": 30},
        "data.train: 6 peers x (30 train + 8 test) need 228 samples, but the training pool (cluster 0) has 200",
    ),
    (alike(), {"train": "all", "validation": 33}, "data.train: 6 peers x (1 train + 33 validation) need 204 samples"),
    (MIX, {"train": "all", "validation": 32}, "data.train: 6 peers x (2 train + 32 validation) need 204 samples"),
    (
        pools(numbered(), range(60), range(90)),
        {"train": "all"},
        'data.train = "all" needs clusters that do not share samples',
    ),
    (
        pools(numbered(), range(30), range(35)),
        {"train": 10},
        "data.train: 3 peers x (10 train) need 30 samples, but the training pool (cluster 1) has 5",
    ),
    (alike(), {"test": 101}, "data.test: every peer needs 101 samples, but the test pool (cluster 0) has 100"),
    (EMPTY, {"balanced": True}, "data.test: every peer needs 8 samples, but the test pool (lonely) has 0"),
    (EMPTY, {"test": "all"}, "data.test: the test set has no samples for lonely"),
    (UNTESTED, {"test": "all"}, 'data.test = "all" needs a test set'),
    (MIX, {"test": "all"}, 'data.test = "all" cannot be used with a shift'),
    (no_test_samples_of_class_0(), {"train": 20, "peers": 1}, "data.test: some peers have only classes"),
    (with_gaps(), {"train": 1, "test": "all"}, 'data.test = "all" cannot be used with missing values'),
    (MIX, {"balanced": True}, "data.balanced"),
    (alike(1, numbered(classes=None)), {"balanced": True}, "data.balanced needs data with classes"),
    (
        alike(1, Source("words", Samples(torch.rand(40, 3), torch.zeros(40, 3, dtype=torch.int64)), None, 2)),
        {"balanced": True, "train": 2},
        "data.balanced needs data with classes, one per sample, but words is a tokens data set",
    ),
    (
        few_of_class_4(),
        {"balanced": True},
        "data.balanced: 12 samples of class 4 are needed, but the training pool (cluster 0) has 4",
    ),
    (
        pools(numbered(), range(4, 200, 5), range(200)),
        {"sizes": [4, 2], "balanced": True},
        "data.balanced: 4 samples of class 4 are needed, but the training pool (cluster 1) has 0",
    ),
    (alike(), {"normalise": "loud"}, "data.normalise must be one of"),
]


@pytest.mark.parametrize(("plan", "asked", "message"), REFUSED)
def test_an_impossible_partition_is_refused_with_the_key(
    plan: PartitionPlan, asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as refused:
        shared(plan, **asked)
    assert str(refused.value).startswith(message)
