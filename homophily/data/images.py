"""Turning images."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

CHUNK = 4096  # images turned at once: the sampling grid and its floats are many times the pixels


def rotated(x: Tensor, angle: float) -> Tensor:
    """Square images [n, channels, side, side] turned by ``angle`` degrees counter-clockwise, in the same dtype.

    Exact for multiples of 90; bilinear for others, with 0 (black) where the turned image does not reach.
    """
    if angle % 90 == 0:
        return torch.rot90(x, int(angle // 90) % 4, dims=(-2, -1))
    return torch.cat([_interpolated(images, angle) for images in torch.split(x, CHUNK)])


def _interpolated(x: Tensor, angle: float) -> Tensor:
    cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    # Where each pixel comes from: rows run downwards, so that turning the grid this way turns the image the other.
    turn = torch.tensor([[cosine, -sine, 0.0], [sine, cosine, 0.0]])
    grid = affine_grid(turn.expand(len(x), -1, -1), list(x.shape), align_corners=False)
    turned = grid_sample(x.to(torch.float32), grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return turned.round().to(x.dtype) if not x.is_floating_point() else turned.to(x.dtype)
