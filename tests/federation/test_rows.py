"""A merge is a weighted sum of rows that does not depend on other peers and leaves out diverged rows."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from homophily.federation.layout import Layout
from homophily.federation.merging import gather, krum, uniform
from homophily.federation.rows import Federation
from homophily.federation.view import View
from homophily.randomness import bits, normal


def federation(rows: Tensor, personal: tuple[str, ...] = ()) -> Federation:
    """Rows of a linear layer with two inputs: weight, weight, bias."""
    layout = Layout.of(nn.Linear(rows.shape[1] - 1, 1, dtype=rows.dtype), personal)
    return Federation(layout, rows.clone(), {})


def everyone(peers: int) -> View:
    me = torch.arange(peers)
    contacts = me.expand(peers, peers)
    return View(me, torch.zeros_like(me), contacts, contacts != me[:, None], torch.ones_like(contacts), None)


def row_of(ids: Tensor) -> Tensor:
    """Rows are numbered by id."""
    return ids.clamp(min=0)


def merged(rows: Tensor, partners: Tensor, personal: tuple[str, ...] = ()) -> Tensor:
    whole = federation(rows, personal)
    peers = len(rows)
    whole.merge(gather(everyone(peers), partners, row_of, torch.ones(peers)).without(whole.diverged), uniform)
    return whole.rows


def test_a_merge_is_the_mean_over_partners_and_self() -> None:
    rows = torch.tensor([[1.0, 10.0, 100.0], [3.0, 30.0, 300.0], [5.0, 50.0, 500.0]])
    partners = torch.tensor([[False, True, False], [True, False, True], [False, False, False]])
    after = merged(rows.double(), partners)
    assert torch.allclose(after, torch.tensor([[2.0, 20, 200], [3, 30, 300], [5, 50, 500]]).double(), rtol=1e-15)


@given(st.integers(2, 9), st.integers(0, 10**6))
def test_a_merge_equals_the_product_with_a_row_stochastic_matrix(peers: int, seed: int) -> None:
    i, j = torch.arange(peers)[:, None], torch.arange(peers)
    partners = (bits(seed, i, j) % 2 == 0) & (i != j)
    rows = normal(seed, i, torch.arange(4))
    weights = (partners | (i == j)).double()
    expected = (weights / weights.sum(1, keepdim=True)) @ rows
    assert torch.allclose(merged(rows, partners), expected, atol=1e-12)


@given(st.integers(2, 9), st.integers(0, 10**6))
def test_merging_one_row_equals_merging_all_rows_bit_for_bit(peers: int, seed: int) -> None:
    i, j = torch.arange(peers)[:, None], torch.arange(peers)
    partners = (bits(seed, i, j) % 2 == 0) & (i != j)
    rows = normal(seed, i, torch.arange(5)).float()
    alone = federation(rows)
    last = everyone(peers).rows(slice(peers - 1, peers))
    single = gather(last, partners[-1:], row_of, torch.ones(peers)).without(alone.diverged)
    share = uniform(single)
    expected = torch.zeros(5)
    for slot in range(single.ids.shape[1]):
        expected = expected + rows[single.ids[0, slot]] * share[0, slot].float()
    together = merged(rows, partners)[-1]
    assert torch.equal(together, expected if bool(partners[-1].any()) else rows[-1])


def test_a_diverged_row_is_left_out_and_recovers() -> None:
    rows = torch.tensor([[1.0, 1.0], [torch.nan, 2.0], [3.0, 3.0], [torch.inf, 0.0]])
    whole = federation(rows)
    assert whole.diverged.tolist() == [False, True, False, True]
    partners = torch.tensor([[0, 1, 1, 0], [1, 0, 1, 0], [0, 1, 0, 0], [0, 1, 0, 0]]).bool()
    after = merged(rows, partners)
    assert after[0].tolist() == [2.0, 2.0]  # without the diverged partner
    assert after[1].tolist() == [2.0, 2.0]  # recovered: its own row left out
    assert after[2].tolist() == [3.0, 3.0]  # its only partner has diverged: unchanged
    assert not bool(after[3].isfinite().all())  # no finite partner to recover by


def test_personal_columns_are_not_merged() -> None:
    rows = torch.tensor([[1.0, 10.0, 100.0], [3.0, 30.0, 300.0]])
    partners = torch.tensor([[False, True], [True, False]])
    assert merged(rows, partners, ("bias",)).tolist() == [[2.0, 20.0, 100.0], [2.0, 20.0, 300.0]]


def test_a_merge_in_small_chunks_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = normal(5, torch.arange(7)[:, None], torch.arange(3))
    partners = ~torch.eye(7, dtype=torch.bool)
    at_once = merged(rows, partners)
    monkeypatch.setattr("homophily.federation.rows._ON_CPU", 1)
    assert torch.equal(merged(rows, partners), at_once)


def test_a_group_is_in_ascending_id_and_includes_the_peer_itself() -> None:
    partners = torch.tensor([[False, False, False, True], [True, False, True, False]])
    diverged = torch.tensor([False, False, True, False])
    alike = torch.arange(8.0).view(2, 4).double()
    view = replace(everyone(4).rows(slice(0, 2)), me=torch.tensor([1, 3]))
    found = gather(view, partners, row_of, torch.tensor([5, 6, 7, 8]), alike).without(diverged)
    assert found.ids.tolist() == [[1, 3, -1], [0, 2, 3]]
    assert found.mask.tolist() == [[True, True, False], [True, False, True]]
    assert found.is_self.tolist() == [[True, False, False], [False, False, True]]
    assert found.samples.tolist() == [[6.0, 8.0, 5.0], [5.0, 7.0, 8.0]]
    assert found.similarity.tolist() == [[-torch.inf, 3.0, -torch.inf], [4.0, 6.0, -torch.inf]]


def test_a_rowwise_merge_never_sees_personal_parameters() -> None:
    """By the shared parameters the second is krum; the personal ones would make it the first."""
    rows = torch.tensor([[0.0, 0.0], [0.1, 100.0], [5.0, 0.0], [0.2, 200.0]])
    whole = federation(rows, ("bias",))
    everybody = ~torch.eye(4, dtype=torch.bool)
    whole.merge(gather(everyone(4), everybody, row_of, torch.ones(4)).without(whole.diverged), krum)
    assert whole.rows[:, 0].tolist() == pytest.approx([0.1] * 4)
    assert whole.rows[:, 1].tolist() == [0.0, 100.0, 0.0, 200.0]
