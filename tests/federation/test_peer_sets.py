"""Sets of peers as boolean masks; draws are uniform and do not depend on the other rows."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from homophily.federation.peer_sets import compact, pick, pick_weighted, spread, top, total
from homophily.randomness import bits, uniform


def drawn(rows: int, columns: int, seed: int) -> tuple[Tensor, Tensor]:
    i, j = torch.arange(rows)[:, None], torch.arange(columns)
    return bits(seed, i, 0, j) % 3 > 0, bits(seed, i, 1, j)


@given(st.integers(1, 8), st.integers(1, 12), st.integers(0, 14), st.integers(0, 10**6))
def test_pick_takes_k_of_the_set_or_all_of_it(rows: int, columns: int, k: int, seed: int) -> None:
    among, keys = drawn(rows, columns, seed)
    picked = pick(among, k, keys)
    assert not bool((picked & ~among).any())
    assert torch.equal(picked.sum(1), among.sum(1).clamp(max=k))
    assert torch.equal(pick(among[-1:], k, keys[-1:]), picked[-1:])


def test_pick_is_uniform() -> None:
    among = torch.tensor([True, True, False, True, True]).expand(4000, 5)
    picked = pick(among, 2, bits(1, torch.arange(4000)[:, None], torch.arange(5)))
    share = picked.double().mean(0)
    assert torch.allclose(share, torch.tensor([0.5, 0.5, 0.0, 0.5, 0.5], dtype=torch.float64), atol=0.03)


def test_compact_gives_columns_in_order_and_spread_undoes_it() -> None:
    members = torch.tensor([[True, False, True], [False, False, False], [False, True, False]])
    columns, mask = compact(members)
    assert columns.tolist() == [[0, 2], [0, 0], [1, 0]]
    assert mask.tolist() == [[True, True], [False, False], [True, False]]
    assert torch.equal(spread(columns, mask, 3), members)


def test_compact_of_empty_sets_is_empty() -> None:
    columns, mask = compact(torch.zeros(2, 3, dtype=torch.bool))
    assert columns.shape == mask.shape == (2, 0)
    assert not bool(spread(columns, mask, 3).any())


@given(st.integers(1, 8), st.integers(1, 12), st.integers(0, 14), st.integers(0, 10**6))
def test_top_takes_the_largest_and_breaks_ties_by_key(rows: int, columns: int, k: int, seed: int) -> None:
    among, keys = drawn(rows, columns, seed)
    i, j = torch.arange(rows)[:, None], torch.arange(columns)
    values = (bits(seed, i, 2, j) % 3).double()
    values[values == 2] = -torch.inf  # a diverged member is still a member
    best = top(among, k, values, keys)
    for row in range(rows):
        members = among[row].nonzero()[:, 0].tolist()
        order = sorted(members, key=lambda c: (-float(values[row, c]), int(keys[row, c])))
        assert best[row].nonzero()[:, 0].tolist() == sorted(order[:k])
    assert torch.equal(top(among[-1:], k, values[-1:], keys[-1:]), best[-1:])


def test_a_weighted_draw_is_in_proportion_and_without_replacement() -> None:
    among = torch.tensor([True, True, True, False]).expand(20_000, 4)
    logs = torch.tensor([0.5, 0.3, 0.2, 9.0]).double().log().expand(20_000, 4)
    chance = uniform(1, torch.arange(20_000)[:, None], torch.arange(4))
    one = pick_weighted(among, 1, logs, chance).double().mean(0)
    assert torch.allclose(one, torch.tensor([0.5, 0.3, 0.2, 0.0]).double(), atol=0.015)
    two = pick_weighted(among, 2, logs, chance).double().mean(0)
    # P(third is in a draw of two) = 0.2 + 0.5 * 0.2 / 0.5 + 0.3 * 0.2 / 0.7
    assert abs(float(two[2]) - (0.2 + 0.2 + 0.06 / 0.7)) < 0.015
    assert bool((pick_weighted(among, 3, logs, chance) == among).all())


def test_a_weighted_draw_has_k_members_even_if_one_has_all_the_weight() -> None:
    logs = torch.tensor([[10_000.0, 0.0, -5_000.0, -9_000.0]]).double()
    drawn = pick_weighted(torch.ones(1, 4).bool(), 3, logs, uniform(1, torch.arange(4)[None]))
    assert drawn.tolist() == [[True, True, True, False]]


def test_total_is_the_sum_over_members() -> None:
    members = torch.tensor([[True, False, True], [False, False, False]])
    assert total(members, torch.tensor([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]])).tolist() == [[5.0], [0.0]]
