"""The same numbers on a CUDA device: skipped, and said so, where there is none."""

from typing import Any

import numpy as np
import pytest
import torch

import homophily
from homophily.models import models
from homophily.randomness import Purpose, bits, normal, uniform
from homophily.training.one_by_one import OneByOne
from homophily.training.vectorised import Vectorised
from tests.training.nets import Everything, shares, task, trained

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.usefixtures("here"),
]
UNEQUAL = [9, 5, 12, 4, 8, 2]


def test_draws_are_the_same_bits_on_both() -> None:
    keys = torch.arange(50)[:, None], 3, Purpose.MEET, torch.arange(70)
    there = tuple(k.cuda() if isinstance(k, torch.Tensor) else k for k in keys)
    assert torch.equal(bits(*keys), bits(*there).cpu())
    assert torch.equal(uniform(*keys), uniform(*there).cpu())
    assert torch.allclose(normal(*keys), normal(*there).cpu(), atol=1e-12)


@pytest.mark.parametrize("name", ["mlp", "cnn", "dac-cnn", "cifar-cnn", "everything"])
def test_both_engines_agree_with_the_reference_on_the_cpu(name: str) -> None:
    torch.manual_seed(3)
    shape = {"cnn": (1, 14, 14), "dac-cnn": (3, 32, 32), "cifar-cnn": (3, 8, 8)}.get(name, (1, 8, 8))
    net = Everything() if name == "everything" else models.get(name)(inputs=shape, outputs=10)
    problem = task(net, shares(UNEQUAL, shape), torch.float64)
    expected, kept = trained(OneByOne(problem), problem)
    device = torch.device("cuda")
    there = type(problem)(
        problem.module.to(device), problem.layout, problem.loss, problem.data.to(device), problem.seed.to(device),
        problem.ids.to(device), problem.settings, problem.coupled, problem.draws,
    )  # fmt: skip
    for engine in (OneByOne(there), Vectorised(there, 4)):
        row, start = problem.layout.read(there.module)
        rows = row.expand(len(UNEQUAL), -1).clone()
        tables = {n: b.expand(len(UNEQUAL), *b.shape).clone() for n, b in start.items()}
        for round in (1, 2, 3):
            engine.train(rows, tables, torch.arange(len(UNEQUAL), device=device), round)
        assert float((rows.cpu() - expected).abs().max()) < 1e-9
        assert all(torch.equal(tables[n].cpu(), kept[n]) for n in kept)


@pytest.mark.parametrize("method", ["random", "panm", "pens", "dac", "dpg", "kin", "ifca", "fedavg", "oracle"])
def test_whole_runs_agree(method: str) -> None:
    config: dict[str, Any] = {"rounds": 12, "peers": 16, "method": {"name": method}, "training": {"lr": 0.02}}
    here, there = (homophily.run(config, device=device) for device in ("cpu", "cuda"))
    assert there.about["device"] == "cuda"
    assert abs(here.summary["accuracy"] - there.summary["accuracy"]) < 3.0
    if method in ("random", "oracle"):  # they do not look at models
        assert np.array_equal(here.merges(), there.merges())


def test_a_run_on_the_gpu_resumes() -> None:
    whole = homophily.run({"rounds": 8, "peers": 12}, device="cuda")
    half = homophily.run({"rounds": 4, "peers": 12}, device="cuda")
    again = homophily.resume(half.path, {"rounds": 8})
    assert abs(whole.summary["accuracy"] - again.summary["accuracy"]) < 1.0
    assert np.array_equal(whole.merges(), again.merges())
