"""Draws are pure functions of their keys and have the right distributions."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from homophily.randomness import Purpose, bits, generator, normal, permutation, uniform, word

keys = st.integers(-(2**63), 2**63 - 1)


def signed(number: int) -> int:
    return number - 2**64 if number >> 63 else number


def test_the_mixing_is_pinned_so_that_results_never_change_silently() -> None:
    # SplitMix64 from state 0 gives this first number in every implementation.
    assert word(0) == 0xE220A8397B1DCDAF
    assert word(1, 2, 3) == 15020427595393229491


@given(keys, keys, keys)
def test_plain_integers_and_tensors_mix_alike(a: int, b: int, c: int) -> None:
    expected = signed(word(a, b, c))
    assert int(bits(a, b, c)) == expected
    assert int(bits(a, b, torch.tensor([c]))) == expected
    assert int(bits(torch.tensor(a), b, torch.tensor([c]))) == expected
    assert int(bits(torch.tensor(a), torch.tensor(b), c)) == expected


@given(st.integers(0, 100), st.integers(1, 30), st.integers(1, 30))
def test_a_draw_does_not_depend_on_the_batch(seed: int, rows: int, columns: int) -> None:
    peer, other = torch.arange(rows)[:, None], torch.arange(columns)
    together = bits(seed, peer, 7, Purpose.MEET, other)
    assert together.shape == (rows, columns)
    assert torch.equal(together[-1:], bits(seed, peer[-1:], 7, Purpose.MEET, other))
    assert int(together[-1, -1]) == signed(word(seed, rows - 1, 7, Purpose.MEET, columns - 1))


def test_the_order_of_keys_matters() -> None:
    assert len({word(0, 1), word(1, 0), word(0, 0), word(1), word(0, 1, 0), word(0)}) == 6


def test_uniform_numbers_are_uniform() -> None:
    drawn = uniform(3, torch.arange(1000)[:, None], torch.arange(100))
    assert drawn.dtype == torch.float64
    assert 0.0 <= float(drawn.min()) < 1e-4
    assert 1 - 1e-4 < float(drawn.max()) < 1.0
    histogram = torch.histc(drawn.float(), 20, 0, 1)
    assert float(((histogram - 5000) ** 2 / 5000).sum()) < 45.3  # chi-square with 19 degrees, 99.9 %


def test_normal_numbers_are_normal() -> None:
    drawn = normal(3, torch.arange(100_000))
    assert abs(float(drawn.mean())) < 0.02
    assert abs(float(drawn.std()) - 1) < 0.02
    assert abs(float((drawn < 1).double().mean()) - 0.8413) < 0.006
    assert abs(float((drawn[1:] * drawn[:-1]).mean())) < 0.02


@given(st.integers(0, 200), keys)
def test_a_permutation_contains_every_number_once(n: int, seed: int) -> None:
    assert sorted(permutation(n, seed).tolist()) == list(range(n))


def test_all_permutations_of_three_are_equally_likely() -> None:
    seen = torch.stack([permutation(3, seed) for seed in range(3000)])
    counts = (seen * torch.tensor([9, 3, 1])).sum(1).unique(return_counts=True)[1]
    assert len(counts) == 6
    assert float(((counts - 500) ** 2 / 500).sum()) < 20.5  # chi-square with 5 degrees, 99.9 %


def test_a_generator_starts_from_its_keys() -> None:
    first, again, other = (torch.rand(3, generator=generator(*key)) for key in ((1, 2), (1, 2), (2, 1)))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
