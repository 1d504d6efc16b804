"""Transforms (augmentations) of training inputs, drawn anew for every batch by keyed random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from homophily.errors import UserError
from homophily.plugins.registry import Registry
from homophily.randomness import bits, normal, uniform


class Draws:
    """Random numbers for the b samples of a batch, a function of (seed, peer, round, step, sample) only.

    So a sample is transformed in the same way however peers are batched. Every call returns new numbers.
    """

    def __init__(self, keys: Tensor) -> None:
        """keys: [b] int64, one per sample."""
        self._keys, self._calls = keys, 0

    def uniform(self, *shape: int) -> Tensor:
        """Return float32 numbers [b, *shape], uniform in [0, 1)."""
        return uniform(*self._next(shape)).mul_(1 << 24).floor_().mul_(2.0**-24).float().view(-1, *shape)

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal float32 numbers [b, *shape]."""
        return normal(*self._next(shape)).float().view(-1, *shape)

    def _next(self, shape: tuple[int, ...]) -> tuple[Tensor, int, Tensor]:
        self._calls += 1
        return self._keys[:, None], self._calls, torch.arange(prod(shape), device=self._keys.device)


Transform = Callable[[Tensor, Draws], Tensor]
"""From inputs x [b, ...], scaled as the network takes them, and random numbers to inputs of the same shape."""

transforms: Registry[Transform] = Registry("transform")


@transforms("flip")
def flip(x: Tensor, draws: Draws) -> Tensor:
    """Mirrors each image, from left to right, with probability 1/2."""
    _check_images("flip", x)
    return torch.where(draws.uniform(1, 1, 1) < 0.5, x.flip(-1), x)


@transforms("crop")
def crop(x: Tensor, draws: Draws) -> Tensor:
    """Shifts each image by up to an eighth of its height and width; what comes in from outside is 0."""
    _check_images("crop", x)
    sides = x.shape[-2:]
    reach = [max(1, side // 8) for side in sides]
    wide = F.pad(x, (reach[1], reach[1], reach[0], reach[0]))
    shifts = draws.uniform(2)
    rows, columns = (
        (shifts[:, i] * (2 * reach[i] + 1)).long()[:, None] + torch.arange(sides[i], device=x.device) for i in (0, 1)
    )
    sample = torch.arange(len(x), device=x.device)[:, None, None]
    return wide[sample, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _check_images(name: str, x: Tensor) -> None:
    if x.dim() != 4:
        wanted = "needs images, [channels, height, width] per sample"
        raise UserError(f"data.transform = {name!r}: {wanted}, not samples of the shape {list(x.shape[1:])}")


@dataclass(frozen=True)
class BatchTransform:
    """Several transforms, one after the other."""

    functions: Sequence[Transform]

    def __call__(self, x: Tensor, keys: Tensor) -> Tensor:
        """Return transformed inputs. x: [..., *inputs]; keys: [...] int64, one per sample."""
        flat, own = x.flatten(0, keys.dim() - 1), keys.flatten()
        for number, function in enumerate(self.functions):
            name = getattr(function, "__name__", type(function).__name__)
            try:
                changed = function(flat, Draws(bits(number, own)))
            except UserError:
                raise
            except Exception as error:  # a user's transform may raise anything
                what = f"{type(error).__name__}: {error}"
                raise UserError(f"data.transform: {name!r} fails on inputs {_form(flat)}: {what}") from error
            if _form(changed) != _form(flat):
                wanted = f"must return inputs like those it was given, {_form(flat)}"
                raise UserError(f"data.transform: {name!r} {wanted}, not {_form(changed)}")
            flat = changed
        return flat.view(x.shape)


def _form(values: object) -> str:
    """Return the type and shape of values, for error messages."""
    return f"{values.dtype} {list(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
