"""Image rotation."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

CHUNK = 4096  # images rotated at once: the sampling grid takes many times the memory of the pixels


def rotated(x: Tensor, angle: float) -> Tensor:
    """Return square images [n, channels, side, side] rotated by ``angle`` degrees counter-clockwise, in the same dtype.

    Exact for multiples of 90; otherwise bilinear, with 0 (black) outside the rotated image.
    """
    if angle % 90 == 0:
        return torch.rot90(x, int(angle // 90) % 4, dims=(-2, -1))
    return torch.cat([_interpolated(images, angle) for images in torch.split(x, CHUNK)])


def _interpolated(x: Tensor, angle: float) -> Tensor:
    cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    # The grid says where each output pixel is sampled, so rotating the grid rotates the image the opposite way.
    rotation = torch.tensor([[cosine, -sine, 0.0], [sine, cosine, 0.0]])
    grid = affine_grid(rotation.expand(len(x), -1, -1), list(x.shape), align_corners=False)
    sampled = grid_sample(x.to(torch.float32), grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return sampled.round().to(x.dtype) if not x.is_floating_point() else sampled.to(x.dtype)
