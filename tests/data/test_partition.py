"""The partition of data among peers. x of training sample i is i, x of test sample i is -1 - i."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from homophily.data.partition import partition_source
from homophily.data.shifts import shifts
from homophily.data.types import ClusterSpec, FederatedData, PartitionPlan, Samples, Source, Split
from homophily.errors import UserError

UNHURRIED = settings(deadline=None, max_examples=40)  # the machine may be busy
SEEDS = st.integers(0, 10_000)


def numbered(n: int = 200, n_test: int | None = 100, classes: int | None = 5) -> Source:
    """Samples whose x is their number, with labels (or regression targets) in rotation."""

    def samples(x: Tensor) -> Samples:
        y = torch.arange(len(x)) % classes if classes else torch.zeros(len(x), 1)
        return Samples(x.unsqueeze(1), y)

    test = samples(-1.0 - torch.arange(n_test)) if n_test is not None else None
    return Source("numbers", samples(torch.arange(float(n))), test, classes)


def pools(source: Source, *train: range, clustered: bool = True) -> PartitionPlan:
    """Clusters with these training samples, and all test samples."""
    test = torch.arange(len(source.test) if source.test is not None else 0)
    clusters = [ClusterSpec(f"cluster {k}", torch.tensor(list(pool)), test) for k, pool in enumerate(train)]
    return PartitionPlan(clusters, source, clustered)


def alike(clusters: int = 2, source: Source | None = None) -> PartitionPlan:
    """Clusters that all draw from all samples."""
    source = source or numbered()
    return pools(source, *[range(len(source.train))] * clusters)


def mixed(proportions: list[list[float]], source: Source | None = None) -> PartitionPlan:
    """Peers with these proportions of classes."""
    return replace(alike(1, source), clustered=False, proportions=torch.tensor(proportions, dtype=torch.float64))


def shared(plan: PartitionPlan, peers: int = 6, **settings: Any) -> FederatedData:
    usual = {"sizes": None, "train": 10, "validation": 0, "test": 8, "balanced": False, "normalise": "unit", "seed": 0}
    return partition_source(plan, peers=peers, **{**usual, **settings})


def numbers(split: Split | None, peer: int) -> list[int]:
    """The numbers of a peer's samples."""
    assert split is not None
    return [int(i) for i in split.peer(peer)[0].flatten().tolist()]


def all_numbers(split: Split | None) -> list[int]:
    assert split is not None
    return [i for peer in range(len(split.start)) for i in numbers(split, peer)]


def class_counts(split: Split | None, classes: int = 5) -> Tensor:
    """[N, classes]"""
    assert split is not None
    return torch.stack([split.peer(i)[1].bincount(minlength=classes) for i in range(len(split.start))])


# Amounts


@UNHURRIED
@given(
    clusters=st.integers(1, 4),
    extra=st.integers(0, 8),
    train=st.integers(1, 6),
    validation=st.integers(0, 4),
    balanced=st.booleans(),
    has_test=st.booleans(),
    seed=SEEDS,
)
def test_peers_get_the_requested_amounts_and_share_no_training_sample(
    clusters: int, extra: int, train: int, validation: int, balanced: bool, has_test: bool, seed: int
) -> None:
    peers = clusters + extra
    plan = alike(clusters, numbered(n_test=100 if has_test else None))
    shares = shared(plan, peers, train=train, validation=validation, test=5, balanced=balanced, seed=seed)
    assert shares.peers == peers
    assert shares.train.count.tolist() == [train] * peers
    assert shares.test.count.tolist() == [5] * peers
    out = all_numbers(shares.train)
    if validation:
        assert shares.validation is not None
        assert shares.validation.count.tolist() == [validation] * peers
        out += all_numbers(shares.validation)
    else:
        assert shares.validation is None
    if not has_test:
        out += all_numbers(shares.test)
    assert len(set(out)) == len(out)


@UNHURRIED
@given(peers=st.integers(2, 15), validation=st.integers(0, 3), has_test=st.booleans(), seed=SEEDS)
def test_train_all_divides_the_samples_as_equally_as_possible(
    peers: int, validation: int, has_test: bool, seed: int
) -> None:
    plan = alike(2, numbered(n_test=100 if has_test else None))
    shares = shared(plan, peers, train="all", validation=validation, test=2, seed=seed)
    out = all_numbers(shares.train)
    if validation:
        out += all_numbers(shares.validation)
    if not has_test:
        out += all_numbers(shares.test)
    assert sorted(out) == list(range(200))
    assert shares.train.count.max() - shares.train.count.min() <= 1


def test_training_rows_are_ordered_by_peer() -> None:
    train = shared(alike(), validation=3).train
    assert train.start.tolist() == [0, 10, 20, 30, 40, 50]
    assert len(train.x) == 60


@UNHURRIED
@given(peers=st.integers(2, 10), train=st.integers(1, 12), validation=st.integers(0, 6), test=st.integers(1, 12))
def test_balanced_peers_have_equal_class_counts_in_every_split(
    peers: int, train: int, validation: int, test: int
) -> None:
    for source in (numbered(n=400), numbered(n=400, n_test=None)):
        shares = shared(
            alike(2, source), peers, train=train, validation=validation, test=test, balanced=True, sizes=None
        )
        for split in (shares.train, shares.validation, shares.test):
            if split is not None:
                counts = class_counts(split)
                assert (counts.amax(1) - counts.amin(1)).max() <= 1


def test_balanced_peers_can_use_up_every_sample_of_every_class() -> None:
    shares = shared(alike(1, numbered(n=30)), 3, train=7, validation=3, balanced=True)  # 10 each, of 5 classes of 6
    assert sorted(all_numbers(shares.train) + all_numbers(shares.validation)) == list(range(30))


# Randomness


def test_the_partition_depends_on_the_seed() -> None:
    first, again, other = (shared(alike(), seed=seed) for seed in (1, 1, 2))
    assert all_numbers(first.train) == all_numbers(again.train)
    assert all_numbers(first.test) == all_numbers(again.test)
    assert all_numbers(first.train) != all_numbers(other.train)
    assert all_numbers(first.test) != all_numbers(other.test)


def test_every_training_sample_is_as_likely_as_any_other() -> None:
    drawn = torch.zeros(20)
    for seed in range(400):
        drawn[numbers(shared(alike(1, numbered(n=20)), 2, train=5, seed=seed).train, 1)] += 1
    assert (drawn - 100).abs().max() < 40  # standard deviation 8.7


def test_a_peers_samples_are_not_ordered_by_class() -> None:
    labels = shared(alike(1), 2, train=50, balanced=True).train.peer(0)[1]
    assert labels.tolist() != sorted(labels.tolist())


# Clusters


def test_peers_are_ordered_by_cluster_and_sizes_are_peers_per_cluster() -> None:
    shares = shared(alike(3), 6, sizes=[3, 1, 2])
    assert shares.cluster is not None
    assert shares.cluster.tolist() == [0, 0, 0, 1, 2, 2]
    assert shares.cluster_names == ("cluster 0", "cluster 1", "cluster 2")


def test_default_sizes_are_those_of_the_plan_or_equal() -> None:
    equal, planned = shared(alike(3), 8), shared(replace(alike(3), sizes=[1, 1, 6]), 8)
    assert equal.cluster is not None
    assert planned.cluster is not None
    assert equal.cluster.bincount().tolist() == [3, 3, 2]
    assert planned.cluster.bincount().tolist() == [1, 1, 6]


def test_peers_without_clusters_have_none() -> None:
    shares = shared(replace(alike(2), clustered=False))
    assert shares.cluster is None
    assert shares.cluster_names == ()


@UNHURRIED
@given(SEEDS)
def test_disjoint_pools_are_not_mixed(seed: int) -> None:
    shares = shared(pools(numbered(), range(50), range(50, 200)), 5, sizes=[2, 3], train="all", seed=seed)
    assert shares.train.count.tolist() == [25, 25, 50, 50, 50]
    assert sorted(numbers(shares.train, 0) + numbers(shares.train, 1)) == list(range(50))


@UNHURRIED
@given(SEEDS)
def test_overlapping_pools_draw_from_the_samples_that_are_left(seed: int) -> None:
    plan = pools(numbered(), range(60), range(30, 90), range(60))
    shares = shared(plan, 6, sizes=[1, 3, 2], train=10, seed=seed)
    out = all_numbers(shares.train)
    assert len(set(out)) == 60
    assert set(out[:10] + out[40:]) <= set(range(60))
    assert set(out[10:40]) <= set(range(30, 90))


def test_a_cluster_changes_raw_samples_before_they_are_normalised() -> None:
    pixels = torch.arange(200, dtype=torch.uint8).view(200, 1)
    source = Source("pixels", Samples(pixels, torch.zeros(200, dtype=torch.int64)), None, 2)
    everything, none = torch.arange(200), torch.arange(0)
    clusters = [
        ClusterSpec("as is", everything, none),
        ClusterSpec("dark", everything, none, lambda x, y: (x // 2, y + 1)),
    ]
    shares = shared(PartitionPlan(clusters, source), 2, train=100 - 8)
    assert shares.train.x.dtype == torch.float32
    as_is, dark = ((shares.train.peer(i)[0] * 255).round().to(torch.int64) for i in range(2))
    assert as_is.max() > 100
    assert dark.max() < 100
    assert shares.train.peer(0)[1].tolist() == [0] * 92
    assert shares.train.peer(1)[1].tolist() == [1] * 92
    assert shares.test.peer(1)[1].tolist() == [1] * 8  # test samples, too


def test_rotating_back_a_rotated_peers_images_gives_the_originals() -> None:
    images = torch.arange(64, dtype=torch.uint8).view(64, 1, 1, 1).repeat(1, 1, 4, 4)
    images[:, :, 0, 0] = 255
    source = Source("images", Samples(images, torch.arange(64) % 10), None, 10)
    shares = shared(shifts.get("rotation")(source, 8, 0), 8, train=4, test=4)
    back = [torch.rot90(shares.train.peer(i)[0], -(i // 2), dims=(-2, -1)) for i in range(8)]
    found = (torch.cat(back) * 255).round().to(torch.uint8)
    assert torch.equal(found, images[found[:, 0, 1, 1].to(torch.int64)])
    assert shares.inputs == (1, 4, 4)


# Test samples


@UNHURRIED
@given(peers=st.integers(1, 10), test=st.integers(1, 40), balanced=st.booleans(), seed=SEEDS)
def test_test_samples_are_distinct_draws_from_the_clusters_test_pool(
    peers: int, test: int, balanced: bool, seed: int
) -> None:
    source = numbered()
    cluster = ClusterSpec("half", torch.arange(200), torch.arange(50, 100))
    shares = shared(PartitionPlan([cluster], source), peers, test=test, balanced=balanced, seed=seed)
    for peer in range(peers):
        drawn = numbers(shares.test, peer)
        assert len(set(drawn)) == test
        assert set(drawn) <= set(range(-100, -50))


def test_peers_draw_their_test_samples_independently() -> None:
    shares = shared(alike(1), 2, test=50)
    first, second = set(numbers(shares.test, 0)), set(numbers(shares.test, 1))
    assert first != second
    assert first & second


def test_with_test_all_test_samples_are_stored_once_per_cluster() -> None:
    source = numbered()
    clusters = [
        ClusterSpec("a", torch.arange(200), torch.arange(40)),
        ClusterSpec("b", torch.arange(200), torch.arange(30, 100)),
    ]
    shares = shared(PartitionPlan(clusters, source), 6, sizes=[4, 2], test="all")
    assert len(shares.test.x) == 40 + 70
    assert shares.test.start.tolist() == [0, 0, 0, 0, 40, 40]
    assert numbers(shares.test, 3) == list(range(-1, -41, -1))
    assert numbers(shares.test, 5) == list(range(-31, -101, -1))


# Invalid plans of a user's shift


def changed(change: Any, source: Source | None = None) -> PartitionPlan:
    """Two clusters that draw from all samples, the second with this change."""
    plan = alike(2, source)
    return replace(plan, clusters=[plan.clusters[0], replace(plan.clusters[1], change=change)])


REFUSED = [
    (pools(numbered(), range(150, 250)), "train of cluster 'cluster 0' must be indices of samples, from 0 to 199"),
    (
        replace(alike(), clusters=[ClusterSpec("a", torch.ones(200) > 0, torch.arange(9))]),
        "train of cluster 'a' must be indices",
    ),
    (
        replace(alike(), clusters=[ClusterSpec("a", torch.arange(9), torch.arange(200))]),
        "test of cluster 'a' must be indices",
    ),
    (changed(lambda x, y: x), "change of cluster 'cluster 1' must return x and y, one row per sample"),
    (changed(lambda x, y: (x[:1], y)), "change of cluster 'cluster 1' must return x and y"),
    (changed(lambda x, y: (x.numpy(), y)), "change of cluster 'cluster 1' must return x and y"),
    (changed(lambda x, y: (x.double(), y)), "'cluster 1' must return x in the dtype it was given, torch.float32, not"),
    (changed(lambda x, y: (x, y.float())), "'cluster 1' must return y in the dtype it was given, torch.int64, not"),
    (
        changed(lambda x, y: (x.repeat(1, 3), y)),
        "a sample's x must have the same shape in all clusters, not [1] and [3]",
    ),
    (mixed([[1.0] * 4] * 6), "proportions must have a weight per peer and class, [6, 5], not [6, 4]"),
    (replace(alike(), sizes=[3, 4]), "data.sizes: 3 + 4 = 7, but there are 6 peers"),
    (changed(lambda x, y: (x, y + 1)), "data: y contains the class 5, but classes must be 0 to 4"),
]


@pytest.mark.parametrize(("plan", "message"), REFUSED)
def test_an_invalid_plan_of_a_shift_is_refused(plan: PartitionPlan, message: str) -> None:
    with pytest.raises(UserError) as refused:
        shared(plan)
    assert message in str(refused.value)
