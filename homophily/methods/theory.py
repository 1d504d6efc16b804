"""Theorem 1 of PANM: the probability that all k neighbours belong to the peer's own cluster, after t rounds of CNI.

In each round a peer draws l of the other n - 1 peers; a - 1 of these belong to its own cluster of a peers. The theorem
assumes that a peer recognises its cluster in those drawn. PENS uses only the draw of the round, CNI keeps what it has.
"""

from __future__ import annotations

from functools import cache
from math import comb

from homophily.errors import UserError


def drawn(x: int, peers: int, cluster: int, candidates: int) -> float:
    """G(x): the probability that x of the candidates belong to the peer's own cluster (hypergeometric)."""
    others, same = peers - 1, cluster - 1
    if not 0 <= x <= min(same, candidates) or candidates - x > others - same:
        return 0.0
    return comb(same, x) * comb(others - same, candidates - x) / comb(others, candidates)


def pens(peers: int, cluster: int, candidates: int, k: int) -> float:
    """R(k): the probability that the draw of one round has at least k peers of the own cluster."""
    return sum(drawn(x, peers, cluster, candidates) for x in range(max(0, k), candidates + 1))


def cni(rounds: int, peers: int, cluster: int, candidates: int, k: int) -> list[float]:
    """P^t(k) for t = 1 to ``rounds``: the probability that all k neighbours belong to the own cluster."""
    _check(rounds, peers, cluster, candidates, k)

    @cache
    def reached(t: int, missing: int) -> float:
        at_once = pens(peers, cluster, candidates, missing)
        if t == 1 or missing <= 0:
            return at_once
        return at_once + sum(drawn(m, peers, cluster, candidates) * reached(t - 1, missing - m) for m in range(missing))

    for t in range(1, rounds):  # bottom up, so that many rounds need no deep recursion
        reached(t, k)
    return [reached(t, k) for t in range(1, rounds + 1)]


def _check(rounds: int, peers: int, cluster: int, candidates: int, k: int) -> None:
    for name, value, least, most in (
        ("peers", peers, 2, None),
        ("cluster", cluster, k + 1, peers),  # a smaller cluster does not have k other peers
        ("l", candidates, 1, peers - 1),
        ("k", k, 1, candidates),
        ("rounds", rounds, 1, None),
    ):
        if value < least or (most is not None and value > most):
            allowed = f"at least {least}" if most is None else f"from {least} to {most}"
            raise UserError(f"{name} = {value}: must be {allowed}")
