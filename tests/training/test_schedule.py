"""The division of samples into batches."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from homophily.training import one_by_one
from homophily.training.one_by_one import OneByOne
from homophily.training.schedule import batch_sizes, shuffled, steps
from tests.training.nets import shares, task

counts = st.lists(st.integers(2, 40), min_size=1, max_size=8)


@given(st.integers(1, 100), st.integers(1, 20), st.booleans())
def test_every_sample_is_in_one_batch(samples: int, batch: int, coupled: bool) -> None:
    sizes = batch_sizes(samples, batch, coupled)
    assert sum(sizes) == samples
    assert all(size == batch for size in sizes[:-1])
    assert max(sizes) <= batch + coupled
    if coupled and samples > 1 and batch > 1:
        assert min(sizes) > 1


@given(counts, st.integers(2, 10), st.booleans())
def test_the_joint_steps_equal_those_of_each_peer(counts: list[int], batch: int, coupled: bool) -> None:
    counts.sort(reverse=True)
    took: list[list[int]] = [[] for _ in counts]
    for step, groups in enumerate(steps(counts, batch, coupled)):
        assert [g.first for g in groups[1:]] == [g.last for g in groups[:-1]]
        for group in groups:
            assert group.at == step * batch
            left = [min(group.size, counts[i] - group.at) for i in range(group.first, group.last)]
            assert group.ragged == (len(set(left)) > 1)
            assert not (coupled and group.ragged)
            for i, size in zip(range(group.first, group.last), left, strict=True):
                took[i].append(size)
    assert took == [batch_sizes(count, batch, coupled) for count in counts]


@given(counts, st.integers(0, 1000), st.integers(1, 50), st.integers(0, 5))
def test_an_order_is_a_permutation_independent_of_other_peers(
    counts: list[int], seed: int, round: int, epoch: int
) -> None:
    count, ids = torch.tensor(counts), torch.arange(len(counts))
    order = shuffled(torch.full_like(ids, seed), ids, count, max(counts), round, epoch)
    for i, n in enumerate(counts):
        one = slice(i, i + 1)
        alone = shuffled(torch.tensor([seed]), ids[one], count[one], n, round, epoch)[0]
        assert order[i, :n].tolist() == alone.tolist()
        assert sorted(alone.tolist()) == list(range(n))


def test_epochs_rounds_and_peers_have_different_orders() -> None:
    def order(peer: int, round: int, epoch: int) -> tuple[int, ...]:
        return tuple(
            shuffled(torch.tensor([0]), torch.tensor([peer]), torch.tensor([30]), 30, round, epoch)[0].tolist()
        )

    assert len({order(0, 1, 0), order(1, 1, 0), order(0, 2, 0), order(0, 1, 1)}) == 4


def test_many_epochs_of_many_samples_are_not_shuffled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def watched(*arguments: Any) -> Tensor:
        asked.append((found := shuffled(*arguments)).numel())
        return found

    monkeypatch.setattr(one_by_one, "shuffled", watched)
    samples = 20_000
    problem = task(nn.Linear(2, 10), shares([samples], [2]), batch=5000)
    found = list(OneByOne(problem)._batches(0, 1, range(2, 12)))
    assert len(found) == 10 * 4
    assert sum(asked) == 10 * samples
    assert max(asked) <= 1 << 16
    alone = list(OneByOne(problem)._batches(0, 1, range(9, 10)))
    assert all(torch.equal(a, b) for a, b in zip(found[28:32], alone, strict=True))
