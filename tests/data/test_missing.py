"""Missing values are filled with what the peer's own training samples say."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from homophily.data.missing import impute

NAN = torch.nan


def test_a_missing_value_becomes_the_mean_of_the_feature_over_the_training_samples() -> None:
    train = torch.tensor([[1.0, 10.0], [3.0, NAN], [NAN, 20.0]])
    (filled,) = impute(train)
    assert filled.tolist() == [[1.0, 10.0], [3.0, 15.0], [2.0, 20.0]]


def test_other_samples_are_filled_from_the_training_samples_and_not_from_themselves() -> None:
    train, test = torch.tensor([[2.0], [4.0]]), torch.tensor([[NAN], [100.0]])
    assert impute(train, test)[1].tolist() == [[3.0], [100.0]]


def test_a_feature_never_observed_in_training_becomes_zero() -> None:
    train, test = torch.tensor([[NAN, 1.0]]), torch.tensor([[NAN, 2.0], [5.0, NAN]])
    assert [t.tolist() for t in impute(train, test)] == [[[0.0, 1.0]], [[0.0, 2.0], [5.0, 1.0]]]


def test_nothing_missing_gives_back_the_same_tensors() -> None:
    train, test = torch.rand(3, 2), torch.rand(1, 2)
    assert all(after is before for after, before in zip(impute(train, test), (train, test), strict=True))


def test_pixels_and_tokens_cannot_be_missing() -> None:
    pixels, tokens = torch.zeros(2, 1, 3, 3, dtype=torch.uint8), torch.ones(2, 5, dtype=torch.int64)
    assert impute(pixels)[0] is pixels
    assert impute(tokens, tokens)[1] is tokens


def test_the_callers_tensors_stay_as_they_were() -> None:
    train = torch.tensor([[NAN], [1.0]])
    impute(train)
    assert train.isnan().tolist() == [[True], [False]]


@given(
    st.lists(st.lists(st.floats(-1e3, 1e3, width=32) | st.just(NAN), min_size=3, max_size=3), min_size=1, max_size=6)
)
def test_observed_values_never_change_and_none_is_missing_afterwards(rows: list[list[float]]) -> None:
    train = torch.tensor(rows)
    (filled,) = impute(train)
    assert not filled.isnan().any()
    assert torch.equal(filled[~train.isnan()], train[~train.isnan()])
