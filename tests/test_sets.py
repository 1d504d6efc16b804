"""Sets of peers are rows of booleans; a draw is uniform and the same alone or among all."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from homophily.randomness import bits
from homophily.sets import listed, pick


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


def test_listed_gives_ids_in_the_order_of_the_book() -> None:
    members = torch.tensor([[True, False, True], [False, False, False], [False, True, False]])
    book = torch.tensor([[2, 5, 9], [1, 2, 3], [4, 7, 8]])
    ids, there = listed(members, book)
    assert ids.tolist() == [[2, 9], [-1, -1], [7, -1]]
    assert there.tolist() == [[True, True], [False, False], [True, False]]


def test_listed_of_nobody_is_empty() -> None:
    ids, there = listed(torch.zeros(2, 3, dtype=torch.bool), torch.zeros(2, 3, dtype=torch.int64))
    assert ids.shape == there.shape == (2, 0)
