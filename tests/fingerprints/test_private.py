"""Private fingerprints: one sample changes a released vector by at most the sensitivity, and noise is as stated."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from homophily.data.types import Split
from homophily.fingerprints.embedding import CompactEmbedding, Targets
from homophily.fingerprints.private import (
    BYTES,
    COUNT,
    NUMBERS,
    SENSITIVITY,
    clipped,
    clipping_norm,
    keyed_draws,
    private_fingerprints,
    released,
    system_draws,
)

TARGETS = Targets(10)


def _data(n: int, size: float = 1.0) -> Split:
    chance = torch.Generator().manual_seed(1)
    x, y = size * torch.randn(n, 20, generator=chance), torch.randint(10, (n,), generator=chance)
    return Split(x, y, torch.tensor([0]), torch.tensor([n]))


def _clipped(data: Split) -> Tensor:
    embed = CompactEmbedding(data.x[:1], data.y[:1], TARGETS, 0, data.x.device, NUMBERS)
    return clipped(embed, data.x, data.y, clipping_norm(embed, data, TARGETS, 0))


def _none(n: int) -> Tensor:
    return torch.zeros(n, dtype=torch.float64)


def test_no_sample_is_longer_than_the_clipping_norm_whatever_its_scale() -> None:
    for size in (1e-3, 1.0, 1e6):
        norms = _clipped(_data(200, size)).norm(dim=1)
        assert float(norms.max()) <= 1.0 + 1e-12
        assert float(norms.median()) > 0.5


def test_a_sample_that_is_not_finite_adds_nothing_but_its_count() -> None:
    data = _data(5)
    data.x[2] = math.nan
    assert float(_clipped(data)[2].norm()) == 0.0


def test_the_clipping_norm_does_not_depend_on_the_data() -> None:
    embed = CompactEmbedding(_data(1).x, _data(1).y, TARGETS, 0, torch.device("cpu"), NUMBERS)
    assert clipping_norm(embed, _data(10), TARGETS, 0) == clipping_norm(embed, _data(300, 50.0), TARGETS, 0)


def test_one_sample_changes_a_release_by_at_most_the_sensitivity() -> None:
    e = _clipped(_data(60))
    signs = keyed_draws(0)(0)[0]
    whole = released(e, 0.0, signs, _none)
    fewer = released(e[:-1], 0.0, signs, _none)
    change = float((whole - fewer).norm())
    assert 0.9 * COUNT < change <= SENSITIVITY + 0.05  # values are rounded to 11 bits


def test_the_noise_of_a_release_is_the_multiplier_times_the_sensitivity() -> None:
    nothing = torch.zeros(0, NUMBERS, dtype=torch.float64)
    for draws in (keyed_draws(0), system_draws):
        vectors = torch.stack([released(nothing, 3.0, *draws(id)) for id in range(300)])
        assert abs(float(vectors.std()) / (3.0 * SENSITIVITY) - 1.0) < 0.03
        assert abs(float(vectors.mean())) < 0.2


def test_noise_of_the_system_differs_from_call_to_call_and_keyed_noise_does_not() -> None:
    assert not torch.equal(system_draws(0)[1](8), system_draws(0)[1](8))
    assert torch.equal(keyed_draws(5)(0)[1](8), keyed_draws(5)(0)[1](8))
    assert not torch.equal(keyed_draws(5)(0)[1](8), keyed_draws(5)(1)[1](8))


def test_a_fingerprint_has_64_to_256_bytes_and_a_noised_count() -> None:
    assert 64 <= BYTES <= 256
    found = private_fingerprints(_data(400), TARGETS, torch.tensor([0]), 0, 2.0, keyed_draws(0))
    assert found.sum.shape == found.signed.shape == (1, NUMBERS)
    assert 0 < abs(float(found.count[0]) - 400) < 6 * 2.0 * SENSITIVITY / COUNT
