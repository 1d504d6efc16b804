"""The embedding of a sample: one function for all peers, of inputs and targets of every kind."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from homophily.data.task_kinds import IGNORED
from homophily.fingerprints.embedding import (
    BUCKETS,
    FEW,
    ONE_HOT,
    WIDTH,
    Embedding,
    Targets,
    _Keyed,
    _target_features,
    compressed,
)

CPU = torch.device("cpu")
CLASSES = Targets(10)


def chance(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=chance(seed))


def labels(n: int, classes: int = 10, *positions: int) -> Tensor:
    return torch.randint(classes, (n, *positions), generator=chance(9))


def embedding(x: Tensor, y: Tensor, targets: Targets = CLASSES, seed: int = 3) -> Embedding:
    return Embedding(x, y, targets, seed, CPU)


def embedded(x: Tensor, y: Tensor, targets: Targets = CLASSES, seed: int = 3) -> Tensor:
    return embedding(x, y, targets, seed)(x, y)


def some_ignored(y: Tensor) -> Tensor:
    """The classes, of which every third does not count."""
    return torch.where(torch.arange(y.shape[1]) % 3 == 0, IGNORED, y)


KINDS: dict[str, tuple[Tensor, Tensor, Targets]] = {
    "images": (drawn(9, 1, 8, 8), labels(9), CLASSES),
    "colour images": (drawn(9, 3, 12, 9), labels(9), CLASSES),
    "large images": (drawn(9, 3, 40, 33), labels(9), CLASSES),
    "few features": (drawn(9, 4), labels(9), CLASSES),
    "many features": (drawn(9, 100), labels(9), CLASSES),
    "small arrays": (drawn(9, 2, 5, 5), labels(9), CLASSES),
    "tokens": (labels(9, 50, 12), labels(9), CLASSES),
    "one token": (labels(9, 50, 1), labels(9), CLASSES),
    "many classes": (drawn(9, 4), labels(9, 500), Targets(500)),
    "classes by position": (labels(9, 50, 12), labels(9, 50, 12), Targets(50)),
    "many classes by position": (labels(9, 500, 12), labels(9, 500, 12), Targets(500)),
    "some positions ignored": (labels(9, 50, 12), some_ignored(labels(9, 5, 12)), Targets(5)),
    "numbers": (drawn(9, 4), drawn(9, 1, seed=1), Targets(None)),
    "scaled numbers": (drawn(9, 4), drawn(9, 1, seed=1), Targets(None, torch.tensor([2.0]), torch.tensor([3.0]))),
    "several outputs": (drawn(9, 4), drawn(9, 3, seed=1), Targets(None, torch.zeros(3), torch.ones(3))),
    "many outputs": (drawn(9, 4), drawn(9, 100, seed=1), Targets(None)),
    "float64": (drawn(9, 4).double(), drawn(9, 1, seed=1).double(), Targets(None)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data_is_embedded_as_512_finite_numbers(kind: str) -> None:
    x, y, targets = KINDS[kind]
    found = embedded(x, y, targets)
    assert found.shape == (9, BUCKETS)
    assert found.dtype == torch.float32
    assert bool(found.isfinite().all())
    different = {(*inputs.flatten().tolist(), *target.flatten().tolist()) for inputs, target in zip(x, y, strict=True)}
    assert len(found.unique(dim=0)) == len(different)


@pytest.mark.parametrize("kind", KINDS)
def test_all_peers_compute_the_same_function_whatever_their_data(kind: str) -> None:
    """Peers build the embedding from samples of their own; only shapes and types matter."""
    x, y, targets = KINDS[kind]
    other = embedding(x.flip(0)[:2], y.flip(0)[:2], targets)
    assert torch.equal(other(x, y), embedded(x, y, targets))


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_is_embedded_alike_whatever_the_others_in_its_batch(kind: str) -> None:
    x, y, targets = KINDS[kind]
    embed = embedding(x, y, targets)
    together = embed(x, y)
    alone = torch.cat([embed(x[i : i + 1], y[i : i + 1]) for i in range(len(x))])
    assert torch.allclose(together, alone, atol=1e-5 * float(together.abs().max()))


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_gives_another_function(kind: str) -> None:
    x, y, targets = KINDS[kind]
    assert not torch.allclose(embedded(x, y, targets, seed=4), embedded(x, y, targets, seed=3), atol=0.1)


# The sketch


@pytest.mark.parametrize("kind", ["few features", "images", "tokens", "several outputs", "many classes"])
def test_the_sketch_is_the_written_out_sum_over_buckets(kind: str) -> None:
    """e = sum of sign * wide in its bucket, plus sum over all pairs of a target's and an input's feature."""
    x, y, targets = KINDS[kind]
    embed = embedding(x, y, targets)
    wide, few = embed._inputs(x)
    target = embed._targets(y)
    expected = torch.zeros(len(x), BUCKETS, dtype=torch.float64)
    for j, (bucket, sign) in enumerate(buckets(embed._wide)):
        expected[:, bucket] += sign * wide[:, j]
    for a, (first, one) in enumerate(buckets(embed._target)):
        for b, (second, other) in enumerate(buckets(embed._few)):
            expected[:, (first + second) % BUCKETS] += one * other * target[:, a].double() * few[:, b]
    assert torch.allclose(embed(x, y).double(), expected, atol=1e-5 * float(expected.abs().max()))


def buckets(sketch: Tensor) -> list[tuple[int, float]]:
    """Bucket and sign of each coordinate."""
    where = [row.nonzero() for row in sketch]
    assert all(len(one) == 1 for one in where)
    return [(int(at), float(row[at])) for row, at in zip(sketch, where, strict=True)]


def test_buckets_and_signs_are_spread_evenly() -> None:
    sketch = _Keyed(0, CPU).sketch(1, 20_000)
    assert set(sketch.unique().tolist()) == {-1.0, 0.0, 1.0}
    assert sketch.abs().sum(1).tolist() == [1.0] * 20_000
    load = sketch.abs().sum(0)
    assert float(load.mean()) == 20_000 / BUCKETS
    assert float((load - load.mean()).square().mean()) == pytest.approx(float(load.mean()), rel=0.25)
    assert abs(float(sketch.sum())) < 4 * math.sqrt(20_000)


def test_inner_products_survive_the_sketch() -> None:
    """On average over seeds, as those of random signs in buckets do."""
    x, y = drawn(2, 6), torch.tensor([1, 1])
    found, exact = [], []
    for seed in range(200):
        embed = embedding(x, y, seed=seed)
        wide, few = embed._inputs(x)
        target = embed._targets(y)
        found.append(float(embed(x, y).prod(0).sum()))
        exact.append(float(wide.prod(0).sum() + target.prod(0).sum() * few.prod(0).sum()))
    difference = torch.tensor(found) - torch.tensor(exact)
    assert abs(float(difference.mean())) < 4 * float(difference.std()) / math.sqrt(200)
    assert float(difference.std()) < 0.2 * abs(sum(exact) / 200)


# Inputs


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=20))
def test_compression_keeps_order_and_sign_and_small_values(values: list[float]) -> None:
    x = torch.tensor(values)
    found = compressed(x)
    assert torch.equal(found.sign(), x.sign())
    assert torch.equal(found[x.abs() <= 3], x[x.abs() <= 3])
    assert bool((found.abs() <= x.abs()).all())
    assert bool((found[x.argsort()].diff() >= 0).all())
    assert float(found.abs().max()) < 3 + math.log(2.0**100)


@pytest.mark.parametrize(("value", "expected"), [(3.0, 3.0), (3 * math.e, 4.0), (-3 * math.e**2, -5.0), (0.0, 0.0)])
def test_values_beyond_3_are_compressed_logarithmically(value: float, expected: float) -> None:
    assert float(compressed(torch.tensor([value]))) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["few features", "many features", "images", "numbers"])
def test_one_outlier_among_the_values_hardly_moves_a_sample(kind: str) -> None:
    """A value of a million is compressed to 3 + log(10^6 / 3), less than 16, in inputs and in targets."""
    x, y, targets = KINDS[kind]
    usual = embedded(x, y, targets)
    wild = x.clone()
    wild[0].view(-1)[0] = 1e6
    moved = (embedded(wild, y, targets)[0] - usual[0]).norm()
    assert float(moved) < 30 * float(usual.norm(dim=1).mean())
    if targets.classes is None:
        far = y.clone()
        far[0] = 1e6
        assert float((embedded(x, far, targets)[0] - usual[0]).norm()) < 100 * float(usual.norm(dim=1).mean())


def test_a_constant_lets_targets_show_without_inputs() -> None:
    """Two samples with inputs of 0 and different classes differ."""
    x, y = torch.zeros(2, 4), torch.tensor([0, 1])
    one, other = embedded(x, y)
    assert float((one - other).norm()) == pytest.approx(2.0 * math.sqrt(10) * math.sqrt(2), rel=0.01)


def test_up_to_64_features_stay_as_they_are_and_more_are_projected() -> None:
    for size in (1, FEW, FEW + 1, 1000):
        x = drawn(200, size)
        wide, few = embedding(x, labels(200))._inputs(x)
        assert wide.shape == (200, WIDTH)
        assert few.shape == (200, 1 + min(size, FEW))
        assert few[:, 0].tolist() == [2.0] * 200
        if size <= FEW:
            assert torch.equal(few[:, 1:], compressed(x))
        else:
            assert float(few[:, 1:].var()) == pytest.approx(1.0, rel=0.1)


def test_the_wide_features_are_centred_for_standardised_inputs() -> None:
    x = drawn(4000, 100)
    wide, _ = embedding(x, labels(4000))._inputs(x)
    assert float(wide.mean()) == pytest.approx(0.0, abs=0.03)


def test_the_shape_of_numbers_does_not_matter_unless_they_are_images() -> None:
    x, y = drawn(5, 2 * 6 * 6), labels(5)
    assert torch.equal(embedded(x, y), embedded(x.view(5, 2, 6, 6), y))
    assert torch.equal(embedded(x, y), embedded(x.view(5, 6, 12), y))


def test_images_above_32_pixels_are_averaged_to_32() -> None:
    small = drawn(4, 3, 32, 32).clamp(-3, 3)
    large = small.repeat_interleave(2, 2).repeat_interleave(3, 3)
    y = labels(4)
    assert torch.allclose(embedded(large, y), embedded(small, y), atol=1e-3)


def test_the_order_of_tokens_matters_through_neighbouring_pairs() -> None:
    x, y = torch.tensor([[1, 2, 3, 4], [4, 3, 2, 1], [2, 3, 4, 1]]), torch.zeros(3, dtype=torch.int64)
    _, few = embedding(x, y)._inputs(x)
    there, back, turned = embedded(x, y)
    assert float((there - back).norm()) > 1  # the same tokens, all pairs reversed
    assert float((there - turned).norm()) > 0.5  # two of three pairs are the same
    assert float((there - turned).norm()) < float((there - back).norm())
    assert few.shape == (3, 1 + FEW)


def test_tokens_may_have_any_number_and_any_integer_type() -> None:
    x, y = torch.tensor([[0, 7, 120]]), torch.tensor([1])
    expected = embedded(x, y)
    for dtype in (torch.int8, torch.uint8, torch.int32):
        assert torch.equal(embedded(x.to(dtype), y), expected)
    far = torch.tensor([[0, 7, 1 << 40], [0, -7, 120]])
    assert bool(embedded(far, labels(2)).isfinite().all())


# Targets


def target_features(y: Tensor, targets: Targets) -> Tensor:
    return _target_features(y, targets, _Keyed(3, CPU))(y)


@pytest.mark.parametrize(
    ("classes", "features"), [(2, 2), (10, 10), (ONE_HOT, ONE_HOT), (ONE_HOT + 1, FEW), (1000, FEW)]
)
def test_up_to_128_classes_are_one_hot_and_more_are_random_vectors(classes: int, features: int) -> None:
    y = labels(20_000, classes)
    found = target_features(y, Targets(classes))
    assert found.shape == (20_000, features)
    assert float(found.mean(0).abs().max()) < 0.3
    assert float(found.var(0).mean()) == pytest.approx(1 - 1 / classes, rel=0.1)


def test_a_one_hot_target_by_hand() -> None:
    found = target_features(torch.tensor([2, 0]), Targets(4))
    assert found.tolist() == [[-0.5, -0.5, 1.5, -0.5], [1.5, -0.5, -0.5, -0.5]]


@pytest.mark.parametrize("classes", [10, 500])
def test_targets_by_position_are_averaged(classes: int) -> None:
    y = labels(3, classes, 2, 5)
    found = target_features(y, Targets(classes))
    each = target_features(y.flatten(), Targets(classes)).view(3, 10, -1)
    assert torch.allclose(found, each.mean(1), atol=1e-5)


def test_numbers_show_in_value_and_square_after_standardising() -> None:
    targets = Targets(None, torch.tensor([5.0, 0.0]), torch.tensor([2.0, 1.0]))
    found = target_features(torch.tensor([[9.0, -1.0]]), targets)
    assert torch.allclose(found, torch.tensor([[2.0, -1.0, 3 / math.sqrt(2), 0.0]]))


def test_agreed_constants_undo_the_unit_of_a_target() -> None:
    x, y = drawn(6, 4), drawn(6, 2, seed=1)
    scale = torch.tensor([10.0, 0.1]), torch.tensor([3.0, 200.0])
    other = Targets(None, *scale)
    assert torch.allclose(embedded(x, y * scale[1] + scale[0], other), embedded(x, y, Targets(None)), atol=1e-2)


def test_more_than_64_outputs_are_projected() -> None:
    y = drawn(3000, 300)
    found = target_features(y, Targets(None))
    assert found.shape == (3000, 2 * FEW)
    assert float(found[:, :FEW].var()) == pytest.approx(1.0, rel=0.1)


def test_what_depends_on_the_target_is_seen_and_inputs_alone_are_too() -> None:
    """Two concepts with the same inputs differ in the mean embedding, and so do two distributions of the inputs."""
    x = drawn(4000, 4)
    y = (x[:, 0] > 0).long()
    turned, moved = (x[:, 1] > 0).long(), x + 0.5
    two = Targets(2)
    mean = embedded(x, y, two).mean(0)
    noise = float((embedded(x[:2000], y[:2000], two).mean(0) - embedded(x[2000:], y[2000:], two).mean(0)).norm())
    for other in (embedded(x, turned, two), embedded(x, 1 - y, two), embedded(moved, y, two)):
        assert float((other.mean(0) - mean).norm()) > 4 * noise


def test_the_memory_of_a_sample_counts_its_values() -> None:
    small, large = (embedding(drawn(1, 1, side, side), labels(1)).values_per_sample for side in (8, 32))
    assert large - small == 4 * (32 * 32 - 8 * 8)


@pytest.mark.parametrize("classes", [5, 500])
def test_positions_that_do_not_count_have_no_part_in_the_features_of_targets(classes: int) -> None:
    y = labels(3, classes, 10)
    padded = torch.cat([y, torch.full((3, 4), IGNORED)], 1)
    assert torch.allclose(target_features(padded, Targets(classes)), target_features(y, Targets(classes)), atol=1e-6)
    nothing = target_features(torch.full((3, 4), IGNORED), Targets(classes))
    assert not nothing.any()


def test_the_class_of_each_token_shows_even_if_the_classes_of_a_sample_do_not() -> None:
    """Every sample has each token and each class once, so only the pairs differ between two groups."""
    x = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(i)) for i in range(200)])
    one, other = embedded(x, x, Targets(6)), embedded(x, (x + 1) % 6, Targets(6))
    assert float((one - other).mean(0).norm()) > 5.0


def test_padding_of_tokens_does_not_count() -> None:
    tokens = torch.randint(0, 9, (5, 4))
    padded = torch.cat([tokens, torch.full((5, 3), -1)], 1)
    y = torch.zeros(5, dtype=torch.int64)
    embed = [Embedding(x, y, Targets(2), 0, torch.device("cpu")) for x in (tokens, padded)]
    assert torch.allclose(embed[0](tokens, y), embed[1](padded, y), atol=1e-5)
