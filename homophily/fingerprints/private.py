"""Private fingerprints: sums of clipped embedded samples, released once with Gaussian noise.

A sample's embedding e has at most the norm B, in units of which everything here is. A peer with samples e_1, ..., e_n
releases one vector:

    (sum of e_j,  SIGNED * sum of s_j e_j,  COUNT * n) + noise,    s_j random signs

Adding or removing one sample changes it by at most ``SENSITIVITY``, and every number gets noise of the standard
deviation ``multiplier * SENSITIVITY``. The signed sum has mean 0 whatever the peer's distribution is, so that the
signed sums of many peers show how much sums vary by sampling alone (docs/privacy.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from homophily.data.types import Split
from homophily.fingerprints.compute import rounded
from homophily.fingerprints.embedding import CompactEmbedding, Targets
from homophily.privacy.draws import SecretDraws
from homophily.randomness import Purpose, generator, normal, uniform

NUMBERS = 32  # of each sum
SIGNED, COUNT = 0.5, 0.5  # weights of the signed sum and of the count, in a vector whose first sum has weight 1
SENSITIVITY = math.sqrt(1.0 + SIGNED**2 + COUNT**2)
BYTES = 2 * (2 * NUMBERS + 1) + 8  # of a fingerprint: float16, and one scale
_SIMULATED = 2000  # samples whose median norm is the clipping norm
_PIECE = 2000  # samples that are embedded at once

Draw = Callable[[int], Tensor]  # so many independent standard normal numbers, float64


@dataclass(frozen=True)
class PrivateFingerprints:
    """Released fingerprints of N peers, in units of the clipping norm."""

    sum: Tensor  # [N, d] float64, with noise of standard deviation ``noise``
    signed: Tensor  # [N, d] float64, with noise / SIGNED
    count: Tensor  # [N] float64, with noise / COUNT
    noise: float

    @property
    def vectors(self) -> Tensor:
        """[N, 2 d + 1] float64: the fingerprints as they are released; ``unpacked`` reads them."""
        return torch.cat([self.sum, SIGNED * self.signed, COUNT * self.count[:, None]], 1)

    @property
    def bytes(self) -> Tensor:
        """[N] int64: size of the fingerprint when it is sent."""
        return torch.full(self.count.shape, BYTES)

    def of(self, peers: Tensor) -> PrivateFingerprints:
        """Return the fingerprints of some peers [M]."""
        return PrivateFingerprints(self.sum[peers], self.signed[peers], self.count[peers], self.noise)


def private_fingerprints(
    data: Split, targets: Targets, ids: Tensor, seed: int, multiplier: float, draws: Callable[[int], tuple[Draw, Draw]]
) -> PrivateFingerprints:
    """Return the released fingerprints of the peers ``ids`` [N], from all of their training samples.

    multiplier: noise over sensitivity. draws: for the id of a peer, where its signs (uniform) and its noise (standard
    normal) come from.
    """
    device = data.x.device
    embed = CompactEmbedding(data.x[:1], data.y[:1], targets, seed, device, NUMBERS)
    bound = clipping_norm(embed, data, targets, seed)
    vectors = []
    for id, start, count in zip(ids.tolist(), data.start.tolist(), data.count.tolist(), strict=True):
        signs, noise = draws(id)
        vectors.append(
            released(clipped(embed, data.x[start : start + count], data.y[start : start + count], bound), multiplier,
                     signs, noise)
        )  # fmt: skip
    return unpacked(torch.stack(vectors), multiplier)


def clipping_norm(embed: CompactEmbedding, data: Split, targets: Targets, seed: int) -> float:
    """B: the median norm of embedded standard normal inputs with uniform targets. No data enters, only its shape."""
    chance = generator(seed, Purpose.SKETCH, 0)
    shape = (_SIMULATED, *data.x.shape[1:])
    x = torch.randn(shape, generator=chance)
    if not data.x.is_floating_point():
        x = torch.randint(1 << 15, shape, generator=chance)
    if targets.classes is None:
        y = torch.randn(_SIMULATED, *data.y.shape[1:], generator=chance)
        if targets.mean is not None and targets.std is not None:
            y = targets.mean.cpu() + y * targets.std.cpu()
    else:
        y = torch.randint(targets.classes, (_SIMULATED, *data.y.shape[1:]), generator=chance)
    norms = embed(x.to(data.x.device), y.to(data.x.device)).norm(dim=1)
    return float(norms.median())


def clipped(embed: CompactEmbedding, x: Tensor, y: Tensor, bound: float) -> Tensor:
    """Embedded samples [n, d] float64 over the clipping norm, each of norm at most 1; one that is not finite is 0."""
    pieces = [embed(*some) for some in zip(x.split(_PIECE), y.split(_PIECE), strict=True)]
    e = torch.cat(pieces).double().cpu() / bound if pieces else torch.zeros(0, NUMBERS, dtype=torch.float64)
    e = torch.where(e.isfinite().all(1, keepdim=True), e, 0.0)
    out: Tensor = e / e.norm(dim=1, keepdim=True).clamp(min=1.0)
    return out


def released(e: Tensor, multiplier: float, signs: Draw, noise: Draw) -> Tensor:
    """The vector [2 d + 1] that a peer with the clipped samples e [n, d] releases, rounded to float16."""
    sign = torch.where(signs(len(e)) < 0.5, -1.0, 1.0)
    count = torch.tensor([float(len(e))], dtype=torch.float64)
    vector = torch.cat([e.sum(0), SIGNED * (sign[:, None] * e).sum(0), COUNT * count])
    return rounded((vector + multiplier * SENSITIVITY * noise(len(vector)))[None])[0].double()


def unpacked(vectors: Tensor, multiplier: float) -> PrivateFingerprints:
    """Fingerprints from released vectors [N, 2 d + 1]."""
    d = vectors.shape[1] // 2
    return PrivateFingerprints(
        vectors[:, :d], vectors[:, d : 2 * d] / SIGNED, vectors[:, -1] / COUNT, multiplier * SENSITIVITY
    )


def keyed_draws(seed: int, earlier: int = 0) -> Callable[[int], tuple[Draw, Draw]]:
    """Signs and noise of simulated peers, which can be repeated. earlier: fingerprints that they released before."""

    def of(id: int) -> tuple[Draw, Draw]:
        def signs(n: int) -> Tensor:
            return uniform(seed, id, Purpose.PRIVATE_FINGERPRINT, 2 * earlier, torch.arange(n))

        def noise(n: int) -> Tensor:
            return normal(seed, id, Purpose.PRIVATE_FINGERPRINT, 2 * earlier + 1, torch.arange(n))

        return signs, noise

    return of


def system_draws(id: int) -> tuple[Draw, Draw]:
    """Signs and noise of a real peer, from the operating system's generator."""

    drawn = SecretDraws()
    return lambda n: drawn.uniform(torch.arange(n)), lambda n: drawn.normal(torch.arange(n))
