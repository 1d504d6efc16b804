"""Optimisers on rows agree with torch.optim on one parameter vector each."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from homophily.models import models
from homophily.training.one_by_one import OneByOne
from homophily.training.optimisers import clip_rows, row_optimiser
from homophily.training.task import Settings
from homophily.training.torch_optimisers import torch_optimiser
from homophily.training.vectorised import Vectorised
from tests.training.nets import shares, task, trained
from tests.training.test_engines import UNEQUAL, stacked

KINDS = [
    {"optimizer": "sgd", "momentum": 0.0},
    {"optimizer": "sgd", "momentum": 0.9},
    {"optimizer": "sgd", "momentum": 0.9, "nesterov": True},
    {"optimizer": "adam", "lr": 3e-3},
    {"optimizer": "adamw", "lr": 3e-3},
]
NAMES = ["plain SGD", "momentum", "Nesterov", "Adam", "AdamW"]


def by_torch(start: Tensor, grads: Tensor, chosen: Settings, lr: float) -> Tensor:
    """One row [T] after the steps that torch's optimizer takes with grads [S, T]."""
    parameter = nn.Parameter(start.clone())
    optimiser = torch_optimiser([parameter], chosen, lr)
    for grad in grads:
        parameter.grad = grad.clone()
        if chosen.clip is not None:
            clip_grad_norm_([parameter], chosen.clip)
        optimiser.step()
    return parameter.detach()


@pytest.mark.parametrize("clip", [None, 2.0])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_rows_move_as_with_torch_optim(kind: dict[str, object], weight_decay: float, clip: float | None) -> None:
    """Each row has its own learning rate, and some rows take fewer steps than others."""
    chance = torch.Generator().manual_seed(0)
    start, grads = (torch.randn(*s, 7, generator=chance, dtype=torch.float64) for s in ((3,), (5, 3)))
    chosen = Settings(**{"lr": 0.1, **kind, "weight_decay": weight_decay, "clip": clip})  # type: ignore[arg-type]
    rates, taken = [chosen.lr, 2 * chosen.lr, chosen.lr / 3], [5, 3, 1]
    rows = start.clone()
    optimiser = row_optimiser(rows, chosen, torch.tensor(rates, dtype=torch.float64)[:, None])
    for number, grad in enumerate(grads):
        which = slice(0, sum(steps > number for steps in taken))
        steps = torch.full((which.stop, 1), number + 1.0, dtype=torch.float64)
        optimiser.step(rows[which], grad[which].clone(), which, steps)
    expected = [by_torch(start[i], grads[: taken[i], i], chosen, rates[i]) for i in range(3)]
    assert torch.allclose(rows, torch.stack(expected), atol=1e-12)


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_all_engines_agree_for_every_optimizer(kind: dict[str, object], clip: float | None) -> None:
    net = models.get("mlp")(inputs=(6,), outputs=10)
    unclipped = task(net, shares(UNEQUAL, (6,)), **{**kind, "weight_decay": 1e-2})
    problem = replace(unclipped, settings=replace(unclipped.settings, clip=clip))
    plain, _ = trained(OneByOne(problem), problem)
    for engine in (Vectorised(problem, 4), stacked(problem, 4)):
        assert float((plain - trained(engine, problem)[0]).abs().max()) < 1e-9
    assert (clip is None) == torch.equal(plain, trained(OneByOne(unclipped), unclipped)[0])


@given(st.lists(st.floats(-1e3, 1e3), min_size=4, max_size=4), st.floats(1e-3, 1e3))
@settings(max_examples=50)
def test_a_clipped_gradient_keeps_its_direction_and_the_bound(values: list[float], most: float) -> None:
    grad = torch.tensor([values, [0.0] * 4], dtype=torch.float64)
    clipped = grad.clone()
    clip_rows(clipped, most)
    norm, before = float(clipped[0].norm()), float(grad[0].norm())
    assert norm <= most
    assert norm == pytest.approx(min(before, most), rel=1e-3, abs=1e-5)
    assert torch.allclose(clipped[0] * before, grad[0] * norm, rtol=1e-6)
    assert not clipped[1].any()


def test_a_diverged_gradient_is_clipped_alone() -> None:
    grad = torch.tensor([[torch.nan, 1.0], [3.0, 4.0]])
    clip_rows(grad, 1.0)
    assert bool(grad[0].isnan().all())
    assert torch.allclose(grad[1], torch.tensor([0.6, 0.8]))
