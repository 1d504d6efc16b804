"""Who is alike, from fingerprints: whiten, find the rank of the signal, then families or a continuum.

Steps 3 to 5 of docs/kin.md. N peers, n_i samples behind each fingerprint, n of all, d numbers each. All in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from homophily.fingerprints.compute import folded
from homophily.fingerprints.embedding import BUCKETS
from homophily.fingerprints.fingerprint import Fingerprints, sampled
from homophily.methods.kin.continuum import Continuum
from homophily.randomness import Purpose, generator

RIDGE = 0.2  # of the mean variance
DRAWS = 50  # simulations behind the noise edge
DEVIATIONS = 3.0  # the edge is so many standard deviations above their mean, which 1 in 300 passes
TRIES = 20  # starts of k-means
CLOUDS, MARGIN = 15, 0.4  # families must beat uniform clouds by so much in log residual
_NORMAL_999 = 3.0902323061678132  # 99.9 % point of the normal distribution
_LEAST, _SWEEPS = 32, 100
_AT_ONCE = 1 << 20  # numbers of temporary tables


@dataclass(frozen=True)
class Evidence:
    """How much data the noise edge rests on, and how noisy it is; in a large federation, that of the keyed sample."""

    peers: int  # with a usable fingerprint
    samples: int  # behind the means of all these peers together
    freedom: int  # degrees of freedom behind the covariance
    edge: float  # the largest squared singular value that noise would show, as simulated
    levels: Tensor  # [d]: what whitening leaves of the estimated variance in each direction, v / (v + ridge)


@dataclass(frozen=True)
class Kinship:
    """What fingerprints say about their peers, in the order of the fingerprints."""

    rank: int  # directions in which peers differ by more than noise
    edge: float  # the largest squared singular value that noise would show
    squared: Tensor  # squared singular values of the whitened means, falling
    place: Tensor  # [N, max(rank, 2)]: where peers are in the signal directions; NaN without a fingerprint
    family: Tensor | None  # [N] int64, numbered by first member; -1: no fingerprint; None: a continuum
    continuum: Continuum | None  # None: families
    evidence: Evidence | None  # None: too few samples to compare anyone, so all count as alike

    @property
    def enough_samples(self) -> bool:
        """Whether there were at least two peers, and enough samples to estimate the noise of their fingerprints."""
        return self.evidence is not None

    @property
    def conclusive(self) -> bool:
        """Whether the fingerprints show that peers differ: there were enough samples, and the rank is above 0.

        Rank 0 is never conclusive. It means that no difference was found, not that there is none: smaller differences
        are hidden by the noise (``power.smallest_difference`` says how small), and the embedding may not show a
        difference of the data at all.
        """
        return self.enough_samples and self.rank > 0

    def weights(self, rows: Tensor, columns: Tensor, limited: bool) -> Tensor:
        """How much peers ``columns`` [P, B] (-1: none) count for peers ``rows`` [P]: 1 for kin, 0 for others.

        In a continuum, their shares in the mixture: of all peers, or of these columns alone if partners are limited.
        """
        if self.family is not None:
            mine, theirs = self.family[rows, None], self.family[columns.clamp(min=0)]
            return ((mine == theirs) & (mine >= 0) & (columns >= 0)).to(torch.float64)
        assert self.continuum is not None
        if limited:
            return self.continuum.among(rows, columns)
        sample = self.continuum.sample
        position = torch.searchsorted(sample, columns.clamp(min=0)).clamp(max=len(sample) - 1)
        shares = self.continuum.of_sample(rows, position)
        return torch.where(sample[position] == columns, shares, 0.0)


def kinship(prints: Fingerprints, ids: Tensor, seed: int) -> Kinship:
    """Which of the peers ``ids`` [N] are alike: the same answer for each peer that has these fingerprints.

    Among many peers, covariance, rank and centres come from a keyed sample, and each of the others is placed by its
    own fingerprint.
    """
    usable = prints.count >= 2
    sample = sampled(prints, ids, seed)
    space = Space.of(prints.of(sample), seed)
    place = torch.where(usable[:, None], prints.each(space.place), torch.nan)
    family = _family(space, place, prints.count.double(), sample, usable, seed)
    continuum = None
    if family is None:
        inside = float(space.level.sum())
        continuum = Continuum(
            place[:, : space.rank], prints.count.double(), inside, max(space.delta - inside, 0.0), sample
        )
    return Kinship(space.rank, space.edge, space.squared, place, family, continuum, space.evidence)


def _family(space: Space, place: Tensor, count: Tensor, sample: Tensor, usable: Tensor, seed: int) -> Tensor | None:
    """Families [N] of all peers, from what the sample shows; None: a continuum."""
    if space.rank == 0:
        return torch.where(usable, 0, -1)
    noise = space.level * inflated_noise(space.squared[: space.rank], len(sample), space.delta, space.freedom)
    z = place[:, : space.rank]
    centres = families(z[sample], count[sample], noise, seed)
    if centres is None:
        return None
    family = torch.full((len(place),), -1, dtype=torch.int64, device=place.device)
    family[usable] = by_first_member(torch.cdist(z[usable], centres).argmin(1))
    return family


@dataclass(frozen=True)
class Space:
    """The directions in which peers differ by more than noise, and how to find a peer's place in them."""

    d: int
    freedom: int  # degrees behind the covariance
    rank: int
    edge: float
    squared: Tensor
    delta: float  # noise in all directions
    level: Tensor  # [rank]: noise in each signal direction; the ridge leaves less than one
    basis: Tensor  # [d, max(rank, 2)]: whitening and directions in one
    centre: Tensor  # [d]
    evidence: Evidence | None

    @classmethod
    def of(cls, prints: Fingerprints, seed: int) -> Space:
        count = prints.count.double()
        freedom = int(prints.freedom.sum())
        d = dimension(freedom, prints.mean.shape[1])
        if d is None or len(count) < 2:
            nothing = torch.zeros(0, dtype=torch.float64, device=count.device)
            basis = torch.zeros(_LEAST, 2, dtype=torch.float64, device=count.device)
            return cls(_LEAST, freedom, 0, math.inf, nothing, 0.0, nothing, basis, basis[:, 0], None)
        covariance, centre = pooled(prints, d)
        r = ridge(covariance)
        w = whitening(covariance, r)
        rows = count.sqrt()[:, None] * (folded(prints.mean.double(), d) - centre)
        values, directions = _squared_singular(rows @ w)
        edge, rank = _edge_and_rank(rows, rows @ w @ directions, values, prints, seed)
        basis = w @ directions[:, : max(rank, 2)]
        delta = float((w.T @ covariance @ w).trace())
        level = (basis.T @ covariance @ basis).diagonal()[:rank]
        variance = torch.linalg.eigvalsh(covariance).clamp(min=0.0)
        evidence = Evidence(len(count), int(prints.count.sum()), freedom, edge, variance / (variance + r))
        return cls(d, freedom, rank, edge, values, delta, level, basis, centre, evidence)

    def place(self, mean: Tensor) -> Tensor:
        """[N, max(rank, 2)] of means [N, buckets]: whitened, in the signal directions, y_i / sqrt(n_i)."""
        directions, step = self.basis.mT, max(1, _AT_ONCE // self.basis.numel())
        parts = [folded(some.double(), self.d) - self.centre for some in mean.split(step)]
        # Products are added one after the other: a matrix product rounds by the number of its rows.
        return torch.cat([(some[:, None] * directions).cumsum(2)[..., -1] for some in parts])


def dimension(freedom: int, buckets: int = BUCKETS) -> int | None:
    """How many numbers fingerprints are folded to: a power of two of at least 32, and at most a third of the degrees of
    freedom behind the covariance; None: too few samples."""
    if freedom < 3 * _LEAST:
        return None
    return int(min(buckets, 2 ** int(math.log2(freedom / 3))))


def pooled(prints: Fingerprints, d: int) -> tuple[Tensor, Tensor]:
    """The covariance of a sample within its peer [d, d], and the mean over all samples [d]."""
    count = prints.count.double()
    factor = folded(prints.factor.double(), d).flatten(0, 1)
    mean = folded(prints.mean.double(), d)
    return factor.T @ factor / prints.freedom.sum(), (count[:, None] * mean).sum(0) / count.sum()


def whitening(covariance: Tensor, ridge: Tensor) -> Tensor:
    """W [d, d] with W W' = (C + ridge)^-1: whitens rows from the right."""
    identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    lower = torch.linalg.cholesky(covariance + ridge * identity)
    w: Tensor = torch.linalg.solve_triangular(lower, identity, upper=False).T
    return w


def ridge(covariance: Tensor) -> Tensor:
    """What is added to every variance."""
    return RIDGE * covariance.diagonal().mean().clamp(min=torch.finfo(torch.float64).tiny)


def _squared_singular(x: Tensor) -> tuple[Tensor, Tensor]:
    """Squared singular values [min(N, d)] of x [N, d], falling, and directions [d, d] in their columns."""
    values, directions = _eigen(x.T @ x)
    return values.flip(0)[: min(x.shape)].clamp(min=0.0), directions.flip(1)


def _edge_and_rank(rows: Tensor, turned: Tensor, values: Tensor, prints: Fingerprints, seed: int) -> tuple[float, int]:
    """The largest squared singular value of noise, and how many are above it; those found are no noise: try again."""
    rank = 0
    while True:
        signal = turned[:, :rank] / values[:rank].sqrt()
        top, deviation = simulated_top(rows - signal @ (signal.T @ rows), prints, seed)
        edge = top + DEVIATIONS * deviation
        above = int((values > edge).sum())
        if above <= rank:
            return edge, rank
        rank = above


def simulated_top(rows: Tensor, prints: Fingerprints, seed: int) -> tuple[float, float]:
    """Mean and standard deviation of the largest squared singular value of whitened means without any signal.

    A rotation test: without signal, a peer's mean, sqrt(n_i) (m_i - m) in ``rows`` [N, d], is like any other of its
    directions of noise, the rows of its factor. So each draw takes a random one of them all as the mean and leaves the
    others to the covariance: whatever noise is like, and however unlike from peer to peer.

    All draws share one whitening, by the scatter of all directions: what is drawn, D, is taken out of it afterwards,
    since D (C - D'D / f)^-1 D' has the eigenvalues k / (1 - k / f) where D C^-1 D' has k.
    """
    factor = folded(prints.factor.double(), rows.shape[1])
    within = factor.flatten(0, 1).T @ factor.flatten(0, 1)
    freedom = prints.freedom.sum()
    w = whitening((rows.T @ rows + within) / freedom, ridge(within / freedom))
    rows, factor = rows @ w, factor @ w
    share = (prints.count.double() / prints.count.sum()).sqrt()[:, None]
    mask = torch.arange(factor.shape[1] + 1, device=rows.device) <= prints.freedom[:, None]
    chance = generator(seed, Purpose.KIN, 0)
    grams = []
    for _ in range(DRAWS):
        turn = torch.randn(mask.shape, generator=chance, dtype=torch.float64).to(rows.device) * mask
        turn = turn / turn.norm(dim=1, keepdim=True)
        drawn = turn[:, :1] * rows + (turn[:, None, 1:] @ factor)[:, 0]
        drawn = drawn - share * (share * drawn).sum(0)
        grams.append(drawn @ drawn.T if len(rows) < len(w) else drawn.T @ drawn)
    top = torch.linalg.eigvalsh(torch.stack(grams))[:, -1]
    top = top / (1.0 - top / freedom)
    return float(top.mean()), float(top.std())


def _eigen(symmetric: Tensor) -> tuple[Tensor, Tensor]:
    found = torch.linalg.eigh(symmetric)
    return found.eigenvalues, found.eigenvectors


def inflated_noise(squared: Tensor, peers: int, delta: float, freedom: float) -> Tensor:
    """e_k: noise left in direction k, inflated because directions and whitening come from the same data. [r].

    Choosing the directions inflates it to (1 + delta / t)^2. Whitening with a covariance estimated from ``freedom``
    degrees inflates it in the directions of the signal by E[m'C^-1 S C^-1 m] / E[m'C^-1 m] of an inverse Wishart.
    """
    estimated = freedom * (freedom - 1) / ((freedom - delta) * (freedom - delta - 3))  # delta: dimensions that count
    b = peers - 1 + delta - squared
    t = (-b + (b.square() - 4 * (peers - 1) * delta).clamp(min=0.0).sqrt()) / 2
    t = t.clamp(min=math.sqrt((peers - 1) * delta))  # at the edge the two roots meet there
    return estimated * (1 + delta / t).square()


def families(z: Tensor, count: Tensor, noise: Tensor, seed: int) -> Tensor | None:
    """Centres [c, r] of the clusters in the peers' places z [N, r]; None: no clusters but a continuum.

    c clusters span at most c - 1 dimensions: r + 1 are tried, then r + 2 (some may lie on lines). The first number
    whose residual is no more than noise is taken, if as many centres fit uniform clouds of that extent clearly worse.
    """
    peers, rank = z.shape
    for clusters in (rank + 1, rank + 2):
        if clusters >= peers:
            return z  # everyone differs from everyone
        centres, residual = k_means(z, count, clusters, seed)
        freedom = (peers - clusters) * rank
        if residual / ((peers - clusters) * float(noise.sum())) <= chi_square_999(freedom) / freedom:
            clouds = [k_means(_cloud(z, count, noise, seed, i), count, clusters, seed)[1] for i in range(CLOUDS)]
            gain = sum(map(math.log, clouds)) / CLOUDS - math.log(max(residual, torch.finfo(torch.float64).tiny))
            return centres if gain >= MARGIN else None
    return None


def chi_square_999(freedom: float) -> float:
    """The 99.9 % point of chi-square (Wilson and Hilferty's approximation)."""
    part = 2.0 / (9.0 * freedom)
    return freedom * (1.0 - part + _NORMAL_999 * math.sqrt(part)) ** 3


def _cloud(z: Tensor, count: Tensor, noise: Tensor, seed: int, number: int) -> Tensor:
    """A uniform cloud with the signal's variance in every direction, plus the noise: [N, r]."""
    chance = generator(seed, Purpose.KIN, 1, number)
    squared = (count[:, None] * z.square()).sum(0)
    signal = ((squared - len(z) * noise).clamp(min=0.0) / count.sum()).cpu()
    place = (2.0 * torch.rand(*z.shape, generator=chance, dtype=torch.float64) - 1.0) * (3.0 * signal).sqrt()
    blur = torch.randn(*z.shape, generator=chance, dtype=torch.float64) * noise.cpu().sqrt()
    return (place + blur / count.cpu().sqrt()[:, None]).to(z.device)


def k_means(z: Tensor, count: Tensor, clusters: int, seed: int) -> tuple[Tensor, float]:
    """Centres [c, r] and weighted residual of k-means with weights n_i; the best of 20 keyed starts."""
    centres = _starts(z, count, clusters, seed)  # [T, c, r]
    everyone = z.expand(len(centres), -1, -1)
    for _ in range(_SWEEPS):
        label = torch.cdist(everyone, centres).argmin(2)  # [T, N]
        member = torch.nn.functional.one_hot(label, clusters).double() * count[:, None]
        mass = member.sum(1)
        moved = torch.where(mass[..., None] > 0, member.mT @ z / mass.clamp(min=1.0)[..., None], centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    residual = (count * torch.cdist(everyone, centres).square().amin(2)).sum(1)
    best = int(residual.argmin())
    return centres[best], float(residual[best])


def _starts(z: Tensor, count: Tensor, clusters: int, seed: int) -> Tensor:
    """k-means++ starts: [T, c, r]; each centre a peer drawn in proportion to weight times squared distance."""
    chance = generator(seed, Purpose.KIN, 2, clusters)
    uniform = torch.rand(TRIES, clusters, generator=chance, dtype=torch.float64).to(z.device)
    weight = count.expand(TRIES, -1)
    chosen = []
    for step in range(clusters):
        total = weight.cumsum(1)
        index = torch.searchsorted(total, uniform[:, step : step + 1] * total[:, -1:]).clamp(max=len(z) - 1)
        chosen.append(z[index[:, 0]])
        distance = torch.cdist(z.expand(TRIES, -1, -1), torch.stack(chosen, dim=1)).square().amin(2)
        weight = torch.where(distance.sum(1, keepdim=True) > 0, count * distance, count)
    return torch.stack(chosen, dim=1)


def by_first_member(label: Tensor) -> Tensor:
    """The same groups, numbered in the order in which they first appear."""
    names: dict[int, int] = {}
    numbers = [names.setdefault(group, len(names)) for group in label.tolist()]
    return torch.tensor(numbers, device=label.device)
