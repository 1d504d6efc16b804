"""Who is alike, from fingerprints: whiten, find the rank of the signal, then families or a continuum.

Steps 2 to 5 of kin. N peers, n_i samples behind each fingerprint, n of all, d numbers a sketch. All in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from homophily.fingerprint import BUCKETS, Fingerprints
from homophily.randomness import Purpose, generator

RIDGE = 0.02  # of the mean variance
DRAWS, DEVIATIONS = 50, 2.54  # the noise edge: mean + 2.54 deviations of so many simulated tops, 1 %
TRIES = 20  # starts of k-means
CLOUDS, MARGIN = 15, 0.4  # families must beat uniform clouds by so much in log residual
_NORMAL_999 = 3.0902323061678132  # 99.9 % point of the normal distribution
_LEAST, _SWEEPS = 32, 100


@dataclass(frozen=True)
class Kinship:
    """What the fingerprints of a book say. Peers are in the order of the fingerprints."""

    rank: int  # directions in which peers differ by more than noise
    edge: float  # the largest squared singular value that noise would show
    squared: Tensor  # [min(N, d)] squared singular values of the whitened means
    family: Tensor | None  # [N] int64, numbered by first member; -1: no fingerprint; None: a continuum
    weights: Tensor  # [N, N]: how much of each other's distribution is like one's own; rows of families are 0 and 1
    plane: Tensor  # [N, 2] the first two signal directions, to look at
    told: bool = True  # False: too few samples to tell anything


def kinship(prints: Fingerprints, seed: int) -> Kinship:
    """Who is alike among the peers of a book, the same for everyone with that book."""
    usable = (prints.count >= 2).nonzero()[:, 0]
    found = _kinship(prints.of(usable), seed)
    return found if len(usable) == len(prints.count) else _among(found, usable, len(prints.count))


def _kinship(prints: Fingerprints, seed: int) -> Kinship:
    count = prints.count.double()
    peers = len(count)
    d = dimension(count)
    if d is None or peers < 2:
        return _all_alike(prints, told=peers < 2)
    x, covariance, delta = whitened(prints, d)
    _, values, directions = torch.linalg.svd(x, full_matrices=False)
    edge = noise_edge(covariance, count, seed)
    rank = int((values.square() > edge).sum())
    plane = x @ directions[:2].T
    if plane.shape[1] < 2:
        plane = torch.nn.functional.pad(plane, (0, 2 - plane.shape[1]))
    if rank == 0:
        return Kinship(0, edge, values.square(), torch.zeros_like(prints.count), torch.ones(peers, peers, dtype=torch.float64, device=x.device), plane)
    y = x @ directions[:rank].T
    noise = inflated_noise(values[:rank].square(), peers, delta)
    family = families(y, count, noise, seed)
    if family is not None:
        weights = (family[:, None] == family).double()
    else:
        weights = mixtures(y, count, d)
    return Kinship(rank, edge, values.square(), family, weights, plane)


def dimension(count: Tensor) -> int | None:
    """How many numbers a sketch is folded to: a power of two from 32 to 256, at most n / 8; None: too few samples."""
    total, peers = float(count.sum()), len(count)
    if total - peers < 3 * _LEAST:
        return None
    d = BUCKETS
    while d > _LEAST and d > total / 8:
        d //= 2
    return d


def folded(values: Tensor, d: int) -> Tensor:
    """Sketches [..., 256] in d numbers: bucket modulo d."""
    return values.unflatten(-1, (BUCKETS // d, d)).sum(-2)


def whitened(prints: Fingerprints, d: int) -> tuple[Tensor, Tensor, float]:
    """X [N, d] with noise of about one in every direction, the pooled covariance C [d, d], and the noise in all."""
    count = prints.count.double()
    mean, factor = folded(prints.mean.double(), d), folded(prints.factor.double(), d)
    flat = factor.flatten(0, 1)
    covariance = flat.T @ flat / (count.sum() - len(count))
    a = inverse_root(covariance)
    centre = (count[:, None] * mean).sum(0) / count.sum()
    return count.sqrt()[:, None] * (mean - centre) @ a, covariance, float((a @ covariance @ a).trace())


def inverse_root(covariance: Tensor) -> Tensor:
    """Inverse square root [..., d, d] of a covariance with its ridge."""
    d = covariance.shape[-1]
    ridge = RIDGE * covariance.diagonal(dim1=-2, dim2=-1).sum(-1) / d
    values, vectors = torch.linalg.eigh(covariance)
    scale = (values.clamp(min=0.0) + ridge[..., None].clamp(min=torch.finfo(torch.float64).tiny)).rsqrt()
    return (vectors * scale[..., None, :]) @ vectors.mT


def noise_edge(covariance: Tensor, count: Tensor, seed: int) -> float:
    """The largest squared singular value that whitened noise shows, but for 1 %: simulated, the covariance estimated too."""
    peers, d = len(count), len(covariance)
    freedom = float(count.sum()) - peers
    chance = generator(seed, Purpose.KIN, 0)
    root = _root(covariance).cpu()
    share = (count.sqrt() / count.sum().sqrt()).cpu()
    tops = []
    for _ in range(DRAWS):
        rows = torch.randn(peers, d, generator=chance, dtype=torch.float64) @ root.T
        rows = rows - share[:, None] * (share[:, None] * rows).sum(0)
        estimate = _wishart(root, freedom, chance)
        tops.append(torch.linalg.matrix_norm(rows @ inverse_root(estimate), 2).square())
    top = torch.stack(tops)
    return float(top.mean() + DEVIATIONS * top.std())


def _root(covariance: Tensor) -> Tensor:
    """B with B B' = C, also where C is singular."""
    values, vectors = torch.linalg.eigh(covariance)
    return vectors * values.clamp(min=0.0).sqrt()


def _wishart(root: Tensor, freedom: float, chance: torch.Generator) -> Tensor:
    """A draw of Wishart(B B', freedom) / freedom, by Bartlett's decomposition."""
    d = len(root)
    lower = torch.randn(d, d, generator=chance, dtype=torch.float64).tril(-1)
    shape = ((freedom - torch.arange(d, dtype=torch.float64)) / 2).clamp(min=0.5)
    lower = lower + torch.diag((2.0 * torch._standard_gamma(shape, generator=chance)).sqrt())
    factor = root @ lower
    return factor @ factor.T / freedom


def inflated_noise(squared: Tensor, peers: int, delta: float) -> Tensor:
    """e_k: noise left in direction k, inflated because the directions were chosen from the same data. [r]."""
    b = peers - 1 + delta - squared
    t = (-b + (b.square() - 4 * (peers - 1) * delta).clamp(min=0.0).sqrt()) / 2
    t = t.clamp(min=math.sqrt((peers - 1) * delta))  # at the edge the two roots meet there
    return (1 + delta / t).square()


def families(y: Tensor, count: Tensor, noise: Tensor, seed: int) -> Tensor | None:
    """Clusters of the peers y [N, r], numbered by first member; None: they are no clusters but a continuum."""
    peers, rank = y.shape
    for clusters in (rank + 1, rank + 2):
        if clusters >= peers:
            return torch.arange(peers, device=y.device)  # everyone differs from everyone
        label, residual = k_means(y, count, clusters, seed)
        freedom = (peers - clusters) * rank
        if residual / ((peers - clusters) * float(noise.sum())) <= chi_square_999(freedom) / freedom:
            clouds = [math.log(k_means(_cloud(y, count, noise, seed, i), count, clusters, seed)[1]) for i in range(CLOUDS)]
            clear = sum(clouds) / CLOUDS - math.log(max(residual, 1e-300)) >= MARGIN
            return _by_first_member(label) if clear else None
    return None


def chi_square_999(freedom: float) -> float:
    """The 99.9 % point of chi-square (Wilson and Hilferty's approximation)."""
    part = 2.0 / (9.0 * freedom)
    return freedom * (1.0 - part + _NORMAL_999 * math.sqrt(part)) ** 3


def _cloud(y: Tensor, count: Tensor, noise: Tensor, seed: int, number: int) -> Tensor:
    """A uniform cloud with the signal's variance in every direction, plus the noise: [N, r]."""
    chance = generator(seed, Purpose.KIN, 1, number)
    signal = ((y.square().sum(0) - len(y) * noise).clamp(min=0.0) / count.sum()).cpu()
    place = (2.0 * torch.rand(*y.shape, generator=chance, dtype=torch.float64) - 1.0) * (3.0 * signal).sqrt()
    blur = torch.randn(*y.shape, generator=chance, dtype=torch.float64) * noise.cpu().sqrt()
    return (count.cpu().sqrt()[:, None] * place + blur).to(y.device)


def k_means(y: Tensor, count: Tensor, clusters: int, seed: int) -> tuple[Tensor, float]:
    """Labels [N] and weighted residual of k-means on y_i / sqrt(n_i) with weights n_i; the best of 20 keyed starts."""
    place = y / count.sqrt()[:, None]
    centres = _starts(place, count, clusters, seed)  # [T, c, r]
    for _ in range(_SWEEPS):
        label = torch.cdist(place[None].expand(len(centres), -1, -1), centres).argmin(2)  # [T, N]
        member = torch.nn.functional.one_hot(label, clusters).double() * count[:, None]
        mass = member.sum(1)
        moved = torch.where(mass[..., None] > 0, member.mT @ place / mass.clamp(min=1.0)[..., None], centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    distance = torch.cdist(place[None].expand(len(centres), -1, -1), centres).square()
    residual = (count * distance.amin(2)).sum(1)
    best = int(residual.argmin())
    return distance[best].argmin(1), float(residual[best])


def _starts(place: Tensor, count: Tensor, clusters: int, seed: int) -> Tensor:
    """k-means++ starts: [T, c, r]; each centre a peer drawn in proportion to weight times squared distance."""
    chance = generator(seed, Purpose.KIN, 2, clusters)
    uniform = torch.rand(TRIES, clusters, generator=chance, dtype=torch.float64).to(place.device)
    weight = count.expand(TRIES, -1)
    chosen = []
    for step in range(clusters):
        total = weight.cumsum(1)
        index = torch.searchsorted(total, uniform[:, step : step + 1] * total[:, -1:]).clamp(max=len(place) - 1)
        chosen.append(place[index[:, 0]])
        distance = torch.cdist(place[None].expand(TRIES, -1, -1), torch.stack(chosen, dim=1)).square().amin(2)
        weight = torch.where(distance.sum(1, keepdim=True) > 0, count * distance, count)
    return torch.stack(chosen, dim=1)


def mixtures(y: Tensor, count: Tensor, d: int, steps: int = 500) -> Tensor:
    """Everyone's own distribution as a mixture of all, as widely spread as possible: p [N, N] on the simplex.

    Minimises Mallows' risk, bias in the signal directions plus variance in all, by accelerated projected gradients.
    """
    peers, rank = y.shape
    z = y / count.sqrt()[:, None]  # K = z z'
    variance = (d - rank) / count
    target = z @ z.T - torch.diag(rank / count)
    rate = 1.0 / float(torch.linalg.matrix_norm(z, 2).square() + variance.max())
    p = torch.full((peers, peers), 1.0 / peers, dtype=torch.float64, device=y.device)
    ahead, t = p, 1.0
    for _ in range(steps):
        slope = (ahead @ z) @ z.T + ahead * variance - target
        after = on_simplex(ahead - rate * slope)
        t_after = (1.0 + math.sqrt(1.0 + 4.0 * t * t)) / 2.0
        ahead = after + (t - 1.0) / t_after * (after - p)
        p, t = after, t_after
    return torch.where(p > 1e-9, p, 0.0)


def on_simplex(rows: Tensor) -> Tensor:
    """The nearest point of the simplex to each row [N, M]."""
    ordered = rows.sort(1, descending=True).values
    excess = (ordered.cumsum(1) - 1.0) / torch.arange(1, rows.shape[1] + 1, device=rows.device)
    last = (ordered > excess).sum(1, keepdim=True) - 1
    return (rows - excess.gather(1, last)).clamp(min=0.0)


def _by_first_member(label: Tensor) -> Tensor:
    """The same groups, numbered in the order in which they first appear."""
    names: dict[int, int] = {}
    numbers = [names.setdefault(group, len(names)) for group in label.tolist()]
    return torch.tensor(numbers, device=label.device)


def _all_alike(prints: Fingerprints, told: bool) -> Kinship:
    peers = len(prints.count)
    device = prints.mean.device
    one = torch.ones(peers, peers, dtype=torch.float64, device=device)
    nothing = torch.zeros(0, dtype=torch.float64, device=device)
    plane = torch.zeros(peers, 2, dtype=torch.float64, device=device)
    return Kinship(0, math.inf, nothing, torch.zeros(peers, dtype=torch.int64, device=device), one, plane, told)


def _among(found: Kinship, usable: Tensor, peers: int) -> Kinship:
    """The answer for a book in which some have no fingerprint: those are nobody's kin and have none."""
    device = usable.device
    weights = torch.zeros(peers, peers, dtype=torch.float64, device=device)
    weights[usable[:, None], usable] = found.weights
    plane = torch.full((peers, 2), torch.nan, dtype=torch.float64, device=device)
    plane[usable] = found.plane
    family = None
    if found.family is not None:
        family = torch.full((peers,), -1, dtype=torch.int64, device=device)
        family[usable] = found.family
    return Kinship(found.rank, found.edge, found.squared, family, weights, plane, found.told)
