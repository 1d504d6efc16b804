"""The space in which released (private) fingerprints differ by more than noise.

The sum of a peer with n samples has the mean n m and the covariance s^2 I + n C: known noise, and sampling noise whose
covariance C no peer tells. Rows y_i = (sum_i - n_i mu) / sqrt(s^2 + t n_i) have, if all peers are alike,

    (s^2 (I + mu mu' / COUNT^2) + n_i C) / (s^2 + t n_i),

since the noise of the count moves a row along mu. C comes from the signed sums, whose covariance is s_D^2 I +
n (C + mu mu'): those of its directions that stand out of their noise, and one variance t for all others. Whitening uses
this estimate. A direction that it misses could pass for a difference between peers, so the edge of each direction is
simulated with the largest sampling variance that the signed sums allow *in this direction*: along one direction they
are N numbers, and tell it well. All in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from homophily.fingerprints.private import COUNT, SIGNED, PrivateFingerprints
from homophily.methods.kin.continuum import Continuum
from homophily.methods.kin.families import (
    DRAWS,
    Evidence,
    Kinship,
    by_first_member,
    families,
    inflated_noise,
    whitening,
)
from homophily.randomness import Purpose, generator

DEVIATIONS = 3.0, 3.0  # of the edge above its simulated mean: of known noise, and more of sampling noise, by its share
LEAST_COUNT = 2.0  # peers with a smaller released count are left out
_KNOWN = 1e12  # degrees of freedom of noise that is known
NEXT = 6  # directions whose sampling variance enters an edge: the one that is tested, and those after it
LIKELY = 1.0  # standard deviations of its estimate that are added to that of the directions after it
ALLOWED = 3.0  # standard deviations by which the sampling variance of a direction may exceed its estimate


@dataclass(frozen=True)
class ReleasedSpace:
    """Signal directions of N released fingerprints with d numbers."""

    rank: int
    edge: float  # of the last direction that was tested, as a squared singular value
    squared: Tensor  # [min(N, d)]: squared singular values of the whitened rows, falling
    level: Tensor  # [rank]: noise of a row in each signal direction
    weight: Tensor  # [N]: places have the noise level / weight
    place: Tensor  # [N, max(rank, 2)]
    dimensions: int  # d
    sampling: float  # t, the sampling variance of one sample in an average direction
    spread: Tensor  # [rank]: of the peers' means in each signal direction, in units of the clipping norm


def released_space(prints: PrivateFingerprints, seed: int) -> ReleasedSpace:
    """Find the directions in which the peers of released fingerprints differ by more than noise."""
    n, known = prints.count.clamp(min=1.0), prints.noise**2
    mean = prints.sum.sum(0) / n.sum()
    sampling, spikes = _sampling(prints.signed, n, known / SIGNED**2, mean)
    total = known + sampling * n
    d, a, b = len(mean), known / total, n / total
    identity = torch.eye(d, dtype=torch.float64)
    certain = identity + torch.outer(mean, mean) / COUNT**2
    w = whitening(a.mean() * certain + b.mean() * spikes, torch.zeros((), dtype=torch.float64))
    rows = (prints.sum - n[:, None] * mean) / total.sqrt()[:, None]
    x = rows @ w
    values, directions = torch.linalg.eigh(x.T @ x)
    values, directions = values.flip(0)[: min(x.shape)].clamp(min=0.0), directions.flip(1)
    noise = _Noise(a, b, torch.linalg.cholesky(certain).T @ w, _root(spikes) @ w, n * total.rsqrt(), seed)
    edge, found = math.inf, []
    estimate, deviation = _along(prints.signed, n, known / SIGNED**2, sampling, mean, w @ directions)
    modelled = ((w @ directions) * (spikes @ w @ directions)).sum(0)
    likely, most = ((estimate + k * deviation - modelled).clamp(min=0.0) for k in (LIKELY, ALLOWED))
    for k in range(min(len(n) - 2, d - 1)):
        some = slice(k, k + NEXT)
        edge = noise.edge(directions[:, some], torch.cat([most[k : k + 1], likely[some][1:]]))
        if float(values[k]) <= edge:
            break
        found.append(1.0 + float(b.mean()) * float(estimate[k] - modelled[k]))
    rank = len(found)
    basis = w @ directions[:, : max(rank, 2)]
    place = (prints.sum / n[:, None] - mean) @ basis
    least = float(a.mean()) * (basis * (certain @ basis)).sum(0)[:rank]
    level = torch.tensor(found, dtype=torch.float64).maximum(least)
    level = level + (a[:, None] * place[:, :rank].square()).mean(0) / COUNT**2  # places are divided by a noisy count
    signal = (place[:, :rank].square() * (n.square() / total)[:, None]).sum(0) - len(n) * level
    spread = (signal.clamp(min=0.0) / (n.square() / total).sum()).sqrt() / basis[:, :rank].norm(dim=0)
    return ReleasedSpace(rank, edge, values, level, n.square() / total, place, d, sampling, spread)


def _sampling(signed: Tensor, n: Tensor, known: float, mean: Tensor) -> tuple[float, Tensor]:
    """t, and the estimated covariance C of one sample [d, d]: directions above the noise, and t in all others."""
    d = len(mean)
    share = float((signed.square().sum() - len(n) * d * known) / (n.sum() * d) - mean.square().sum() / d)
    sampling = min(max(share, 1e-3 / d), 1.0 / d)
    weight = (known + sampling * n).reciprocal()
    scatter = (signed * weight.sqrt()[:, None]).T @ (signed * weight.sqrt()[:, None]) / len(n)  # about I
    scatter = scatter - torch.outer(mean, mean) * (weight * n).mean()
    values, directions = torch.linalg.eigh(scatter)
    ratio = d / len(n)
    above = values > (1.0 + math.sqrt(ratio)) ** 2
    half = values[above] + 1.0 - ratio  # a spike l shows l (1 + ratio / (l - 1))
    spike = (half + (half.square() - 4.0 * values[above]).clamp(min=0.0).sqrt()) / 2
    excess = (spike - 1.0) / (weight * n).mean()
    total = sampling * d
    rest = max(total - float(excess.sum()), 0.1 * total) / d
    c = rest * torch.eye(d, dtype=torch.float64) + directions[:, above] @ torch.diag(excess) @ directions[:, above].T
    return sampling, c


def _along(signed: Tensor, n: Tensor, known: float, sampling: float, mean: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The sampling variances of one sample along the columns of v [d, d], and standard deviations of the estimates."""
    length, common = v.square().sum(0), (mean @ v).square()
    weight = (known + sampling * n).reciprocal().square()[:, None]
    scale = (weight * n[:, None]).sum(0)
    estimate = (weight * ((signed @ v).square() - known * length)).sum(0) / scale - common
    expected = known * length + n[:, None] * (estimate.maximum(sampling * length) + common)
    return estimate, (2.0 * (weight * expected).square().sum(0)).sqrt() / scale


def _root(covariance: Tensor) -> Tensor:
    values, directions = torch.linalg.eigh(covariance)
    root: Tensor = values.clamp(min=0.0).sqrt()[:, None] * directions.T
    return root


class _Noise:
    """Simulated rows of peers that are all alike."""

    def __init__(self, a: Tensor, b: Tensor, certain: Tensor, sampled: Tensor, share: Tensor, seed: int) -> None:
        chance = generator(seed, Purpose.KIN, 3)
        self._deviations = DEVIATIONS[0] + DEVIATIONS[1] * (1.0 - float(a.mean()))
        peers, d = len(a), len(certain)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(DRAWS, *shape, generator=chance, dtype=torch.float64)

        rows = a.sqrt()[:, None] * (drawn(peers, d) @ certain) + b.sqrt()[:, None] * (drawn(peers, d) @ sampled)
        self._share = (share / share.norm())[:, None]
        self._rows, self._missed = self._centred(rows), self._centred(b.sqrt()[:, None] * drawn(peers, NEXT))

    def _centred(self, rows: Tensor) -> Tensor:
        out: Tensor = rows - self._share * (self._share * rows).sum(-2, keepdim=True)
        return out

    def edge(self, directions: Tensor, missed: Tensor) -> float:
        """The largest squared singular value, if variances along directions [d, k] are larger by ``missed`` [k]."""
        rows = self._rows + self._missed[..., : len(missed)] @ (missed.sqrt() * directions).T
        gram = rows @ rows.mT if rows.shape[1] < rows.shape[2] else rows.mT @ rows
        top = torch.linalg.eigvalsh(gram)[:, -1]
        return float(top.mean() + self._deviations * top.std())


def released_kinship(prints: PrivateFingerprints, ids: Tensor, seed: int) -> tuple[Kinship, ReleasedSpace | None]:
    """Which of the peers ``ids`` [N] are alike, from released fingerprints, as ``families.kinship`` says it; and the
    space that shows it. None: fewer than three peers have a usable fingerprint."""
    usable = prints.count >= LEAST_COUNT
    if int(usable.sum()) < 3:
        nowhere = torch.full((len(ids), 2), torch.nan, dtype=torch.float64, device=ids.device)
        family = torch.where(usable, 0, -1)
        return Kinship(0, math.inf, nowhere[:0, 0], nowhere, family, None, None), None
    space = released_space(prints.of(usable.nonzero()[:, 0]), seed)
    rank, device = space.rank, ids.device
    place = torch.full((len(ids), max(rank, 2)), torch.nan, dtype=torch.float64, device=device)
    place[usable] = space.place.to(device)
    peers = int(usable.sum())
    grouped: Tensor | None = torch.where(usable, 0, -1)
    continuum = None
    if rank:
        noise = space.level * inflated_noise(space.squared[:rank], peers, float(space.dimensions), _KNOWN)
        centres = families(space.place[:, :rank], space.weight, noise, seed)
        if centres is None:
            grouped = None
            weight = torch.zeros(len(ids), dtype=torch.float64)
            weight[usable] = space.weight.clamp(min=2.0)
            inside = float(space.level.sum())
            continuum = Continuum(
                place[:, :rank], weight.to(device), inside, space.dimensions - float(rank), usable.nonzero()[:, 0]
            )
        else:
            grouped = torch.full_like(ids, -1)
            grouped[usable] = by_first_member(torch.cdist(space.place[:, :rank], centres).argmin(1))
    levels = torch.ones(space.dimensions, dtype=torch.float64)
    evidence = Evidence(peers, max(1, int(space.weight.sum())), int(_KNOWN), space.edge, levels)
    return Kinship(rank, space.edge, space.squared, place, grouped, continuum, evidence), space
