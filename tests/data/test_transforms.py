"""Transforms of training inputs: keyed random numbers, flip and crop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from homophily.data.transforms import BatchTransform, Draws, crop, flip
from homophily.errors import UserError
from homophily.randomness import bits

KEYS = bits(3, torch.arange(4000))
IMAGES = torch.arange(4000 * 2 * 9 * 16, dtype=torch.float32).view(4000, 2, 9, 16) + 1.0


def test_numbers_are_uniform_or_normal_and_new_in_every_call() -> None:
    draws = Draws(KEYS)
    first, second, gauss = draws.uniform(5), draws.uniform(5), draws.normal(2, 3)
    assert (first.dtype, first.shape, gauss.shape) == (torch.float32, (4000, 5), (4000, 2, 3))
    assert 0.0 <= float(first.min()) <= float(first.max()) < 1.0
    assert float(first.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(first.var()) == pytest.approx(1 / 12, abs=0.002)
    assert (float(gauss.mean()), float(gauss.std())) == pytest.approx((0.0, 1.0), abs=0.02)
    for other in (second, first[:, :1].expand(-1, 5)):
        assert abs(float(torch.corrcoef(torch.stack([first[:, 1], other[:, 1]]))[0, 1])) < 0.05
    assert Draws(KEYS).uniform().shape == (4000,)


def test_a_samples_numbers_depend_on_its_own_key_only() -> None:
    some = torch.tensor([17, 3, 999])
    assert torch.equal(Draws(KEYS[some]).uniform(2), Draws(KEYS).uniform(2)[some])
    assert torch.equal(Draws(KEYS[some]).normal(2), Draws(KEYS).normal(2)[some])


def test_flip_mirrors_half_of_the_images() -> None:
    changed = flip(IMAGES, Draws(KEYS))
    mirrored = (changed == IMAGES.flip(-1)).flatten(1).all(1)
    same = (changed == IMAGES).flatten(1).all(1)
    assert bool((mirrored ^ same).all())
    assert float(mirrored.float().mean()) == pytest.approx(0.5, abs=0.03)


def test_crop_shifts_by_up_to_an_eighth_and_fills_with_zeros() -> None:
    changed = crop(IMAGES, Draws(KEYS))
    assert changed.shape == IMAGES.shape
    shifts = {(dy, dx): 0 for dy in range(-1, 2) for dx in range(-2, 3)}
    padded = torch.nn.functional.pad(IMAGES, (2, 2, 1, 1))
    for dy, dx in shifts:
        window = padded[:, :, 1 + dy : 10 + dy, 2 + dx : 18 + dx]
        shifts[dy, dx] = int((changed == window).flatten(1).all(1).sum())
    assert sum(shifts.values()) == 4000
    assert min(shifts.values()) > 4000 / 15 * 0.75


def test_several_transforms_follow_one_another_with_numbers_of_their_own() -> None:
    seen: list[Tensor] = []

    def look(x: Tensor, draws: Draws) -> Tensor:
        seen.append(draws.uniform())
        return x + 1

    found = BatchTransform([look, look])(torch.zeros(5, 3, 7), KEYS[:15].view(5, 3))
    assert torch.equal(found, torch.full((5, 3, 7), 2.0))
    assert not bool((seen[0] == seen[1]).any())


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (flip, "data.transform = 'flip': needs images, [channels, height, width] per sample, not samples of the shape"),
        (lambda x, draws: None, "data.transform: '<lambda>' must return inputs like those it was given, torch.float32"),
        (lambda x, draws: x[:, :1], "data.transform: '<lambda>' must return inputs like those it was given"),
        (lambda x, draws: x.double(), "data.transform: '<lambda>' must return inputs like those it was given"),
    ],
)
def test_a_transform_that_changes_more_than_values_is_refused(function: Any, message: str) -> None:
    with pytest.raises(UserError) as error:
        BatchTransform([function])(torch.zeros(2, 5), KEYS[:2])
    assert str(error.value).startswith(message)
