"""From raw samples to what a model sees: pixels as floats, then on a common scale."""

from __future__ import annotations

import torch
from torch import Tensor

from homophily.errors import UserError

NORMALISATIONS = ("unit", "half", "standard")
LEAST_DEVIATION = 1e-6  # a channel or feature that varies less is constant, and becomes 0


def as_floats(x: Tensor) -> Tensor:
    """Pixels (uint8, 0..255) as float32 in 0..1; anything else as it is."""
    return x.to(torch.float32) / 255.0 if x.dtype == torch.uint8 else x


def normalise(how: str, reference: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Scale float tensors [n, C, ...]; integer ones stay as they are.

    unit: as is; half: (x - 0.5) / 0.5; standard: ``reference`` gets mean 0 and deviation 1 in each channel or feature.
    """
    if how not in NORMALISATIONS:
        raise UserError(f"data.normalise must be one of {', '.join(NORMALISATIONS)}, not {how!r}")
    if how == "unit" or not reference.is_floating_point():
        return tensors
    if how == "half":
        return tuple((t - 0.5) / 0.5 if t.is_floating_point() else t for t in tensors)
    mean, deviation = _statistics(reference)
    scale = torch.where(deviation < LEAST_DEVIATION, 0.0, 1.0 / deviation)
    return tuple((t - mean) * scale if t.is_floating_point() else t for t in tensors)


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each entry of dim 1, to broadcast against x; missing values (NaN) do not count."""
    over = [dim for dim in range(x.dim()) if dim != 1]
    variance, mean = torch.var_mean(x, dim=over, correction=0, keepdim=True)
    if bool(mean.isnan().any()):
        mean = x.nanmean(dim=over, keepdim=True)
        variance = (x - mean).square().nanmean(dim=over, keepdim=True)
    return mean, variance.sqrt()
