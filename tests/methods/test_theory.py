"""Theorem 1 against the ball-drawing game itself, and Corollary 1."""

from itertools import pairwise

import numpy as np
import pytest

from homophily.errors import UserError
from homophily.methods.theory import cni, drawn, pens


@pytest.mark.parametrize(
    ("peers", "cluster", "l", "k"), [(100, 50, 10, 5), (100, 25, 10, 5), (20, 5, 4, 3), (6, 2, 3, 1)]
)
def test_the_formula_agrees_with_simulated_draws(peers: int, cluster: int, l: int, k: int) -> None:  # noqa: E741
    """In each round l other peers are drawn; those of the own cluster are kept until there are k."""
    chance = np.random.default_rng(0)
    rounds, games = 6, 40_000
    found = chance.hypergeometric(cluster - 1, peers - cluster, l, size=(games, rounds))
    share = (found.cumsum(1) >= k).mean(0)
    assert np.allclose(cni(rounds, peers, cluster, l, k), share, atol=0.012)
    assert pens(peers, cluster, l, k) == pytest.approx((found >= k).mean(), abs=0.012)


def test_the_probability_grows_with_cni_and_is_constant_with_pens() -> None:
    chances = cni(20, 100, 25, 10, 5)
    assert chances[0] == pens(100, 25, 10, 5)
    assert all(later > earlier for earlier, later in pairwise(chances[:10]))
    assert all(later >= earlier for earlier, later in pairwise(chances))
    assert 0.999 < chances[-1] <= 1.0


def test_the_probabilities_of_a_draw_add_up_to_one() -> None:
    assert sum(drawn(x, 30, 7, 9) for x in range(10)) == pytest.approx(1.0)
    assert drawn(7, 30, 7, 9) == 0.0  # only six others are of the cluster


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ((5, 1, 1, 1, 1), "peers"),
        ((5, 10, 11, 2, 1), "cluster"),
        ((5, 10, 3, 5, 3), "cluster"),
        ((5, 10, 5, 10, 1), "l"),
        ((5, 10, 5, 3, 4), "k"),
        ((0, 10, 5, 3, 2), "rounds"),
    ],
)
def test_impossible_numbers_are_refused(arguments: tuple[int, ...], key: str) -> None:
    with pytest.raises(UserError, match=f"^{key} = "):
        cni(*arguments)
