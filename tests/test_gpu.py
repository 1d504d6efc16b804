"""Results on a CUDA device agree with the CPU; skipped, with a note, if there is no CUDA device."""

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import homophily
from homophily.data.transforms import BatchTransform, crop, flip
from homophily.data.types import Split
from homophily.federation.layout import Layout
from homophily.federation.similarity import LossSamples
from homophily.fingerprints.compute import fingerprints
from homophily.fingerprints.embedding import Targets
from homophily.fingerprints.fingerprint import LARGE, Fingerprints
from homophily.models import models
from homophily.randomness import Purpose, bits, normal, uniform
from homophily.simulation.training_setup import task_fingerprints
from homophily.training.engines import engine_limits, read_chain
from homophily.training.objectives import FedProx, FedRep, Objective
from homophily.training.one_by_one import OneByOne
from homophily.training.stacked.cpu import Stacked
from homophily.training.task import Engine, Task
from homophily.training.vectorised import COMPILED, StepKind, Vectorised
from tests.training.nets import Everything, shares, task, trained

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.usefixtures("here"),
]
SAMPLES: tuple[LossSamples, ...] = ("train", "validation")
UNEQUAL = [9, 5, 12, 4, 8, 2]


def on_the_gpu(problem: Task) -> Task:
    there = torch.device("cuda")
    return replace(
        problem,
        module=copy.deepcopy(problem.module).to(there),
        data=problem.data.to(there),
        seed=problem.seed.to(there),
        ids=problem.ids.to(there),
        lr_by_peer=None if problem.lr_by_peer is None else problem.lr_by_peer.to(there),
    )


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
    there = on_the_gpu(problem)
    device = there.ids.device
    chain = read_chain(there.module, there.layout, there.loss, there.data)
    engines: list[Engine] = [OneByOne(there), Vectorised(there, 4)]
    for engine in engines if isinstance(chain, str) else [*engines, Stacked(there, chain, 4, 1)]:
        row, start = problem.layout.read(there.module)
        rows = row.expand(len(UNEQUAL), -1).clone()
        tables = {n: b.expand(len(UNEQUAL), *b.shape).clone() for n, b in start.items()}
        for round in (1, 2, 3):
            engine.train(rows, tables, torch.arange(len(UNEQUAL), device=device), round)
        assert float((rows.cpu() - expected).abs().max()) < 1e-9
        assert all(torch.equal(tables[n].cpu(), kept[n]) for n in kept)


@pytest.mark.parametrize("kind", ["recorded", "compiled", "patched"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "everything"])
def test_recorded_and_compiled_steps_agree_with_the_reference_on_the_cpu(
    name: str, optimizer: str, kind: StepKind
) -> None:
    """Peers with different sample counts, in fewer chunks and with some peers left out."""
    torch.manual_seed(3)
    if kind in COMPILED and (name == "everything" or optimizer == "sgd"):
        return  # compiled steps need a network without buffers; compiling takes long
    shape = (1, 14, 14) if name == "cnn" else (1, 8, 8)
    net = Everything() if name == "everything" else models.get(name)(inputs=shape, outputs=10)
    problem = task(net, shares(UNEQUAL, shape), torch.float64, optimizer=optimizer, lr=0.01)
    there, some = on_the_gpu(problem), torch.tensor([0, 2, 3, 5, 1])
    expected, kept = trained(OneByOne(problem), problem, peers=some)
    for chunk in (3, 6):
        found, tables = trained(Vectorised(there, chunk, kind), there, peers=some)
        assert float((found.cpu() - expected).abs().max()) < 1e-9
        assert all(torch.equal(tables[n].cpu(), kept[n]) for n in kept)


@pytest.mark.parametrize("objective", [FedProx(0.5), FedRep(1, 2)], ids=["FedProx", "FedRep"])
def test_objectives_agree_with_the_reference_on_the_cpu(objective: Objective) -> None:
    torch.manual_seed(3)
    problem = task(models.get("mlp")(inputs=(6,), outputs=10), shares(UNEQUAL, (6,)), weight_decay=1e-2, clip=0.5)
    problem = replace(problem, layout=Layout.of(problem.module, ["3"]), objective=objective)
    there, (expected, _) = on_the_gpu(problem), trained(OneByOne(problem), problem)
    kinds: tuple[StepKind, ...] = ("plain", "recorded")
    for engine in (OneByOne(there), *(Vectorised(there, 4, kind) for kind in kinds)):
        assert float((trained(engine, there)[0].cpu() - expected).abs().max()) < 1e-9


def test_a_run_records_its_steps_and_resumes_with_them(tmp_path: Path) -> None:
    """The plan holds how steps are computed; a network that is not a chain of layers is trained by recorded steps."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
    config = {"rounds": 4, "checkpoint": 2, "peers": 8}
    whole = homophily.run(config, model=net, out=tmp_path / "whole")
    assert whole.about["plan"]["step"] == "recorded"
    homophily.run({**config, "rounds": 2}, model=net, out=tmp_path / "parts")
    parts = homophily.resume(tmp_path / "parts", {"rounds": 4}, model=net)
    assert parts.summary["accuracy"] == whole.summary["accuracy"]


@pytest.mark.parametrize("engine", ["stacked", "vectorised", "one-by-one"])
def test_bfloat16_agrees_with_float32_roughly(engine: str) -> None:
    config = {"rounds": 8, "engine": engine, "peers": 16}
    full, short = (homophily.run({**config, "precision": precision}).summary for precision in ("full", "bf16"))
    assert short["loss"] == pytest.approx(full["loss"], rel=0.1)
    assert short["loss"] != full["loss"]


def test_bfloat16_trains_a_transformer() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    net = nn.Sequential(nn.Flatten(1, 2), layer, nn.Flatten(), nn.Linear(64, 10))
    config = {"rounds": 8, "engine": "vectorised", "peers": 8}
    full, short = (homophily.run({**config, "precision": p}, model=net).summary for p in ("full", "bf16"))
    assert short["loss"] == pytest.approx(full["loss"], rel=0.1)


def test_kin_alone_on_the_gpu() -> None:
    answer = homophily.kin({"peers": 40}).summary()
    assert (len(answer["families"]), answer["precision"]) == (4, 1.0)


@pytest.mark.parametrize("chunk", [2, 6])
@pytest.mark.parametrize(
    ("optimizer", "momentum", "nesterov"),
    [("sgd", 0.0, False), ("sgd", 0.9, False), ("sgd", 0.9, True), ("adam", 0.0, False), ("adamw", 0.0, False)],
)
@pytest.mark.parametrize("name", ["linear", "mlp", "cnn", "dac-cnn", "cifar-cnn"])
def test_kernels_agree_with_the_reference(
    name: str, optimizer: str, momentum: float, nesterov: bool, chunk: int
) -> None:
    """Peers with different sample counts, a smaller last batch, some peers left out, and cross-evaluation."""
    from homophily.training.stacked.gpu import StackedKernels

    torch.manual_seed(3)
    shape = {"cnn": (1, 14, 14), "dac-cnn": (3, 32, 32), "cifar-cnn": (3, 8, 8)}.get(name, (1, 8, 8))
    net = models.get(name)(inputs=shape, outputs=10)
    lr = 0.05 if optimizer == "sgd" else 3e-4
    keys = {"optimizer": optimizer, "momentum": momentum, "nesterov": nesterov, "lr": lr, "weight_decay": 1e-2}
    held_out = shares(UNEQUAL[::-1], shape).train
    problem = task(net, replace(shares(UNEQUAL, shape), validation=held_out), torch.float32, **keys)
    there, some = on_the_gpu(problem), torch.tensor([0, 2, 3, 5])
    chain = read_chain(there.module, there.layout, there.loss, there.data)
    assert not isinstance(chain, str)
    engine = StackedKernels(there, chain, chunk)
    expected, _ = trained(OneByOne(problem), problem, peers=some)
    found, _ = trained(engine, there, peers=some)
    assert float((found.cpu() - expected).abs().max()) < 1e-4
    model, data = torch.tensor([0, 5, 2, 2]), torch.tensor([1, 1, 3, 2])
    for samples in SAMPLES:
        outputs = OneByOne(problem).cross_evaluate(expected, {}, model, data, samples)
        there_too = engine.cross_evaluate(found, {}, model.cuda(), data.cuda(), samples).cpu()
        assert float((there_too - outputs).abs().max()) < 1e-3


@pytest.mark.parametrize("chunk", [2, 6])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_rates_and_epochs_by_peer_agree_in_kernels(optimizer: str, chunk: int) -> None:
    from homophily.training.stacked.gpu import StackedKernels

    torch.manual_seed(3)
    lr = 0.05 if optimizer == "sgd" else 3e-4
    net = models.get("mlp")(inputs=(1, 8, 8), outputs=10)
    problem = task(net, shares(UNEQUAL, (1, 8, 8)), torch.float32, optimizer=optimizer, weight_decay=1e-2)
    rates = lr * torch.tensor([1.0, 2.0, 0.5, 3.0, 1.0, 1.5], dtype=torch.float64)
    problem = replace(problem, lr_by_peer=rates, epochs_by_peer=torch.tensor([1, 3, 2, 3, 2, 1]))
    there = on_the_gpu(problem)
    chain = read_chain(there.module, there.layout, there.loss, there.data)
    assert not isinstance(chain, str)
    expected, _ = trained(OneByOne(problem), problem)
    found, _ = trained(StackedKernels(there, chain, chunk), there)
    assert float((found.cpu() - expected).abs().max()) < 1e-4


def test_a_diverged_model_does_not_affect_others_in_kernels() -> None:
    from homophily.training.stacked.gpu import StackedKernels

    problem = on_the_gpu(
        task(models.get("mlp")(inputs=(1, 8, 8), outputs=10), shares([6] * 3, (1, 8, 8)), torch.float32)
    )
    chain = read_chain(problem.module, problem.layout, problem.loss, problem.data)
    assert not isinstance(chain, str)
    engine = StackedKernels(problem, chain, 3)
    healthy, _ = trained(engine, problem, rounds=1)
    rows = problem.layout.read(problem.module)[0].expand(3, -1).clone()
    rows[1] = torch.nan
    engine.train(rows, {}, torch.arange(3), 1)
    assert torch.equal(rows[[0, 2]], healthy[[0, 2]])
    assert bool(rows[1].isnan().any())


@pytest.mark.parametrize("step", ["plain", "recorded"])
@pytest.mark.parametrize("name", ["mlp", "everything"])
def test_transformed_batches_agree_with_the_reference_on_the_cpu(name: str, step: StepKind) -> None:
    torch.manual_seed(3)
    net = Everything() if name == "everything" else models.get(name)(inputs=(1, 8, 8), outputs=10)
    chosen = BatchTransform([flip, crop, lambda x, draws: x + 0.3 * draws.normal(*x.shape[1:])])
    problem = replace(task(net, shares(UNEQUAL, (1, 8, 8))), transform=chosen)
    expected, _ = trained(OneByOne(problem), problem)
    there = on_the_gpu(problem)
    assert "stacked" in engine_limits(there)
    found, _ = trained(Vectorised(there, 4, step), there)
    assert float((found.cpu() - expected).abs().max()) < 1e-5


@pytest.mark.parametrize("peers", [4, LARGE])
@pytest.mark.parametrize("inputs", [(1, 28, 28), (3, 40, 40), (20,), (300,)])
def test_fingerprints_agree(inputs: tuple[int, ...], peers: int) -> None:
    """Of images, large images, few and many features, in the formats of small and large federations."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(inputs), 10))
    problem = task(net, shares([5, 80, 2, 64], inputs), torch.float32)
    here, there = (task_fingerprints(one, 0, peers) for one in (problem, on_the_gpu(problem)))
    agree(here, there, [5, 80, 2, 64])


@pytest.mark.parametrize("classes", [5, 300])
def test_fingerprints_of_tokens_agree(classes: int) -> None:
    chance = torch.Generator().manual_seed(0)
    x, y = torch.randint(1000, (60, 7), generator=chance), torch.randint(classes, (60,), generator=chance)
    count = torch.tensor([20, 40])
    split = Split(x, y, count.cumsum(0) - count, count)
    on_gpu = Split(*(part.cuda() for part in (split.x, split.y, split.start, split.count)))
    here, there = (fingerprints(one, Targets(classes), torch.arange(2), 0) for one in (split, on_gpu))
    agree(here, there, [20, 40])


def agree(here: Fingerprints, there: Fingerprints, count: list[int]) -> None:
    assert here.count.tolist() == there.count.tolist() == count
    assert here.bytes.tolist() == there.bytes.tolist()
    for peer in range(len(count)):
        noise = [p.factor[peer].cpu().T @ p.factor[peer].cpu() for p in (here, there)]
        for one, other in ((here.mean[peer], there.mean[peer].cpu()), noise):
            assert float((one - other).abs().max()) < 5e-3 * float(one.abs().max())


def test_rows_merge_as_on_the_cpu_and_diverged_ones_are_not_read() -> None:
    from homophily.federation.merge_kernel import weighted_rows

    rows, ids = torch.randn(7, 3000), torch.randint(7, (5, 3))
    share = torch.rand(5, 3)
    rows[6] = torch.nan
    share[ids == 6] = 0.0
    there = (share > 0)[..., None]
    expected = torch.where(there, rows[ids] * share[..., None], 0.0).sum(1)
    assert torch.allclose(weighted_rows(rows.cuda(), ids.cuda(), share.cuda()).cpu(), expected, atol=1e-5)


@pytest.mark.parametrize("method", ["random", "panm", "pens", "dac", "dpg", "kin", "ifca", "fedavg", "oracle"])
def test_whole_runs_agree(method: str) -> None:
    config: dict[str, Any] = {"rounds": 12, "peers": 16, "method": {"name": method}, "training": {"lr": 0.02}}
    here, there = (homophily.run(config, device=device) for device in ("cpu", "cuda"))
    assert there.about["device"].startswith("cuda")
    assert abs(here.summary["accuracy"] - there.summary["accuracy"]) < 3.0
    if method in ("random", "oracle"):  # they do not look at models
        assert np.array_equal(here.merges(), there.merges())


def test_a_run_on_the_gpu_resumes() -> None:
    whole = homophily.run({"rounds": 8, "peers": 12}, device="cuda")
    half = homophily.run({"rounds": 4, "peers": 12}, device="cuda")
    again = homophily.resume(half.path, {"rounds": 8})
    assert abs(whole.summary["accuracy"] - again.summary["accuracy"]) < 1.0
    assert np.array_equal(whole.merges(), again.merges())
