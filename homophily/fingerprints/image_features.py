"""Features of images for fingerprints: coarse structure, and the strength of textures.

Both come from cosine transforms and are scaled by what natural images have on average, a spectrum that falls with the
frequency, so that no data is needed. The constants were chosen on digits, Fashion-MNIST and CIFAR-10 with seeds 100 to
102 and then fixed (results/kin.md).
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

SIDE = 32  # pixels; larger images are averaged down to it
CUT = 4.0  # the highest frequency of the coarse structure, in half waves per side
_LEAST = 8  # pixels of an image's side; smaller arrays are plain vectors
_CELLS = 2  # textures are averaged over a grid of so many by so many cells
_RINGS = (0.0, 0.2, 0.4, 2.0)  # of frequency, as parts of a block's side
_SECTORS = (-0.1, 0.4, 1.17, 1.7)  # of direction, in radians: along rows, diagonal, along columns
_COLOURS = ((1 / 3, 1 / 3, 1 / 3), (1.0, 0.0, -1.0), (-0.5, 1.0, -0.5))  # brightness, red - blue, green - the others


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether samples of that shape are images: channels, height, width."""
    return len(shape) == 3 and min(shape[1:]) >= _LEAST


class ImageFeatures:
    """Features of images of one shape, at most 32 x 32 pixels."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        height, width = (min(SIDE, side) for side in shape[1:])
        rows, columns = _cosines(height), _cosines(width)
        frequency = _frequency(height, width)
        low = frequency <= CUT
        waves = torch.einsum("ih,jw->ijhw", rows, columns)[low].flatten(1)  # [P, pixels]
        scale = 2.0 * (1.0 + frequency[low]).sqrt() / math.sqrt(height * width)
        self._low = (waves * scale[:, None]).T.contiguous().to(device)
        self._colours = torch.tensor(_COLOURS, device=device) if shape[0] == 3 else torch.eye(shape[0], device=device)
        self._block = max(4, min(height, width) // 4)
        block = _cosines(self._block)
        weight = 2.0 * (1.0 + _frequency(self._block, self._block) * min(height, width) / self._block)
        both = torch.einsum("ih,jw->ijhw", block, block) * weight[..., None, None] / math.sqrt(height * width)
        self._blocks = both.flatten(2).flatten(0, 1).T.contiguous().to(device)  # [pixels, coefficients] of a block
        self._bands = _bands(self._block).to(device)

    @staticmethod
    def reduced(x: Tensor) -> Tensor:
        """Images [n, channels, height, width], averaged to 32 pixels a side if they are larger."""
        height, width = (min(SIDE, side) for side in x.shape[2:])
        return x if (height, width) == x.shape[2:] else F.adaptive_avg_pool2d(x, (height, width))

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The coarse structure [n, P] and the strength of textures [n, Q] of images [n, channels, height, width]."""
        colours = torch.einsum("oc,nchw->nohw", self._colours, x)
        return (colours.flatten(2) @ self._low).flatten(1), self._textures(x.mean(1))

    def _textures(self, x: Tensor) -> Tensor:
        """[n, Q]: by ring and sector, the root mean square over overlapping blocks, as a mean over cells."""
        step = max(1, self._block // 2)
        blocks = x.unfold(1, self._block, step).unfold(2, self._block, step).flatten(3)  # [n, h, w, pixels]
        energy = (blocks @ self._blocks).square() @ self._bands
        strength = (energy + 0.01).sqrt() - 1.0
        return F.adaptive_avg_pool2d(strength.movedim(3, 1), _CELLS).flatten(1)


def _cosines(n: int) -> Tensor:
    """The orthonormal cosine transform [frequency, place]."""
    place, frequency = torch.arange(n) + 0.5, torch.arange(n)[:, None]
    scale = torch.full((n, 1), math.sqrt(2.0 / n))
    scale[0] = math.sqrt(1.0 / n)
    return scale * torch.cos(math.pi * place * frequency / n)


def _frequency(height: int, width: int) -> Tensor:
    """[height, width]: half waves per side, in both directions together."""
    return (torch.arange(height)[:, None].square() + torch.arange(width).square()).sqrt()


def _bands(side: int) -> Tensor:
    """[coefficients, bands]: takes the mean over the coefficients of each ring and sector that has any."""
    ring = _frequency(side, side).flatten() / side
    direction = torch.atan2(torch.arange(side)[:, None].float(), torch.arange(side).float()).flatten()
    masks = [
        (ring > low) & (ring <= high) & (direction >= first) & (direction < last)
        for low, high in pairwise(_RINGS)
        for first, last in pairwise(_SECTORS)
    ]
    return torch.stack([mask / mask.sum() for mask in masks if bool(mask.any())], 1)
