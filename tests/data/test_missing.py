"""Missing values are imputed from the peer's own training samples."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from homophily.data.missing import impute

NAN = torch.nan


def test_a_missing_value_becomes_the_mean_of_the_feature_over_the_training_samples() -> None:
    train = torch.tensor([[1.0, 10.0], [3.0, NAN], [NAN, 20.0]])
    fill = impute([[train]])
    assert train.tolist() == [[1.0, 10.0], [3.0, 15.0], [2.0, 20.0]]
    assert fill is not None
    assert fill.tolist() == [[2.0, 15.0]]


def test_test_samples_are_imputed_from_the_training_samples() -> None:
    train, test = torch.tensor([[2.0], [4.0]]), torch.tensor([[NAN], [100.0]])
    impute([[train, test]])
    assert test.tolist() == [[3.0], [100.0]]


def test_each_peer_imputes_its_own_means() -> None:
    first, second = torch.tensor([[1.0], [NAN]]), torch.tensor([[5.0], [7.0]])
    fill = impute([[first], [second]])
    assert fill is not None
    assert fill.tolist() == [[1.0], [6.0]]
    assert (first.tolist(), second.tolist()) == ([[1.0], [1.0]], [[5.0], [7.0]])


def test_a_feature_never_observed_in_training_becomes_zero() -> None:
    train, test = torch.tensor([[NAN, 1.0]]), torch.tensor([[NAN, 2.0], [5.0, NAN]])
    impute([[train, test]])
    assert [train.tolist(), test.tolist()] == [[[0.0, 1.0]], [[0.0, 2.0], [5.0, 1.0]]]


def test_pixels_and_tokens_cannot_be_missing() -> None:
    pixels, tokens = torch.zeros(2, 1, 3, 3, dtype=torch.uint8), torch.ones(2, 5, dtype=torch.int64)
    assert impute([[pixels], [tokens, tokens]]) is None


@given(
    st.lists(st.lists(st.floats(-1e3, 1e3, width=32) | st.just(NAN), min_size=3, max_size=3), min_size=1, max_size=6)
)
def test_observed_values_never_change_and_none_is_missing_afterwards(rows: list[list[float]]) -> None:
    train = torch.tensor(rows)
    before = train.clone()
    impute([[train]])
    assert not train.isnan().any()
    assert torch.equal(train[~before.isnan()], before[~before.isnan()])
