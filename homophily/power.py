"""How many samples kin needs: the singular values that kinds of data will show, against the edge of the noise.

N peers with n samples each, c kinds of N / c peers, D^2 = (m - m')' C^-1 (m - m') the squared whitened distance of two
kinds (C: the covariance of one sample's sketched gradient, d numbers). All kinds equally far apart give c - 1
directions of strength t = n N D^2 / (2 c) each. Noise adds to it: with N - 1 degrees of its own, and n N - N of the
estimated covariance, the squared singular values follow the largest roots of a Fisher matrix. Those of pure noise end
at an edge, and a strength below a threshold does not come out of it.
"""

from __future__ import annotations

import math

from homophily.errors import UserError
from homophily.introductions import BUCKETS, ROWS
from homophily.kinship import dimension

MOST = 10_000  # samples a peer that are tried


def strength(distance: float, peers: int, kinds: int) -> float:
    """Of each direction, for one sample a peer. distance: D, in deviations of one sample."""
    return peers * distance**2 / (2 * kinds)


def edge(peers: int, samples: float, numbers: float) -> float:
    """The largest squared singular value of pure noise. numbers: d, or what the ridge leaves of them."""
    _, estimated, spread = _ratios(peers, samples, numbers)
    return (peers - 1) * ((1 + spread) / (1 - estimated)) ** 2


def expected(per_sample: float, peers: int, samples: float, numbers: float) -> float:
    """The squared singular value that a direction of that strength shows; at most the edge where it is too weak."""
    own, estimated, spread = _ratios(peers, samples, numbers)
    root = 1 + per_sample * samples / (peers - 1)
    if root <= (1 + spread) / (1 - estimated):
        return edge(peers, samples, numbers)
    return (peers - 1) * root * (root - 1 + own) / (root - 1 - root * estimated)


def samples_needed(per_sample: float, peers: int, margin: float = 1.1) -> int | None:
    """The fewest samples a peer whose expected squared singular value passes the edge by that factor; None: too many.

    per_sample: the strength in an unfolded sketch; one folded to half its numbers keeps about half of it. The margin
    is for chance: kin's own edge is a few percent higher, so that noise rarely passes it, and singular values vary.
    """
    if per_sample < 0 or peers < 3:
        raise UserError(f"strength = {per_sample}, peers = {peers}: must be at least 0 and 3")

    def enough(samples: int) -> bool:
        numbers = dimension(_freedom(peers, samples))
        if numbers is None:
            return False
        value = expected(per_sample * numbers / BUCKETS, peers, samples, numbers)
        return value >= margin * edge(peers, samples, numbers)

    return next((samples for samples in range(2, MOST + 1) if enough(samples)), None)


def _ratios(peers: int, samples: float, numbers: float) -> tuple[float, float, float]:
    """Numbers for each degree of freedom of the means, and of the covariance, and the half-width of the noise."""
    own, estimated = numbers / (peers - 1), numbers / _freedom(peers, samples)
    return own, estimated, math.sqrt(own + estimated - own * estimated)


def _freedom(peers: int, samples: float) -> int:
    """Degrees of freedom behind the covariance."""
    return int(peers * (min(samples, ROWS) - 1))
