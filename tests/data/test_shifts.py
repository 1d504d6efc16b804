"""The clusters that each shift makes of a data set."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from homophily.data.images import rotated
from homophily.data.shifts import shifts
from homophily.data.sources import coefficients, linear
from homophily.data.types import ClusterSpec, PartitionPlan, Samples, Source
from homophily.errors import UserError

UNHURRIED = settings(deadline=None, max_examples=50)  # the machine may be busy


def images(n: int = 40, side: int = 8, classes: int = 10, name: str = "made-up", test: bool = True) -> Source:
    """Noise images with labels in rotation."""
    noise = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (n, 1, side, side), dtype=torch.uint8, generator=noise)
    samples = Samples(x, torch.arange(n) % classes, coarse=torch.arange(n) % classes // 5)
    return Source(name, samples, samples if test else None, classes)


def table(owners: list[int], name: str = "hospitals") -> Source:
    """Two features per sample, and the owner of each sample."""
    x = torch.arange(2.0 * len(owners)).view(-1, 2)
    names = tuple(f"hospital {i}" for i in range(max(owners) + 1))
    return Source(name, Samples(x, torch.zeros(len(x), dtype=torch.int64), owner=torch.tensor(owners)), None, 2, names)


def shifted(name: str, source: Source, peers: int = 20, seed: int = 0, **keys: Any) -> PartitionPlan:
    return shifts.get(name)(source, peers, seed, **keys)


def changed(cluster: ClusterSpec, samples: Samples) -> tuple[Tensor, Tensor]:
    return cluster.change(samples.x, samples.y) if cluster.change is not None else (samples.x, samples.y)


def labels_of(cluster: ClusterSpec, source: Source) -> list[int]:
    return sorted(set(source.train.y[cluster.train].tolist()))


# Rotation


def test_an_upright_arrow_rotated_by_90_points_left() -> None:
    up = torch.tensor([[0, 1, 0], [0, 0, 0], [0, 0, 0]], dtype=torch.uint8).view(1, 1, 3, 3)
    assert rotated(up, 90).view(3, 3).tolist() == [[0, 0, 0], [1, 0, 0], [0, 0, 0]]


def test_rotation_has_one_cluster_per_angle_and_keeps_labels() -> None:
    source = images()
    plan = shifted("rotation", source)
    assert [cluster.name for cluster in plan.clusters] == ["0°", "90°", "180°", "270°"]
    for quarter, cluster in enumerate(plan.clusters):
        x, y = changed(cluster, source.train)
        assert torch.equal(torch.rot90(x, -quarter, dims=(-2, -1)), source.train.x)
        assert torch.equal(y, source.train.y)
        assert torch.equal(cluster.train, torch.arange(40))


@UNHURRIED
@given(st.sampled_from([90, 180, 270, -90, 450]))
def test_four_equal_quarter_turns_are_the_identity(angle: int) -> None:
    x = images().train.x
    turned = x
    for _ in range(4):
        turned = rotated(turned, angle)
    assert torch.equal(turned, x)


@UNHURRIED
@given(st.sampled_from([90, 180, 270]))
def test_a_rotation_close_to_a_quarter_turn_is_close_to_the_exact_one(angle: int) -> None:
    x = images().train.x
    difference = rotated(x, angle + 0.01).to(torch.float32) - rotated(x, angle).to(torch.float32)
    assert difference.abs().max() <= 1


@UNHURRIED
@given(st.floats(1, 359).filter(lambda angle: angle % 90 != 0))
def test_a_disc_stays_a_disc_at_any_angle(angle: float) -> None:
    across = torch.arange(33) - 16.0
    distance = (across[:, None] ** 2 + across**2).sqrt().clamp(max=14)
    disc = (127.5 + 127.5 * torch.cos(distance * math.pi / 14)).to(torch.uint8).view(1, 1, 33, 33)  # white, soft rim
    turned = rotated(disc, angle)
    assert turned.dtype == torch.uint8
    assert (turned.to(torch.float32) - disc.to(torch.float32)).abs().max() < 4


def test_interpolated_pixels_are_rounded_to_the_nearest_integer() -> None:
    x = images().train.x
    assert (rotated(x, 10).to(torch.float32) - rotated(x.to(torch.float32), 10)).abs().max() <= 0.5


def test_pixels_from_outside_the_image_are_black() -> None:
    white = torch.full((1, 1, 9, 9), 255, dtype=torch.uint8)
    turned = rotated(white, 45)[0, 0]
    assert turned[0, 0] == turned[8, 8] == 0
    assert turned[4, 4] == 255


# Labels


def test_label_swap_exchanges_the_pairs_of_the_paper() -> None:
    assert [cluster.name for cluster in shifted("label-swap", images()).clusters] == ["0↔1", "2↔3", "4↔5", "6↔7"]
    assert [cluster.name for cluster in shifted("label-swap", images(), clusters=2).clusters] == ["0↔1", "6↔7"]
    (cluster,) = shifted("label-swap", images(), pairs=[(2, 9)]).clusters
    x = images().train.x[:10]
    assert changed(cluster, Samples(x, torch.arange(10)))[1].tolist() == [0, 1, 9, 3, 4, 5, 6, 7, 8, 2]


@UNHURRIED
@given(st.sampled_from([2, 4]))
def test_swapping_twice_changes_nothing(clusters: int) -> None:
    source = images()
    for cluster in shifted("label-swap", source, clusters=clusters).clusters:
        x, once = changed(cluster, source.train)
        _, twice = changed(cluster, Samples(x, once))
        assert (once != source.train.y).sum() == 8  # two labels of ten, four samples each
        assert torch.equal(twice, source.train.y)
        assert torch.equal(x, source.train.x)


def test_vehicles_and_animals_divide_cifar_10_in_the_ratio_40_to_60() -> None:
    source = images(name="cifar-10")
    plan = shifted("label-groups", source, peers=100)
    assert [cluster.name for cluster in plan.clusters] == ["vehicles", "animals"]
    assert [labels_of(cluster, source) for cluster in plan.clusters] == [[0, 1, 8, 9], [2, 3, 4, 5, 6, 7]]
    assert plan.sizes == [40, 60]
    assert shifted("label-groups", source, peers=12).sizes == [5, 7]
    assert all(cluster.change is None for cluster in plan.clusters)  # labels keep their numbers


@UNHURRIED
@given(st.integers(0, 1000))
def test_random_pairs_divide_all_labels(seed: int) -> None:
    source = images()
    plan = shifted("label-groups", source, seed=seed, groups="pairs")
    labels = [labels_of(cluster, source) for cluster in plan.clusters]
    assert [len(pair) for pair in labels] == [2] * 5
    assert sorted(label for pair in labels for label in pair) == list(range(10))
    assert plan.sizes is None
    again = shifted("label-groups", source, seed=seed, groups="pairs")
    assert [labels_of(cluster, source) for cluster in again.clusters] == labels


def test_random_pairs_depend_on_the_seed() -> None:
    plans = [shifted("label-groups", images(), seed=s, groups="pairs") for s in range(5)]
    assert len({str([cluster.train.tolist() for cluster in plan.clusters]) for plan in plans}) > 1
    assert len({str([cluster.name for cluster in plan.clusters]) for plan in plans}) == 1  # equal for every seed


@UNHURRIED
@given(st.integers(0, 1000))
def test_superclasses_divide_cifar_100_into_10_5_and_5(seed: int) -> None:
    source = images(n=200, classes=100, name="cifar-100")
    plan = shifted("label-groups", source, peers=52, seed=seed, groups="superclasses")
    assert source.train.coarse is not None
    groups = [set(source.train.coarse[cluster.train].tolist()) for cluster in plan.clusters]
    assert [len(group) for group in groups] == [10, 5, 5]
    assert set.union(*groups) == set(range(20))
    assert [len(labels_of(cluster, source)) for cluster in plan.clusters] == [50, 25, 25]
    assert plan.sizes == [26, 13, 13]


def test_groups_of_labels_can_be_listed() -> None:
    source = images()
    plan = shifted("label-groups", source, groups=[[0, 3], [7]])
    assert [labels_of(cluster, source) for cluster in plan.clusters] == [[0, 3], [7]]
    assert [sorted(set(source.train.y[cluster.test].tolist())) for cluster in plan.clusters] == [[0, 3], [7]]


@UNHURRIED
@given(st.integers(0, 1000))
def test_a_smaller_alpha_gives_more_label_skew(seed: int) -> None:
    few, many = (shifted("dirichlet", images(), seed=seed, alpha=alpha).proportions for alpha in (0.1, 10.0))
    assert few is not None
    assert many is not None
    assert few.shape == many.shape == (20, 10)
    assert bool((few > 0).all())
    for axis in (1, 0):  # class proportions of a peer, and proportions of a class over peers
        lopsided, even = ((draw / draw.sum(axis, keepdim=True)).amax(axis).mean() for draw in (few, many))
        assert lopsided > even + 0.2


def test_dirichlet_has_no_clusters_and_depends_on_the_seed() -> None:
    plans = [shifted("dirichlet", images(), seed=seed) for seed in (1, 1, 2)]
    first, again, other = (plan.proportions for plan in plans)
    assert first is not None
    assert again is not None
    assert other is not None
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not plans[0].clustered


# Concept, domain, natural and iid


@UNHURRIED
@given(st.integers(0, 1000))
def test_under_concept_shift_only_the_coefficients_differ(seed: int) -> None:
    source = linear(seed, samples=60)
    x, y = source.train.x.to(torch.float64), source.train.y.to(torch.float64)
    noise = y - (x @ coefficients(seed, 0, 10)).unsqueeze(1)
    plan = shifted("concept", source, seed=seed)
    assert len(plan.clusters) == 3
    for j, cluster in enumerate(plan.clusters):
        same_x, own_y = changed(cluster, source.train)
        assert torch.equal(same_x, source.train.x)
        assert own_y.shape == y.shape
        assert own_y.dtype == torch.float32
        left = own_y.to(torch.float64) - (x @ coefficients(seed, j, 10)).unsqueeze(1)
        assert torch.allclose(left, noise, atol=1e-3)


def test_domain_joins_two_data_sets_and_keeps_their_labels_distinct() -> None:
    source = images()
    plan = shifted("domain", source, other="digits")
    assert [cluster.name for cluster in plan.clusters] == ["made-up", "digits"]
    assert plan.source.classes == 20
    first, second = plan.clusters
    assert torch.equal(plan.source.train.x[first.train], source.train.x)
    assert labels_of(first, plan.source) == list(range(10))
    assert labels_of(second, plan.source) == list(range(10, 20))
    assert len(second.train) == 1200
    assert plan.source.test is not None
    assert sorted(set(plan.source.test.y[second.test].tolist())) == list(range(10, 20))


def test_natural_clusters_are_the_owners_with_peers_in_proportion_to_samples() -> None:
    source = table([0] * 30 + [1] * 9 + [2] * 1)
    plan = shifted("natural", source, peers=8)
    assert [cluster.name for cluster in plan.clusters] == ["hospital 0", "hospital 1", "hospital 2"]
    assert plan.sizes == [5, 2, 1]  # 6, 1.8 and 0.2 of 8; every owner gets a peer
    assert plan.clusters[1].train.tolist() == list(range(30, 39))
    assert len(plan.clusters[1].test) == 0


def test_iid_is_one_cluster_with_all_samples() -> None:
    plan = shifted("iid", images())
    assert len(plan.clusters) == 1
    assert plan.clustered
    assert len(plan.clusters[0].train) == len(plan.clusters[0].test) == 40


# Refusals


REFUSED = [
    ("rotation", table([0]), {}, "data.shift = 'rotation' needs square images"),
    ("rotation", images(), {"angles": []}, "data.angles"),
    ("rotation", images(), {"angles": [0, 360]}, "data.angles"),
    ("rotation", images(), {"angles": [float("nan")]}, "data.angles"),
    ("label-swap", linear(0, samples=6), {}, "data.shift = 'label-swap' needs data with classes"),
    ("label-swap", images(), {"clusters": 3}, "data.clusters must be 2 or 4"),
    ("label-swap", images(), {"pairs": [(0, 10)]}, "data.pairs"),
    ("label-swap", images(), {"pairs": [(3, 3)]}, "data.pairs"),
    ("label-swap", images(classes=5), {}, "data.pairs"),
    ("label-swap", images(), {"pairs": [(0, 1), (1, 0)]}, "data.pairs = [[0, 1], [1, 0]]: two of them"),
    ("label-groups", linear(0, samples=6), {}, "data.shift = 'label-groups' needs data with classes"),
    ("label-groups", images(), {}, "data.groups = 'vehicles-animals' needs cifar-10"),
    ("label-groups", images(classes=5), {"groups": "pairs"}, "data.groups = 'pairs' needs an even number"),
    ("label-groups", images(), {"groups": "superclasses"}, "data.groups = 'superclasses'"),
    ("label-groups", images(), {"groups": "birds"}, "data.groups must be"),
    ("label-groups", images(), {"groups": [[0], []]}, "data.groups must be"),
    ("label-groups", images(), {"groups": [[0], [11]]}, "data.groups must be"),
    ("label-groups", images(), {"groups": [[0, 1], [1, 0]]}, "data.groups = [[0, 1], [1, 0]]: two of them"),
    ("concept", images(), {}, "data.shift = 'concept' needs the linear data"),
    ("concept", linear(0, samples=6), {"clusters": 0}, "data.clusters"),
    ("concept", linear(0, samples=6), {"clusters": 10**12}, "data.clusters"),
    ("domain", linear(0, samples=6), {"other": "digits"}, "data.shift = 'domain' needs data with classes"),
    ("domain", images(name="digits"), {"other": "digits"}, "data.other"),
    ("domain", images(side=9), {"other": "digits"}, "data.other: digits must have classes and inputs of 1x9x9"),
    ("domain", images(test=False), {"other": "digits"}, "data.other: made-up and digits must both have a test set"),
    ("dirichlet", linear(0, samples=6), {}, "data.shift = 'dirichlet' needs data with classes"),
    ("dirichlet", images(), {"alpha": 0.0}, "data.alpha"),
    ("dirichlet", images(), {"alpha": float("inf")}, "data.alpha"),
    ("natural", images(), {}, "data.shift = 'natural' needs data with an owner for each sample"),
]


@pytest.mark.parametrize(("name", "source", "keys", "message"), REFUSED)
def test_an_unsuitable_setting_is_refused_with_its_key(
    name: str, source: Source, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as refused:
        shifted(name, source, **keys)
    assert str(refused.value).startswith(message)


def test_every_shift_has_a_one_line_description() -> None:
    assert set(shifts) == {
        "iid", "rotation", "label-swap", "label-groups", "concept", "domain", "dirichlet", "natural"
    }  # fmt: skip
    assert all(shifts.about(name).endswith(".") for name in shifts)
