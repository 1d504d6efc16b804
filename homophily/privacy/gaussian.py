"""The analytic Gaussian mechanism (Balle and Wang, 2018, arXiv 1805.06530): exact, for one release of sensitivity 1.

``noise`` is the standard deviation of the noise divided by the sensitivity.
"""

from __future__ import annotations

from math import exp, inf, log

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

_LEAST, _MOST = 1e-3, 1e9  # the noise that is searched


def gaussian_delta(noise: float, epsilon: float) -> float:
    """The smallest delta with which a release with this noise is (epsilon, delta)-private."""
    half, shift = 0.5 / noise, epsilon * noise
    return max(float(ndtr(half - shift)) - exp(epsilon + float(log_ndtr(-half - shift))), 0.0)


def gaussian_epsilon(noise: float, delta: float) -> float:
    """The smallest epsilon with which a release with this noise is (epsilon, delta)-private."""
    if gaussian_delta(noise, 0.0) <= delta:
        return 0.0
    most = 1.0
    while gaussian_delta(noise, most) > delta:
        most *= 2
    return float(brentq(lambda epsilon: gaussian_delta(noise, epsilon) - delta, 0.0, most, xtol=1e-12))


def gaussian_noise(epsilon: float, delta: float) -> float:
    """The smallest noise with which a release is (epsilon, delta)-private; infinite if there is none below 1e9."""
    if gaussian_delta(_MOST, epsilon) > delta:
        return inf

    def excess(logarithm: float) -> float:
        return gaussian_delta(exp(logarithm), epsilon) - delta

    found = exp(float(brentq(excess, log(_LEAST), log(_MOST), xtol=1e-12)))
    return found * (1 + 1e-9)  # on the private side of the root
