"""Integer apportionment."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from homophily.data.proportions import apportion, carve, deal, divide, each_within, in_proportion

UNHURRIED = settings(deadline=None)  # the machine may be busy
WEIGHTS = st.lists(st.floats(0, 1), min_size=1, max_size=8).map(lambda w: torch.tensor(w, dtype=torch.float64))


@st.composite
def tables(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Weights [R, C] and a supply [C] of at least 8 per row."""
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    cells = draw(st.lists(st.floats(0, 1), min_size=rows * columns, max_size=rows * columns))
    supply = torch.tensor(draw(st.lists(st.integers(0, 30), min_size=columns, max_size=columns)))
    supply[draw(st.integers(0, columns - 1))] += 8 * rows
    return torch.tensor(cells, dtype=torch.float64).view(rows, columns), supply


def test_remainders_go_to_the_largest_fractions_and_ties_to_the_first() -> None:
    assert apportion(10, torch.tensor([4.0, 6.0])).tolist() == [4, 6]
    assert apportion(3, torch.tensor([26, 13, 13])).tolist() == [1, 1, 1]
    assert apportion(11, torch.ones(4)).tolist() == [3, 3, 3, 2]


@UNHURRIED
@given(st.integers(0, 10_000), WEIGHTS)
def test_parts_sum_to_the_total_and_miss_their_quota_by_less_than_one(total: int, weights: Tensor) -> None:
    parts = apportion(total, weights)
    if weights.sum() == 0:
        assert parts.sum() == 0
        return
    assert parts.sum() == total
    assert ((parts - total * weights / weights.sum()).abs() < 1 + 1e-9).all()
    assert (parts[weights == 0] == 0).all()


@UNHURRIED
@given(st.lists(st.integers(0, 20), min_size=1, max_size=10), st.integers(1, 7))
def test_dealt_class_counts_differ_by_at_most_one_per_row_and_in_total(sizes: list[int], classes: int) -> None:
    dealt = deal(torch.tensor(sizes), classes)
    assert dealt.sum(1).tolist() == sizes
    assert (dealt.amax(1) - dealt.amin(1)).max() <= 1
    assert dealt.sum(0).max() - dealt.sum(0).min() <= 1


@UNHURRIED
@given(tables(), st.integers(0, 8))
def test_rows_get_their_sizes_from_a_shared_supply_without_exceeding_it(
    table: tuple[Tensor, Tensor], size: int
) -> None:
    weights, supply = table
    counts = in_proportion(torch.full((len(weights),), size), weights, supply)
    assert (counts.sum(1) == size).all()
    assert (counts >= 0).all()
    assert (counts.sum(0) <= supply).all()


def test_a_sufficient_supply_is_divided_by_the_weights_alone() -> None:
    weights = torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.2, 0.7]], dtype=torch.float64)
    counts = in_proportion(torch.tensor([10, 10]), weights, torch.tensor([50, 50, 50]))
    assert counts.tolist() == [[5, 5, 0], [1, 2, 7]]


def test_a_short_class_is_divided_in_proportion_and_replaced_by_others() -> None:
    weights = torch.tensor([[0.8, 0.2], [0.8, 0.2]], dtype=torch.float64)
    counts = in_proportion(torch.tensor([10, 10]), weights, torch.tensor([8, 12]))
    assert counts.tolist() == [[4, 6], [4, 6]]


@UNHURRIED
@given(tables(), st.integers(0, 60))
def test_each_row_may_use_the_whole_supply_of_its_classes(table: tuple[Tensor, Tensor], size: int) -> None:
    weights, supply = table
    counts = each_within(size, weights, supply)
    assert (counts <= supply).all()
    assert (counts[weights == 0] == 0).all()
    reach = torch.where(weights > 0, supply, 0).sum(1)
    assert counts.sum(1).tolist() == reach.clamp(max=size).tolist()


@UNHURRIED
@given(tables(), st.integers(1, 8))
def test_dividing_uses_the_whole_supply_and_respects_the_minimum(table: tuple[Tensor, Tensor], least: int) -> None:
    weights, supply = table
    counts = divide(weights, supply, least)
    assert (counts.sum(0) == supply).all()
    assert (counts >= 0).all()
    assert (counts.sum(1) >= least).all()


@UNHURRIED
@given(tables())
def test_carved_parts_have_the_requested_sizes(table: tuple[Tensor, Tensor]) -> None:
    counts = divide(*table, 8)
    parts = carve(counts, [4, 2])
    assert (parts.sum(1) == counts).all()
    assert (parts >= 0).all()
    assert (parts[:, 1].sum(1) == 4).all()
    assert (parts[:, 2].sum(1) == 2).all()
