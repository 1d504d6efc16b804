"""The EM of heuristic neighbour matching: two groups, and all cases with fewer."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from homophily.methods import em as groups
from homophily.randomness import bits, normal

FINITE = st.floats(-1e6, 1e6, allow_nan=False)


def row(candidates: list[float], sample: list[float]) -> tuple[Tensor, Tensor, Tensor]:
    """Candidates first, then the sample, as one row."""
    count = len(candidates) + len(sample)
    in_sample = torch.arange(count) >= len(candidates)
    return ~in_sample[None], in_sample[None], torch.tensor([[*candidates, *sample]], dtype=torch.float64)


def two_groups(candidates: Tensor, sample: Tensor, similarity: Tensor, ids: Tensor | None = None) -> Tensor:
    """With tie keys by id; the id is the column by default."""
    ids = torch.arange(similarity.shape[1]).expand_as(similarity) if ids is None else ids
    return groups.two_groups(candidates, sample, similarity, bits(7, ids))


def found(candidates: list[float], sample: list[float]) -> list[int]:
    return two_groups(*row(candidates, sample))[0].nonzero()[:, 0].tolist()


def test_two_clear_groups_are_found() -> None:
    assert found([0.1, 0.9, 0.12, 0.88], [0.91, 0.89, 0.11]) == [1, 3, 4, 5]


def test_a_start_with_strangers_in_the_sample_still_finds_the_upper_group() -> None:
    assert found([0.9, 0.92, 0.91, 0.1], [0.09, 0.11, 0.9]) == [0, 1, 2, 6]


def test_the_initial_split_stays_if_all_similarities_are_equal() -> None:
    assert found([0.5, 0.5], [0.5, 0.5, 0.5]) == [2, 3, 4]


def test_an_empty_sample_is_seeded_with_the_most_similar_candidate() -> None:
    assert found([0.1, 0.9, 0.12, 0.95], []) == [1, 3]
    assert found([0.3], []) == [0]
    nobody = torch.zeros(40, 3, dtype=torch.bool)
    ids = torch.arange(120).view(40, 3)
    seeded = two_groups(~nobody, nobody, torch.full((40, 3), 0.5).double(), ids)
    assert seeded.sum(1).tolist() == [1] * 40
    assert int(seeded.sum(0).min()) > 5  # ties are broken by a draw, not by order


def test_without_candidates_a_split_counts_only_if_it_is_clear() -> None:
    assert found([], [0.9, 0.88, 0.1, 0.12, 0.91]) == [0, 1, 4]
    assert found([], [0.9, 0.8, 0.1, 0.2, 0.95]) == [0, 1, 2, 3, 4]  # 12 pooled sigmas: not clear for five points
    assert found([], [0.4]) == [0]


def test_without_candidates_fewer_than_five_are_never_split() -> None:
    assert found([], [0.9, 0.9, 0.1, 0.1]) == [0, 1, 2, 3]


@pytest.mark.parametrize("points", [5, 6, 7, 8, 10, 12, 15, 20, 25, 30, 40, 50, 70, 100])
def test_without_candidates_one_cloud_is_split_in_1_of_100_draws(points: int) -> None:
    everyone = torch.ones(4000, points, dtype=torch.bool)
    cloud = normal(3, points, torch.arange(4000)[:, None], torch.arange(points))
    split = ~two_groups(~everyone, everyone, cloud).all(1)
    assert 0.002 <= float(split.double().mean()) <= 0.02


def test_empty_and_diverged_input_gives_an_empty_result() -> None:
    assert found([], []) == []
    nobody = -torch.inf
    assert found([nobody, torch.nan], [nobody]) == []
    assert found([nobody, 0.1], [0.9, torch.nan]) == [2]


@settings(deadline=None)
@given(st.lists(FINITE, max_size=9), st.lists(FINITE, max_size=9))
def test_the_result_is_not_empty_and_a_subset_of_the_input(candidates: list[float], sample: list[float]) -> None:
    chosen = found(candidates, sample)
    assert bool(chosen) == bool(candidates or sample)
    assert set(chosen) <= set(range(len(candidates) + len(sample)))


@settings(deadline=None)
@given(st.lists(FINITE, max_size=9), st.lists(FINITE, max_size=9), st.integers(-20, 20))
def test_scaling_changes_nothing(candidates: list[float], sample: list[float], power: int) -> None:
    scale = 2.0**power
    small = [abs(y) > 1e-200 or y == 0 for y in (*candidates, *sample)]
    if all(small):
        assert found([y * scale for y in candidates], [y * scale for y in sample]) == found(candidates, sample)


@settings(deadline=None)
@given(st.lists(FINITE, min_size=1, max_size=7), st.lists(FINITE, max_size=7), st.integers(0, 10**6))
def test_the_order_of_peers_changes_nothing(candidates: list[float], sample: list[float], seed: int) -> None:
    in_c, in_s, y = row(candidates, sample)
    order = bits(seed, torch.arange(y.shape[1])).argsort()
    shuffled = two_groups(in_c[:, order], in_s[:, order], y[:, order], ids=order[None])
    assert torch.equal(shuffled, two_groups(in_c, in_s, y)[:, order])


@settings(deadline=None)
@given(st.lists(FINITE, min_size=1, max_size=7), st.lists(FINITE, max_size=7), st.integers(0, 9))
def test_padding_and_other_rows_change_nothing(candidates: list[float], sample: list[float], more: int) -> None:
    in_c, in_s, y = row(candidates, sample)
    alone = two_groups(in_c, in_s, y)

    def pad(mask: Tensor) -> Tensor:
        return torch.nn.functional.pad(mask, (0, more))

    company = torch.linspace(-1, 1, y.shape[1] + more).double()[None]
    both = [torch.cat([pad(in_c), company > 0.3]), torch.cat([pad(in_s), company < -0.3]), torch.cat([pad(y), company])]
    assert torch.equal(two_groups(*both)[:1, : y.shape[1]], alone)


def test_groups_ten_standard_deviations_apart_are_found_in_95_of_100_draws() -> None:
    """At least 3 in S, all of them in the upper group, two or more in each group."""
    draws = 2000
    peer = torch.arange(draws)[:, None]
    upper_c = bits(1, peer) % 8 % 4 + 1
    upper_c = upper_c.abs().clamp(0, 5)
    for in_sample in (3, 5, 8):
        for below in (2, 5, 8):
            slots = torch.arange(5 + below + in_sample)
            sample = (slots >= 5 + below).expand(draws, -1)
            high = (slots < upper_c) | sample
            low = ((slots >= 5) & (slots < 5 + below)).expand(draws, -1)
            y = normal(2, in_sample, below, peer, slots) + torch.where(high, 10.0, 0.0)
            right = (two_groups((high | low) & ~sample, sample, y) == high).all(1)
            assert float(right.double().mean()) >= 0.95


def test_the_fit_ends_after_the_largest_number_of_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if every sweep changes the groups: here each sweep exchanges them."""
    sweeps = []

    def trade(mask: Tensor, upper: Tensor, y: Tensor) -> Tensor:
        sweeps.append(1)
        return mask & ~upper

    monkeypatch.setattr(groups, "_reassigned", trade)
    assert found([0.1, 0.2], [0.9, 0.8])
    assert len(sweeps) == groups.SWEEPS
