"""Editions of methods: a change of the code after which a method decides differently starts a new edition.

Every stored number has the edition of its method. Numbers of different editions never share a mean, and a page says
which of its rows are older than the present edition.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edition:
    """The present edition of a method, and what changed with it."""

    number: int
    date: str
    change: str


EDITIONS = {
    "panm": Edition(
        2,
        "2026-11-16",
        "the threshold at which PANM's EM algorithm splits the sampled neighbours if there are no non-neighbours left "
        "to compare with (`homophily/methods/em.py`)",
    ),
    "kin": Edition(
        2,
        "2026-11-16",
        "kin computes fingerprints from a fixed embedding of the data; before, it used gradients of the network "
        "(`homophily/fingerprints`)",
    ),
}


def edition_of(method: str) -> int:
    """Return the present edition of a method; 1 if it never changed."""
    return EDITIONS[method].number if method in EDITIONS else 1
