"""Computes fingerprints: the mean and the noise of a peer's embedded training samples. Nothing is trained."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from homophily.data.types import Split
from homophily.fingerprints.embedding import BUCKETS, Embedding, Targets
from homophily.fingerprints.fingerprint import ROWS, SAMPLES, SMALL_FEDERATION, Fingerprints, Format, checked
from homophily.randomness import Purpose, bits, normal

_BYTES = 64 << 20  # memory for embedded samples and temporaries: about the size of a CPU's caches


def fingerprints(
    data: Split, targets: Targets, ids: Tensor, seed: int, form: Format = SMALL_FEDERATION
) -> Fingerprints:
    """Return the fingerprints of the peers ``ids`` [N], from their training data."""
    device = data.x.device
    embed = Embedding(data.x[:1], data.y[:1], targets, seed, device)
    piece = max(1, _bytes(device) // (4 * embed.values_per_sample))

    def of(peers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        samples, count = _drawn(data, ids, peers, seed)
        mask = torch.arange(samples.shape[1], device=device) < count[:, None]
        embedded = torch.zeros(*samples.shape, BUCKETS, device=device)
        # A CPU embeds one peer at a time, so that a real peer gets the same bits. A GPU needs many samples at once.
        at_once = [samples[mask]] if data.x.is_cuda else list(samples)
        embedded[mask] = torch.cat([embed(data.x[s], data.y[s]) for some in at_once for s in some.split(piece)])
        return *summed_up(folded(embedded, form.buckets), count, ids.to(device)[peers], seed, form), count

    chunks = _chunks(data)
    made = [of(peers) for peers in chunks]
    most = max(factor.shape[1] for _, factor, _ in made)
    back = torch.cat(chunks).argsort()
    mean, count = torch.cat([mean for mean, _, _ in made])[back], torch.cat([count for _, _, count in made])[back]
    factor = torch.cat([F.pad(factor, (0, 0, 0, most - factor.shape[1])) for _, factor, _ in made])[back]
    return checked(mean.to(ids.device), factor.to(ids.device), count.to(ids.device), form)


def _chunks(data: Split) -> list[Tensor]:
    """Return the peers [P] that are computed together.

    On a CPU they have equally many samples: padding would change the last bits of a fingerprint.
    """
    device, count = data.x.device, data.count.clamp(max=SAMPLES)
    order = count.argsort(stable=True)
    groups = [order] if data.x.is_cuda else order.split(count.unique(return_counts=True)[1].tolist())
    value = 16 * BUCKETS  # bytes of an embedded sample and its temporaries; those of the noise have up to ROWS samples
    return [
        chunk
        for group in groups
        for chunk in group.split(max(1, _bytes(device) // (value * max(4 * ROWS, int(count[group].max())))))
    ]


def _bytes(device: torch.device) -> int:
    """Return the number of bytes that temporaries may take."""
    return _BYTES if device.type == "cpu" else torch.cuda.get_device_properties(device).total_memory // 16


def _drawn(data: Split, ids: Tensor, peers: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return the indices of the samples that ``peers`` [P] use, [P, most], and their numbers [P].

    A peer uses all of its samples, or ``SAMPLES`` of them, drawn by keys. If it has more than ``ROWS``, they are in
    random order, because only the first ``ROWS`` enter the factor.
    """
    count = data.count[peers]
    index = torch.arange(int(count.max()), device=data.x.device)
    chance = bits(seed, ids.to(data.x.device)[peers, None], Purpose.FINGERPRINT, index)
    order = torch.where(count[:, None] > ROWS, chance, index)
    last = torch.iinfo(torch.int64).max  # peers with fewer samples
    drawn = torch.where(index < count[:, None], order, last).argsort(stable=True)[:, :SAMPLES]
    return data.start[peers, None] + drawn, count.clamp(max=SAMPLES)


def folded(values: Tensor, d: int) -> Tensor:
    """Fold embedded samples [..., buckets] to [..., d]: add up the buckets that are equal modulo d."""
    out: Tensor = values.unflatten(-1, (-1, d)).sum(-2) if values.shape[-1] != d else values
    return out


def summed_up(embedded: Tensor, count: Tensor, ids: Tensor, seed: int, form: Format) -> tuple[Tensor, Tensor]:
    """Return means [P, d] and noise [P, F, d] of embedded samples [P, n, d]; a peer has the first ``count`` [P].

    The noise is a triangular factor of the covariance, or random directions of it if the format has fewer rows. Both
    are rounded to float16 as they are sent. The noise is padded with rows of 0.
    """
    mean = embedded.sum(1, dtype=torch.float64) / count[:, None]
    finite = embedded.isfinite().flatten(1).all(1)
    apart = contrasts(torch.where(finite[:, None, None], embedded[:, :ROWS], 0.0).double())
    mask = torch.arange(1, apart.shape[1] + 1, device=count.device) < count[:, None]
    apart = torch.where(mask[..., None], apart, 0.0)
    if apart.shape[1] > form.rows:
        direction = torch.arange(form.rows * apart.shape[1], device=count.device).view(form.rows, -1)
        turn = normal(seed, ids[:, None, None], Purpose.FINGERPRINT, -1 - direction) * mask[:, None]
        apart = torch.linalg.qr(turn.mT).Q.mT @ apart
    else:
        apart = torch.linalg.qr(apart, mode="r").R
    return rounded(mean), rounded(apart)


def contrasts(rows: Tensor) -> Tensor:
    """Return the n - 1 Helmert contrasts of n rows [..., n, d].

    They are orthonormal differences with the scatter of the rows about their mean. The first k contrasts depend only on
    the first k + 1 rows.
    """
    k = torch.arange(1, rows.shape[-2], dtype=rows.dtype, device=rows.device)[:, None]
    return (rows.cumsum(-2)[..., :-1, :] - k * rows[..., 1:, :]) / (k * (k + 1)).sqrt()


def rounded(values: Tensor) -> Tensor:
    """Round to float16, scaled by a power of two per peer: its largest value is near 1, small ones keep digits."""
    if not values.numel():
        return values.float()
    largest = values.abs().flatten(1).amax(1).view(-1, *[1] * (values.dim() - 1))
    scale = torch.where(largest > 0, torch.exp2(torch.ceil(torch.log2(largest.clamp(min=1e-300)))), 1.0)
    return (values / scale).half().double().mul(scale).float()
