"""How many samples per peer released (private) fingerprints need.

In a direction in which the peers' means have the standard deviation ``spread``, N peers with n samples each show a
squared singular value of about N (n spread)^2 beside the noise, whose own are at most
(s^2 + t n) (sqrt(N) + sqrt(d))^2: s is the known noise of a sum, t the sampling variance of one sample in an average
direction, d the numbers of a sum. All are in units of the clipping norm.
"""

from __future__ import annotations

import math

from homophily.fingerprints.private import NUMBERS, SENSITIVITY

MARGIN = 1.3  # by which a signal should pass the largest singular value of noise
MOST = 10**6  # samples per peer


def smallest_spread(samples: float, peers: int, multiplier: float, sampling: float) -> float:
    """The spread at which a direction reaches the edge of the noise. multiplier: noise over sensitivity."""
    noise = (multiplier * SENSITIVITY) ** 2 + sampling * samples
    return math.sqrt(noise / peers) * (math.sqrt(peers) + math.sqrt(NUMBERS)) / samples


def samples_needed(spread: float, peers: int, multiplier: float, sampling: float) -> int | None:
    """The fewest samples per peer with which a direction of this spread is found; None: more than a million."""
    if spread <= 0 or peers < 3 or not math.isfinite(multiplier):
        return None
    target = spread / math.sqrt(MARGIN)
    # smallest_spread(n)^2 = (s^2 + t n) e / n^2 with e = (sqrt(N) + sqrt(d))^2 / N, at most target^2
    e = (math.sqrt(peers) + math.sqrt(NUMBERS)) ** 2 / peers / target**2
    known = (multiplier * SENSITIVITY) ** 2
    found = math.ceil((sampling * e + math.sqrt((sampling * e) ** 2 + 4 * known * e)) / 2)
    return found if found <= MOST else None
