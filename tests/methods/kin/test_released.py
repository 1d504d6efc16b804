"""kin with private fingerprints: false alarms are rare at every epsilon, families are found, own scales are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import homophily
from homophily.errors import UserError
from homophily.fingerprints.private import NUMBERS, released, unpacked
from homophily.methods.kin.private_power import samples_needed, smallest_spread
from homophily.methods.kin.released import released_kinship
from homophily.privacy.gaussian import gaussian_noise


def _federation(means: torch.Tensor, counts: list[int], epsilon: float, seed: int) -> torch.Tensor:
    """Released vectors of peers whose clipped samples vary mostly in a few directions about their means [N, d]."""
    chance = torch.Generator().manual_seed(seed)
    scale = 0.35 * torch.arange(1, NUMBERS + 1, dtype=torch.float64) ** -0.7
    rows = []
    for mean, count in zip(means, counts, strict=True):
        e = mean + scale * torch.randn(count, NUMBERS, generator=chance, dtype=torch.float64)
        e = e / e.norm(dim=1, keepdim=True).clamp(min=1.0)
        rows.append(
            released(
                e,
                gaussian_noise(epsilon, 1e-5),
                lambda n: torch.rand(n, generator=chance, dtype=torch.float64),
                lambda n: torch.randn(n, generator=chance, dtype=torch.float64),
            )
        )
    return torch.stack(rows)


def _found(means: torch.Tensor, counts: list[int], epsilon: float, seed: int):  # type: ignore[no-untyped-def]
    prints = unpacked(_federation(means, counts, epsilon, seed), gaussian_noise(epsilon, 1e-5))
    return released_kinship(prints, torch.arange(len(counts)), seed)[0]


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0, 8.0])
def test_one_distribution_has_rank_0(epsilon: float) -> None:
    mean = torch.full((NUMBERS,), 0.05, dtype=torch.float64)
    equal, unequal = [200] * 40, [50 + 14 * i for i in range(40)]
    ranks = [_found(mean.expand(40, -1), counts, epsilon, s).rank for s in range(15) for counts in (equal, unequal)]
    assert sum(rank > 0 for rank in ranks) <= 1  # about 1 in 300 is expected


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 8.0])
def test_families_are_found_with_200_samples_of_unequal_peers(epsilon: float) -> None:
    cluster = torch.arange(40) % 2
    means = torch.zeros(40, NUMBERS, dtype=torch.float64)
    means[:, 20] = 0.2 * (cluster - 0.5)
    found = _found(means, [150 + 100 * (i // 20) for i in range(40)], epsilon, 0)
    assert found.rank == 1
    assert found.family is not None
    assert torch.equal(found.family, cluster)


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0, 8.0])
def test_peers_that_differ_gradually_are_no_families_whatever_their_sizes(epsilon: float) -> None:
    means = torch.zeros(60, NUMBERS, dtype=torch.float64)
    means[:, 20] = torch.linspace(-0.2, 0.2, 60, dtype=torch.float64)
    for sizes in ([400] * 60, [150 + 100 * (i % 7) for i in range(60)]):
        found = _found(means, sizes, epsilon, 0)
        assert found.rank > 0
        assert found.family is None
        assert found.continuum is not None


def test_fewer_than_three_peers_say_nothing() -> None:
    found = _found(torch.zeros(2, NUMBERS, dtype=torch.float64), [200, 200], 1.0, 0)
    assert not found.enough_samples


def test_samples_needed_inverts_the_smallest_spread_and_falls_with_epsilon() -> None:
    needed = [samples_needed(0.04, 100, gaussian_noise(epsilon, 1e-5), 0.03) for epsilon in (1.0, 2.0, 4.0)]
    assert all(n is not None for n in needed)
    assert needed == sorted(needed, reverse=True)  # type: ignore[type-var]
    assert smallest_spread(float(needed[0] or 0), 100, gaussian_noise(1.0, 1e-5), 0.03) < 0.04
    assert samples_needed(0.0, 100, 1.0, 0.03) is None


def test_kin_with_a_promise_reports_it_with_its_power() -> None:
    answer = homophily.kin({"peers": 6, "data": {"train": 100}, "privacy": {"epsilon": 2.0}}).summary()
    assert answer["privacy"]["epsilon"] == 2.0
    assert answer["privacy"]["smallest_spread"] > 0
    assert answer["bytes_per_peer"] == 5 * answer["privacy"]["bytes_per_fingerprint"]


def test_a_scale_computed_from_own_data_is_refused() -> None:
    x, y = np.random.default_rng(0).normal(size=(30, 4)), np.arange(30) % 2
    data = [homophily.PeerData(x, y, test_x=x, test_y=y) for _ in range(3)]
    with pytest.raises(UserError, match=r"your own data needs data\.scale with classes"):
        homophily.kin({"privacy": {"epsilon": 2.0}}, data=data)
    scale = {"mean": [0.0] * 4, "std": [1.0] * 4, "classes": 2}
    homophily.kin({"privacy": {"epsilon": 2.0}, "data": {"scale": scale}}, data=data)


def test_a_delta_that_single_samples_would_keep_is_refused() -> None:
    asked = {"peers": 6, "data": {"train": 100}, "privacy": {"epsilon": 2.0, "delta": 0.011}}
    with pytest.raises(UserError, match=r"delta = 0\.011 must be below 1 / 100"):
        homophily.kin(asked)
