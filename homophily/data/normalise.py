"""Normalisation: pixels become floats, and features are put on a common scale."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from homophily.errors import UserError

NORMALISATIONS = ("unit", "half", "standard")
LEAST_DEVIATION = 1e-6  # a channel or feature with a smaller standard deviation counts as constant and becomes 0


def as_floats(x: Tensor) -> Tensor:
    """Return pixels (uint8, 0 to 255) as float32 from 0 to 1; other tensors are returned unchanged."""
    return x.to(torch.float32).div_(255.0) if x.dtype == torch.uint8 else x


@dataclass(frozen=True)
class Scale:
    """Maps raw samples [n, C, ...] to (x - mean) * factor; integers that are not pixels stay as they are."""

    mean: Tensor | None = None  # broadcasts against samples; None: values are not scaled
    factor: Tensor | None = None

    @classmethod
    def of(cls, how: str, reference: Tensor) -> Scale:
        """Return the scale called ``how``.

        unit: no scaling; half: (x - 0.5) / 0.5; standard: mean 0 and standard deviation 1 per channel of ``reference``.
        """
        if how not in NORMALISATIONS:
            raise UserError(f"data.normalise must be one of {', '.join(NORMALISATIONS)}, not {how!r}")
        if how == "unit" or not (reference.is_floating_point() or reference.dtype == torch.uint8):
            return cls()
        if how == "half":
            return cls(torch.tensor(0.5), torch.tensor(2.0))
        mean, deviation = _pixel_statistics(reference) if reference.dtype == torch.uint8 else _statistics(reference)
        return cls(mean, torch.where(deviation < LEAST_DEVIATION, 0.0, 1.0 / deviation))

    def __call__(self, x: Tensor) -> Tensor:
        """Return (x - mean) * factor in new memory."""
        floats = as_floats(x)
        if self.mean is None or self.factor is None or not floats.is_floating_point():
            return floats
        return (floats - self.mean) * self.factor if floats is x else floats.sub_(self.mean).mul_(self.factor)


def _all_but_channels(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _pixel_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """``_statistics`` of pixels (uint8) from the histogram of their values, so that no order of summation matters."""
    counts = torch.stack([channel.flatten().bincount(minlength=256) for channel in x.unbind(1)])
    share, value = counts.double() / counts.sum(1, keepdim=True), torch.arange(256, dtype=torch.float64)
    mean = share @ value
    variance = (share @ value.square() - mean.square()).clamp(min=0.0)
    shape = [1, -1, *(1 for _ in x.shape[2:])]
    return (mean / 255.0).float().view(shape), (variance.sqrt() / 255.0).float().view(shape)


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation per entry of dim 1, shaped to broadcast against x; NaN is ignored."""
    variance, mean = torch.var_mean(x, dim=_all_but_channels(x), correction=0, keepdim=True)
    if bool(mean.isnan().any()):
        mean = x.nanmean(dim=_all_but_channels(x), keepdim=True)
        variance = (x - mean).square().nanmean(dim=_all_but_channels(x), keepdim=True)
    return mean, variance.sqrt()
