"""Normalisation of raw samples."""

from __future__ import annotations

import pytest
import torch

from homophily.data.normalise import Scale, as_floats
from homophily.errors import UserError


def test_pixels_become_floats_from_zero_to_one() -> None:
    floats = as_floats(torch.tensor([0, 51, 255], dtype=torch.uint8))
    assert floats.dtype == torch.float32
    assert floats.tolist() == pytest.approx([0.0, 0.2, 1.0])


@pytest.mark.parametrize("x", [torch.tensor([[300.0]]), torch.tensor([[7]])], ids=["floats", "tokens"])
def test_tensors_that_are_not_pixels_are_unchanged(x: torch.Tensor) -> None:
    assert as_floats(x) is x


def test_unit_changes_nothing() -> None:
    x = torch.rand(4, 3)
    assert Scale.of("unit", x)(x) is x


def test_half_maps_zero_to_one_onto_minus_one_to_one() -> None:
    x = torch.tensor([[0.0, 0.5, 1.0]])
    assert Scale.of("half", x)(x).tolist() == [[-1.0, 0.0, 1.0]]


def test_standard_gives_every_channel_mean_0_and_deviation_1_over_the_reference() -> None:
    images = torch.rand(50, 3, 4, 4) * torch.tensor([1.0, 10.0, 100.0])[:, None, None] + 7.0
    scaled = Scale.of("standard", images)(images)
    by_channel = scaled.transpose(0, 1).flatten(1)
    assert torch.allclose(by_channel.mean(1), torch.zeros(3), atol=1e-5)
    assert torch.allclose(by_channel.std(1, correction=0), torch.ones(3), atol=1e-5)


def test_standard_gives_every_feature_mean_0_and_deviation_1_over_the_reference() -> None:
    table = torch.tensor([[0.0, 100.0], [2.0, 300.0]])
    assert Scale.of("standard", table)(table).tolist() == [[-1.0, -1.0], [1.0, 1.0]]


def test_other_tensors_are_scaled_by_the_references_statistics() -> None:
    reference, test = torch.tensor([[0.0], [2.0]]), torch.tensor([[5.0]])
    assert Scale.of("standard", reference)(test).tolist() == [[4.0]]


def test_a_feature_constant_in_the_reference_becomes_zero() -> None:
    reference, test = torch.tensor([[0.1, 0.0], [0.1, 2.0]]), torch.tensor([[9.0, 1.0]])
    assert [Scale.of("standard", reference)(x).tolist() for x in (reference, test)] == [
        [[0.0, -1.0], [0.0, 1.0]],
        [[0.0, 0.0]],
    ]


def test_missing_values_stay_missing_and_are_ignored_in_the_statistics() -> None:
    reference = torch.tensor([[0.0, 1.0], [2.0, torch.nan], [torch.nan, 3.0]])
    scaled = Scale.of("standard", reference)(reference)
    assert torch.equal(scaled.isnan(), reference.isnan())
    assert scaled[~scaled.isnan()].tolist() == [-1.0, -1.0, 1.0, 1.0]


@pytest.mark.parametrize("how", ["unit", "half", "standard"])
def test_tokens_are_unchanged(how: str) -> None:
    tokens = torch.tensor([[3, 5], [7, 9]])
    assert Scale.of(how, tokens)(tokens) is tokens


def test_an_unknown_normalisation_is_refused_with_the_known_names() -> None:
    with pytest.raises(UserError, match=r"data\.normalise must be one of unit, half, standard, not 'zscore'"):
        Scale.of("zscore", torch.rand(2, 2))
