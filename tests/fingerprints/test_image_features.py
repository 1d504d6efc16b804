"""Features of images: coarse structure and the strength of textures, by cosine transforms without any data."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from homophily.fingerprints import image_features
from homophily.fingerprints.image_features import CUT, SIDE, ImageFeatures, is_image

CPU = torch.device("cpu")


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def features(x: Tensor) -> tuple[Tensor, Tensor]:
    return ImageFeatures(tuple(x.shape[1:]), CPU)(x)


def wave(side: int, down: int, across: int) -> Tensor:
    """[1, 1, side, side]: a product of cosines with so many half waves, of unit norm."""
    place = (torch.arange(side) + 0.5) * math.pi / side
    one = torch.cos(down * place)[:, None] * torch.cos(across * place)
    return (one / one.norm())[None, None]


@pytest.mark.parametrize(
    ("shape", "image"),
    [
        ((1, 8, 8), True),
        ((3, 32, 48), True),
        ((1, 7, 8), False),
        ((64,), False),
        ((8, 8), False),
        ((2, 3, 8, 8), False),
    ],
)
def test_images_are_channels_of_at_least_8_by_8_pixels(shape: tuple[int, ...], image: bool) -> None:
    assert is_image(shape) is image


@pytest.mark.parametrize("side", [5, 8, 32])
def test_the_cosine_transform_is_orthonormal(side: int) -> None:
    transform = image_features._cosines(side).double()
    assert torch.allclose(transform @ transform.T, torch.eye(side).double(), atol=1e-5)
    assert torch.allclose(transform[0], torch.full((side,), 1 / math.sqrt(side)).double())


def test_the_coarse_structure_has_every_frequency_up_to_the_cut_once() -> None:
    """17 pairs of half waves (i, j) have i^2 + j^2 <= 16; a wave beyond shows nothing."""
    inside = [(i, j) for i in range(8) for j in range(8) if i * i + j * j <= CUT**2]
    assert len(inside) == 17
    for place, (i, j) in enumerate(inside):
        low, _ = features(wave(8, i, j))
        assert low.shape == (1, 17)
        expected = 2 * math.sqrt(1 + math.hypot(i, j)) / 8  # weighted as natural images fall, over sqrt(pixels)
        assert float(low[0, place]) == pytest.approx(expected, abs=1e-5)
        assert float(low[0].abs().sum()) == pytest.approx(expected, abs=1e-4)
    low, _ = features(wave(8, 5, 0))
    assert float(low.abs().max()) < 1e-5


def test_the_coarse_structure_of_colours_is_of_brightness_and_two_differences() -> None:
    x = drawn(3, 1, 8, 8)
    plain, _ = features(x)
    grey, _ = features(x.expand(-1, 3, -1, -1))
    assert grey.shape == (3, 3 * 17)
    assert torch.allclose(grey[:, :17], plain, atol=1e-5)
    assert float(grey[:, 17:].abs().max()) < 1e-5
    red = torch.cat([x, torch.zeros(3, 2, 8, 8)], 1)
    found, _ = features(red)
    assert torch.allclose(found.view(3, 3, 17), plain[:, None] * torch.tensor([1 / 3, 1.0, -0.5])[:, None], atol=1e-5)
    channels, _ = features(drawn(2, 5, 8, 8))  # neither grey nor colours: each channel by itself
    assert channels.shape == (2, 5 * 17)


def test_textures_are_of_brightness_whatever_the_sign() -> None:
    x = drawn(4, 3, 16, 16)
    _, bands = features(x)
    _, negative = features(-x)
    _, grey = features(x.mean(1, keepdim=True))
    assert torch.allclose(bands, negative, atol=1e-5)
    assert torch.allclose(bands, grey, atol=1e-5)


def test_textures_do_not_see_a_constant_brightness() -> None:
    x = drawn(4, 1, 16, 16)
    assert torch.allclose(features(x + 3.0)[1], features(x)[1], atol=1e-3)
    _, still = features(torch.full((1, 1, 16, 16), 2.0))
    assert torch.allclose(still, torch.full_like(still, 0.1 - 1.0), atol=1e-3)


def test_stripes_along_rows_and_along_columns_differ_and_turn_into_each_other() -> None:
    stripes = torch.cos(torch.arange(32) * math.pi / 2).expand(1, 1, 32, 32)
    _, across = features(stripes)
    _, along = features(stripes.mT)
    assert float((across - along).abs().max()) > 0.5
    bands = int(image_features._bands(8).shape[1])
    x = drawn(5, 1, 32, 32)
    one, other = (features(image)[1].view(5, bands, 2, 2) for image in (x, x.mT))
    order = [3 * ring + sector for ring in range(bands // 3) for sector in (2, 1, 0)]
    assert torch.allclose(one[:, order].mT, other, atol=2e-2)


def test_a_texture_in_a_corner_shows_in_that_cell_most() -> None:
    x = torch.zeros(1, 1, 32, 32)
    x[..., :12, 20:] = drawn(12, 12)
    _, bands = features(x)
    cells = bands.view(-1, 2, 2).mean(0)
    assert float(cells[0, 1]) > float(cells[0, 0]) + 0.1
    assert float(cells[0, 1]) == float(cells.max())
    assert float(cells[1, 0]) == pytest.approx(-0.9, abs=1e-4)  # nothing


def test_bands_are_means_over_rings_and_sectors() -> None:
    for side in (4, 8):
        bands = image_features._bands(side)
        assert torch.allclose(bands.sum(0), torch.ones(bands.shape[1]))
        assert int((bands > 0).sum(1).max()) == 1  # nowhere two
        assert (bands > 0).any(1).tolist() == [False] + [True] * (side * side - 1)  # all but the constant


@pytest.mark.parametrize("shape", [(1, 32, 32), (3, 20, 31), (1, 8, 8)])
def test_up_to_32_pixels_images_stay_as_they_are(shape: tuple[int, ...]) -> None:
    x = drawn(2, *shape)
    assert ImageFeatures.reduced(x) is x


@pytest.mark.parametrize(("shape", "reduced"), [((1, 64, 96), (32, 32)), ((3, 33, 10), (32, 10))])
def test_larger_images_are_averaged(shape: tuple[int, ...], reduced: tuple[int, int]) -> None:
    x = drawn(2, *shape)
    found = ImageFeatures.reduced(x)
    assert found.shape == (2, shape[0], *reduced)
    assert max(reduced) <= SIDE
    if shape == (1, 64, 96):
        assert float(found[0, 0, 1, 2]) == pytest.approx(float(x[0, 0, 2:4, 6:9].mean()), abs=1e-6)


def test_images_of_one_shape_do_not_mix() -> None:
    x = drawn(6, 3, 12, 20)
    whole, one = features(x), features(x[4:5])
    for several, alone in zip(whole, one, strict=True):
        assert torch.allclose(several[4:5], alone, atol=1e-5)
