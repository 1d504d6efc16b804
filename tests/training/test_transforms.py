"""Transformed batches: every engine transforms every sample alike, whatever the order and the chunks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from homophily.data.transforms import BatchTransform, Draws, crop, flip
from homophily.training import vectorised
from homophily.training.one_by_one import OneByOne
from homophily.training.task import Task
from homophily.training.vectorised import Vectorised
from tests.training.nets import Everything, shares, task, trained
from tests.training.test_engines import UNEQUAL, Unrecorded, nets, stacked


def noise(x: Tensor, draws: Draws) -> Tensor:
    return x + 0.3 * draws.normal(*x.shape[1:])


def transformed(net: nn.Module, *functions: object) -> Task:
    chosen = BatchTransform(functions or (flip, crop, noise))  # type: ignore[arg-type]
    return replace(task(net, shares(UNEQUAL, [1, 8, 8])), transform=chosen)


@pytest.mark.parametrize("name", ["mlp", "everything"])
def test_the_engines_agree(name: str) -> None:
    problem = transformed(nets()[name][0])
    plain, _ = trained(OneByOne(problem), problem)
    untransformed = replace(problem, transform=None)
    assert not torch.allclose(plain, trained(OneByOne(untransformed), untransformed)[0], atol=1e-3)
    assert torch.allclose(plain, trained(Vectorised(problem, 4), problem)[0], atol=1e-6)
    if name == "mlp":
        assert torch.allclose(plain, trained(stacked(problem, 4), problem)[0], atol=1e-6)


def test_steps_padded_for_cuda_graphs_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectorised, "RecordedStep", Unrecorded)
    monkeypatch.setattr(Vectorised, "_pool", None)
    problem = transformed(nets()["mlp"][0])
    some = torch.tensor([0, 2, 3, 5, 1])
    plain, _ = trained(Vectorised(problem, 6), problem, peers=some)
    padded, _ = trained(Vectorised(problem, 6, "recorded"), problem, peers=some)
    assert torch.allclose(plain, padded, atol=1e-9)


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_results_do_not_depend_on_chunks_and_order(chunk: int) -> None:
    problem = transformed(Everything())
    whole, _ = trained(Vectorised(problem, 6), problem)
    parts, _ = trained(Vectorised(problem, chunk), problem, peers=torch.arange(len(UNEQUAL)).flip(0))
    assert torch.allclose(whole, parts, atol=1e-12)
    alone, _ = trained(OneByOne(problem), problem, peers=torch.tensor([2]))
    assert torch.allclose(whole[2], alone[2], atol=1e-6)


def test_numbers_differ_by_peer_round_step_and_sample() -> None:
    seen: list[Tensor] = []

    def look(x: Tensor, draws: Draws) -> Tensor:
        seen.append(draws.uniform())
        return x

    problem = transformed(nets()["mlp"][0], look)
    trained(OneByOne(problem), problem, rounds=2)
    numbers = torch.cat(seen)
    assert len(numbers) == 2 * 2 * sum(UNEQUAL)
    assert len(numbers.unique()) == len(numbers)
    again = replace(problem, seed=problem.seed + 1)
    before, seen = numbers, []
    trained(OneByOne(again), again, rounds=2)
    assert not bool((torch.cat(seen) == before).any())


def test_evaluation_sees_the_samples_as_they_are() -> None:
    problem = transformed(nets()["mlp"][0], lambda x, draws: torch.full_like(x, torch.nan))
    rows = problem.layout.read(problem.module)[0].expand(len(UNEQUAL), -1).clone()
    everyone = torch.arange(len(UNEQUAL))
    for engine in (OneByOne(problem), Vectorised(problem, 3), stacked(problem, 3)):
        assert bool(engine.cross_evaluate(rows, {}, everyone, everyone).isfinite().all())
