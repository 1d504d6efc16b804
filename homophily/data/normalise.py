"""From raw samples to what a model sees: pixels as floats, then on a common scale."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from homophily.errors import UserError

NORMALISATIONS = ("unit", "half", "standard")
LEAST_DEVIATION = 1e-6  # a channel or feature that varies less is constant, and becomes 0


def as_floats(x: Tensor) -> Tensor:
    """Pixels (uint8, 0..255) as float32 in 0..1; anything else as it is."""
    return x.to(torch.float32).div_(255.0) if x.dtype == torch.uint8 else x


@dataclass(frozen=True)
class Scale:
    """Raw samples [n, C, ...] as floats on a common scale; integers that are no pixels stay as they are."""

    mean: Tensor | None = None  # to broadcast against samples; None: values stay as they are
    factor: Tensor | None = None

    @classmethod
    def of(cls, how: str, reference: Tensor) -> Scale:
        """unit: as is; half: (x - 0.5) / 0.5; standard: mean 0 and standard deviation 1 of ``reference`` by channel."""
        if how not in NORMALISATIONS:
            raise UserError(f"data.normalise must be one of {', '.join(NORMALISATIONS)}, not {how!r}")
        if how == "unit" or not (reference.is_floating_point() or reference.dtype == torch.uint8):
            return cls()
        if how == "half":
            return cls(torch.tensor(0.5), torch.tensor(2.0))
        mean, deviation = _pixel_statistics(reference) if reference.dtype == torch.uint8 else _statistics(reference)
        return cls(mean, torch.where(deviation < LEAST_DEVIATION, 0.0, 1.0 / deviation))

    def __call__(self, x: Tensor) -> Tensor:
        """(x - mean) * factor; pixels, of which a copy is made anyway, in place."""
        floats = as_floats(x)
        if self.mean is None or self.factor is None or not floats.is_floating_point():
            return floats
        return (floats - self.mean) * self.factor if floats is x else floats.sub_(self.mean).mul_(self.factor)


def _over(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _pixel_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """The same of pixels (uint8), from how often each value occurs, which is exact however it is counted."""
    counts = torch.stack([channel.flatten().bincount(minlength=256) for channel in x.unbind(1)])
    share, value = counts.double() / counts.sum(1, keepdim=True), torch.arange(256, dtype=torch.float64)
    mean = share @ value
    variance = (share @ value.square() - mean.square()).clamp(min=0.0)
    shape = [1, -1, *(1 for _ in x.shape[2:])]
    return (mean / 255.0).float().view(shape), (variance.sqrt() / 255.0).float().view(shape)


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each entry of dim 1, to broadcast against x; missing values (NaN) do not count."""
    variance, mean = torch.var_mean(x, dim=_over(x), correction=0, keepdim=True)
    if bool(mean.isnan().any()):
        mean = x.nanmean(dim=_over(x), keepdim=True)
        variance = (x - mean).square().nanmean(dim=_over(x), keepdim=True)
    return mean, variance.sqrt()
