"""A peer's fingerprint: mean and noise of its samples' gradients at one common model, sketched to a few numbers.

Nothing is trained.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from homophily.data.types import Split
from homophily.fingerprints.fingerprint import ROWS, Fingerprints, checked
from homophily.fingerprints.sketching import Sketch, sketcher
from homophily.randomness import Purpose, bits
from homophily.training.losses import Loss

SAMPLES = 500  # of a peer, at most
_BYTES = 64 << 20  # of gradients and the like held at a time: about what a CPU's caches take


def fingerprints(
    module: nn.Module, loss: Loss, data: Split, ids: Tensor, seed: int, cast: Callable[[Tensor], Tensor]
) -> Fingerprints:
    """Of every peer [N] on its training data, at the weights of ``module``. cast: to the network's precision."""
    module, device = copy.deepcopy(module).eval(), data.x.device
    shapes = {name: p.shape for name, p in module.named_parameters() if p.requires_grad}
    sketch = Sketch(shapes, seed, device)
    sketched = sketcher(module, loss, tuple(data.x.shape[1:]), sketch)
    piece = max(1, _bytes(device) // (4 * sketched.held))

    def of(peers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        samples, count = _drawn(data, ids, peers, seed)
        mask = torch.arange(samples.shape[1], device=device) < count[:, None]
        parts = [sketched(cast(data.x[some]), cast(data.y[some])) for some in samples[mask].split(piece)]
        sketches = torch.zeros(*samples.shape, sketch.buckets, device=device)
        sketches[mask] = torch.cat(parts)
        return *summed_up(sketches, count), count

    # On a CPU everyone's are computed apart, with the very numbers of a peer on its own; a GPU wants many samples.
    together = _bytes(device) // (16 * SAMPLES * sketch.buckets) if data.x.is_cuda else 1
    made = [of(peers) for peers in torch.arange(len(ids), device=device).split(max(1, together))]
    most = max(factor.shape[1] for _, factor, _ in made)
    mean, count = torch.cat([mean for mean, _, _ in made]), torch.cat([count for _, _, count in made])
    factor = torch.cat([F.pad(factor, (0, 0, 0, most - factor.shape[1])) for _, factor, _ in made])
    return checked(mean.to(ids.device), factor.to(ids.device), count.to(ids.device))


def _bytes(device: torch.device) -> int:
    """How many bytes of gradients to hold at a time."""
    return _BYTES if device.type == "cpu" else torch.cuda.get_device_properties(device).total_memory // 16


def _drawn(data: Split, ids: Tensor, peers: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """The samples that the fingerprints of ``peers`` [P] are made of, [P, most], and how many they are [P].

    All of a peer's, or a keyed draw; in keyed order if not all make the factor.
    """
    count = data.count[peers]
    index = torch.arange(int(count.max()), device=data.x.device)
    chance = bits(seed, ids.to(data.x.device)[peers, None], Purpose.FINGERPRINT, index)
    order = torch.where(count[:, None] > ROWS, chance, index)
    last = torch.iinfo(torch.int64).max  # whoever has fewer samples
    drawn = torch.where(index < count[:, None], order, last).argsort(stable=True)[:, :SAMPLES]
    return data.start[peers, None] + drawn, count.clamp(max=SAMPLES)


def summed_up(sketches: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Means [P, d] and triangular factors [P, F, d] of peers' sketches [P, n, d], of which each has ``count`` [P].

    Rounded to what travels. Factors are padded with rows of 0; they are no more telling than the covariance.
    """
    mean = sketches.sum(1, dtype=torch.float64) / count[:, None]
    finite = sketches.isfinite().flatten(1).all(1)
    apart = contrasts(torch.where(finite[:, None, None], sketches[:, :ROWS], 0.0).double())
    mask = torch.arange(1, apart.shape[1] + 1, device=count.device) < count[:, None]
    factor = torch.linalg.qr(torch.where(mask[..., None], apart, 0.0), mode="r").R
    return rounded(mean), rounded(factor)


def contrasts(rows: Tensor) -> Tensor:
    """n - 1 orthonormal differences of n rows [..., n, d]: their scatter about their mean (Helmert's).

    The first k are those of the first k + 1 rows.
    """
    k = torch.arange(1, rows.shape[-2], dtype=rows.dtype, device=rows.device)[:, None]
    return (rows.cumsum(-2)[..., :-1, :] - k * rows[..., 1:, :]) / (k * (k + 1)).sqrt()


def rounded(values: Tensor) -> Tensor:
    """As float16 with a power of two as each peer's scale: its largest number is near 1, so small ones keep digits."""
    if not values.numel():
        return values.float()
    largest = values.abs().flatten(1).amax(1).view(-1, *[1] * (values.dim() - 1))
    scale = torch.where(largest > 0, torch.exp2(torch.ceil(torch.log2(largest.clamp(min=1e-300)))), 1.0)
    return (values / scale).half().double().mul(scale).float()
