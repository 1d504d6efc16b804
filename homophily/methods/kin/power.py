"""How many samples kin needs, and the smallest difference that it would have seen with those it had.

N peers with n samples each, c groups of N / c peers, C the covariance of one embedded sample and r kin's
ridge. D^2 = (m - m')' (C + r)^-1 (m - m') is the squared whitened distance of two groups. Groups that are all equally
far apart give c - 1 directions of strength t = n N D^2 / (2 c) each. Whitening leaves less than one of the noise in a
direction of variance v: the level l = v / (v + r).

The covariance is estimated too, from f degrees of freedom. For large N, d and f (a Fisher matrix with a ridge), let

    h(g) = sum of l / (g l + 1 - l) over all directions,    k(g) = 1 / (1 + h(g) / f) - g.

The squared singular values of pure noise end at the least h + (N - 1) / k. A direction of strength t and level l shows
h + s with s(g) = t / (g l + 1 - l), at the g where s k = N - 1, if there is one beyond that of the edge.

These are the levels of the true covariance. One that is estimated from f degrees of freedom has too many small and too
many large variances. Let h' be the sum h with its levels l' = v' / (v' + r) in place of l, and q(u) = 1 - u h'(u) / f.
Then, again for large d and f,

    h(g) = h'(u) / q(u)    at the u where g = u q(u),

since the ridge r acts on the estimated covariance like r / q on the true one (the known self-consistent equation of
ridge regression). So h and k are known as functions of u between 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from homophily.errors import UserError
from homophily.fingerprints.embedding import BUCKETS
from homophily.fingerprints.fingerprint import LARGE, SAMPLES, format_of
from homophily.methods.kin.families import RIDGE, Evidence, dimension

LEVEL = 0.7  # of a difference between groups: 0.6 to 0.9 if images are turned or labels exchanged
FALL = 1.4  # of the variances: the j-th largest is about j^(-1.4) of the largest on CIFAR-10; grey images have fewer
_HALVINGS = 60


def strength(distance: float, peers: int, groups: int) -> float:
    """Of each direction, for one sample per peer. distance: D, in standard deviations of one sample."""
    return peers * distance**2 / (2 * groups)


def smallest_difference(evidence: Evidence, groups: int = 2, level: float = LEVEL) -> float | None:
    """The whitened distance D of equal groups, in standard deviations of one embedded sample, at which the expected
    squared singular value reaches the edge that kin simulated. None: the fingerprints do not vary at all.

    Groups that differ by this much are found in about half of all federations. Nothing is said about differences of the
    data that the embedding does not show.

    evidence: ``homophily.kin(...).kinship.evidence``. Numbers of samples may differ from peer to peer: only their total
    counts, and the degrees of freedom that the noise was estimated from.
    groups: how many there are, each with as many samples as the others and all equally far apart.
    level: of the directions in which they differ; at 0, in directions in which samples hardly vary, D is largest.
    """
    if not (2 <= groups <= evidence.peers and 0 <= level <= 1):
        allowed = f"must be from 2 to the {evidence.peers} peers, and from 0 to 1"
        raise UserError(f"groups = {groups}, level = {level}: {allowed}")
    noise = _MeasuredNoise(evidence.peers, evidence.freedom, evidence.levels.cpu())
    if not math.isfinite(evidence.edge) or not bool(noise.levels.any()):
        return None
    return math.sqrt(2 * groups * noise.strength_at(evidence.edge, level) / evidence.samples)


def in_words(difference: float) -> str:
    """The smallest difference of two groups, as part of a message. That of c groups is sqrt(c / 2) as large."""
    four = math.sqrt(2) * difference
    unit = "standard deviations of one embedded sample"
    return f"two equal groups that differ by less than {difference:.2g} {unit} (four groups: {four:.2g})"


def typical_levels(numbers: int) -> Tensor:
    """What whitening leaves of the noise in each direction [numbers], for the usual fall of the variances."""
    variance = torch.arange(1, numbers + 1, dtype=torch.float64) ** -FALL
    return variance / (variance + RIDGE * variance.mean())


def folded_strength(strength: float, level: float, numbers: int, buckets: int = BUCKETS) -> float:
    """What is left of a strength when fingerprints of so many buckets are folded to fewer numbers.

    Half the numbers hold half the directions. The others get in their way like a ridge that is, with the usual fall of
    the variances, 2^FALL times as high.
    """
    return strength / (level + (1.0 - level) * math.pow(buckets / numbers, FALL))


def edge(peers: int, samples: int, levels: Tensor) -> float:
    """The largest squared singular value of pure noise. levels: what whitening leaves of it in each direction."""
    return _Noise(peers, _freedom(peers, samples), levels).edge[1]


def expected(per_sample: float, level: float, peers: int, samples: int, levels: Tensor) -> float:
    """The squared singular value that a direction of that strength and level shows; the edge if it is too weak."""
    return _Noise(peers, _freedom(peers, samples), levels).with_signal(per_sample * samples, level)


def samples_needed(
    per_sample: float, peers: int, level: float = LEVEL, margin: float = 1.3, buckets: int = BUCKETS
) -> int | None:
    """The fewest samples per peer whose expected squared singular value passes the edge by that factor; None: more than
    a fingerprint is made of.

    per_sample: the strength in unfolded fingerprints. The margin is for chance: kin's own edge is about a tenth higher,
    so that noise rarely passes it, and the weakest of several directions shows less than their mean.
    """
    if per_sample < 0 or peers < 3 or not 0 <= level <= 1:
        raise UserError(f"strength = {per_sample}, peers = {peers}, level = {level}: must be at least 0, 3, and 0 to 1")

    per_sample, peers = per_sample * min(1.0, LARGE / peers), min(peers, LARGE)  # of more peers, a sample is compared
    buckets = min(buckets, format_of(peers).buckets)

    def enough(samples: int) -> bool:
        freedom = _freedom(peers, samples)
        numbers = dimension(freedom, buckets)
        if numbers is None:
            return False
        noise = _typical_noise(peers, freedom, numbers)
        value = noise.with_signal(samples * folded_strength(per_sample, level, numbers, buckets), level)
        return value >= margin * noise.edge[1]

    return next((samples for samples in range(2, SAMPLES + 1) if enough(samples)), None)


@dataclass(frozen=True, eq=False)
class _Noise:
    """h, k and the edge of the module's text, for one federation."""

    peers: int
    freedom: int
    levels: Tensor

    def h(self, g: float) -> float:
        return float((self.levels / (g * self.levels + 1.0 - self.levels)).sum())

    def k(self, g: float) -> float:
        return 1.0 / (1.0 + self.h(g) / self.freedom) - g

    def value(self, g: float) -> float:
        return self.h(g) + (self.peers - 1) / self.k(g)

    @cached_property
    def edge(self) -> tuple[float, float]:
        """g and the squared singular value: the least there is, of a convex function."""
        top = float(self.levels.max())
        g = _least(self.value, (top - 1.0) / top, self.last)
        return g, self.value(g)

    @cached_property
    def last(self) -> float:
        """g at which k vanishes: values are infinite there."""
        return _root(self.k, 0.0, 1.0)

    def with_signal(self, strength: float, level: float) -> float:
        def beyond(g: float) -> float:
            return strength / (g * level + 1.0 - level) * self.k(g) - (self.peers - 1)

        at, top = self.edge
        return self.value(_root(beyond, at, self.last)) if beyond(at) > 0 else top


@dataclass(frozen=True, eq=False)
class _MeasuredNoise:
    """The same with the levels l' of an estimated covariance, as functions of u: the module's last paragraph."""

    peers: int
    freedom: int
    levels: Tensor

    def terms(self, u: float) -> tuple[float, float, float]:
        """g, h and k."""
        h = float((self.levels / (u * self.levels + 1.0 - self.levels)).sum())
        q = 1.0 - u * h / self.freedom
        return u * q, h / q, (1.0 - u) * q**2 / (1.0 + (1.0 - u) * h / self.freedom)

    def value(self, u: float) -> float:
        _, h, k = self.terms(u)
        return h + (self.peers - 1) / k

    @cached_property
    def edge(self) -> tuple[float, float]:
        """u and the squared singular value: the least between 0 and 1, where it is infinite."""
        u = _least(self.value, 0.0, 1.0)
        return u, self.value(u)

    def strength_at(self, squared: float, level: float) -> float:
        """Of a direction that shows this squared singular value; below the edge, of the first that shows at all."""
        at, top = self.edge
        g, _, k = self.terms(_root(lambda u: squared - self.value(u), at, 1.0) if squared > top else at)
        return (self.peers - 1) / k * (g * level + 1.0 - level)


@lru_cache
def _typical_noise(peers: int, freedom: int, numbers: int) -> _Noise:
    return _Noise(peers, freedom, typical_levels(numbers))


def _least(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that falls and then rises is least."""
    for _ in range(_HALVINGS):
        third = (high - low) / 3
        if function(low + third) < function(high - third):
            high -= third
        else:
            low += third
    return low


def _root(falling: Callable[[float], float], low: float, high: float) -> float:
    """Where a function changes from above 0 to below."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return low


def _freedom(peers: int, samples: int) -> int:
    """Degrees of freedom behind the covariance."""
    return peers * int(format_of(peers).freedom(torch.tensor(samples)))
