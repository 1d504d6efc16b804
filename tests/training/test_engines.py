"""The faster engines agree with the one-by-one engine for every model and optimiser."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from homophily.errors import UserError
from homophily.federation.similarity import LossSamples
from homophily.models import models
from homophily.training import vectorised
from homophily.training.batching import PatchConvolutions, WrittenOutAttention
from homophily.training.in_threads import OneByOneInThreads
from homophily.training.losses import mse
from homophily.training.one_by_one import OneByOne
from homophily.training.stacked.chain import chain_of
from homophily.training.stacked.cpu import Stacked
from homophily.training.task import Engine, Task
from homophily.training.vectorised import COMPILED, StepKind, Vectorised
from tests.training.nets import Drawing, Everything, shares, task, trained

SMALL = {"cnn": (1, 14, 14), "dac-cnn": (3, 32, 32), "cifar-cnn": (3, 8, 8), "mlp": (1, 8, 8), "linear": (6,)}
SAMPLES: tuple[LossSamples, ...] = ("train", "validation")
UNEQUAL = [9, 5, 12, 4, 8, 2]  # a last batch of one, full batches only, fewer than a batch


def nets() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    torch.manual_seed(3)
    made = {name: (models.get(name)(inputs=shape, outputs=10), shape) for name, shape in SMALL.items()}
    return made | {"everything": (Everything(), (1, 8, 8))}


def stacked(problem: Task, chunk: int, workers: int = 1) -> Stacked:
    chain = chain_of(problem.module, problem.layout, tuple(problem.data.train.x.shape[1:]))
    return Stacked(problem, chain, chunk, workers)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", list(SMALL))
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_the_stacked_engine_agrees_with_the_reference(
    name: str, optimizer: str, momentum: float, dtype: torch.dtype, tolerance: float
) -> None:
    net, inputs = nets()[name]
    lr = 0.05 if optimizer == "sgd" else 3e-4
    keys = {"optimizer": optimizer, "lr": lr, "momentum": momentum, "weight_decay": 1e-3}
    problem = task(net, shares(UNEQUAL, inputs), dtype, **keys)
    plain, _ = trained(OneByOne(problem), problem)
    fast, _ = trained(stacked(problem, 2, workers=2), problem)
    assert float((plain - fast).abs().max()) < tolerance
    x = problem.data.test.x[:3].expand(len(UNEQUAL), 3, *inputs)
    outputs = OneByOne(problem).predict(plain, {}, x), stacked(problem, 4).predict(fast, {}, x)
    assert float((outputs[0] - outputs[1]).abs().max()) < 100 * tolerance


@pytest.mark.parametrize(("chunk", "workers"), [(1, 1), (2, 3), (5, 2), (100, 1)])
def test_stacked_results_do_not_depend_on_chunks_and_threads(chunk: int, workers: int) -> None:
    net, inputs = nets()["cnn"]
    problem = task(net, shares(UNEQUAL, inputs))
    whole, _ = trained(stacked(problem, 6), problem)
    parts, _ = trained(stacked(problem, chunk, workers), problem)
    assert torch.allclose(whole, parts, atol=1e-12)
    alone, _ = trained(stacked(problem, chunk, workers), problem, peers=torch.tensor([2]))
    assert torch.allclose(alone[2], whole[2], atol=1e-12)
    assert torch.equal(alone[3], problem.layout.read(problem.module)[0])  # not in the list of peers: not trained


def test_many_samples_are_evaluated_in_several_chunks() -> None:
    net, inputs = nets()["mlp"]
    problem = task(net, shares([50, 70], inputs))
    rows, _ = trained(stacked(problem, 2), problem)
    x = problem.data.test.x[:70].expand(2, 70, *inputs)
    expected = OneByOne(problem).predict(rows, {}, x)
    assert torch.allclose(stacked(problem, 1).predict(rows, {}, x), expected, atol=1e-12)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", [*SMALL, "everything"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_both_engines_agree(name: str, optimizer: str, dtype: torch.dtype, tolerance: float) -> None:
    net, inputs = nets()[name]
    lr = 0.05 if optimizer == "sgd" else 3e-4  # Adam turns rounding into whole steps, so use the DAC paper's rate
    problem = task(net, shares(UNEQUAL, inputs), dtype, optimizer=optimizer, lr=lr, weight_decay=1e-3)
    plain, kept = trained(OneByOne(problem), problem)
    fast, kept_fast = trained(Vectorised(problem, chunk=4), problem)
    moved = (plain - problem.layout.read(problem.module)[0]).abs().amax(1)
    assert bool((moved > 1e-3).all())
    assert float((plain - fast).abs().max()) < tolerance
    assert all(torch.equal(kept[n], kept_fast[n]) for n in kept)
    x = problem.data.test.x[:3].expand(len(UNEQUAL), 3, *inputs)
    outputs = OneByOne(problem).predict(plain, kept, x), Vectorised(problem, 4).predict(fast, kept, x)
    assert float((outputs[0] - outputs[1]).abs().max()) < 100 * tolerance


def test_regression_agrees() -> None:
    problem = task(nn.Sequential(nn.Linear(3, 2)), shares([5, 7], [3], outputs=2, regression=True), loss=mse)
    plain, _ = trained(OneByOne(problem), problem)
    assert torch.allclose(plain, trained(Vectorised(problem, 2), problem)[0], atol=1e-9)
    assert torch.allclose(plain, trained(stacked(problem, 2), problem)[0], atol=1e-9)


def test_a_weight_decay_of_one_over_the_learning_rate_agrees() -> None:
    keys = {"lr": 0.5, "weight_decay": 2.0, "momentum": 0.0, "decay": 1.0}
    problem = task(nn.Sequential(nn.Linear(3, 4)), shares([5, 7], [3], outputs=4), **keys)
    plain, _ = trained(OneByOne(problem), problem)
    assert torch.allclose(plain, trained(stacked(problem, 2), problem)[0], atol=1e-9)


def test_tokens_agree() -> None:
    data = shares([5, 7], [6])
    tokens = data.train.x.abs().mul(3).long().clamp(max=9)
    data = replace(data, train=replace(data.train, x=tokens))
    problem = task(nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(24, 10)), data)
    assert torch.allclose(
        trained(OneByOne(problem), problem)[0], trained(Vectorised(problem, 2), problem)[0], atol=1e-9
    )


@pytest.mark.parametrize("name", ["mlp", "everything"])
def test_one_by_one_is_bitwise_independent_of_order_and_other_peers(name: str) -> None:
    net, inputs = nets()[name]
    problem = task(net, shares(UNEQUAL, inputs), torch.float32)
    forward, _ = trained(OneByOne(problem), problem)
    backward, _ = trained(OneByOne(problem), problem, peers=torch.arange(len(UNEQUAL)).flip(0))
    alone, _ = trained(OneByOne(problem), problem, peers=torch.tensor([2]))
    assert torch.equal(forward, backward)
    assert torch.equal(forward[2], alone[2])
    start = problem.layout.read(problem.module)[0]
    assert torch.equal(alone[3], start)  # not in the list of peers: not trained


@pytest.mark.parametrize("workers", [2, 4, 9])
def test_one_by_one_in_threads_gives_the_same_bits(workers: int) -> None:
    net, inputs = nets()["everything"]
    problem = task(net, shares(UNEQUAL, inputs), torch.float32)
    some = torch.tensor([5, 0, 2, 3])
    alone, kept = trained(OneByOne(problem), problem, peers=some)
    threaded, kept_threaded = trained(OneByOneInThreads(problem, workers), problem, peers=some)
    assert torch.equal(alone, threaded)
    assert all(torch.equal(kept[n], kept_threaded[n]) for n in kept)
    x = problem.data.test.x[:3].expand(len(UNEQUAL), 3, *inputs)
    outputs = [engine.predict(alone, kept, x) for engine in (OneByOne(problem), OneByOneInThreads(problem, workers))]
    assert torch.equal(*outputs)


@pytest.mark.parametrize("chunk", [1, 2, 5, 100])
def test_results_do_not_depend_on_chunks(chunk: int) -> None:
    net, inputs = nets()["everything"]
    problem = task(net, shares(UNEQUAL, inputs))
    whole, _ = trained(Vectorised(problem, 6), problem)
    parts, _ = trained(Vectorised(problem, chunk), problem)
    assert torch.allclose(whole, parts, atol=1e-12)


def test_the_learning_rate_decays_by_round() -> None:
    problem = task(nn.Linear(2, 3), shares([4], [2], outputs=3), lr=0.1, decay=0.5, momentum=0.0, epochs=1)
    row, _ = problem.layout.read(problem.module)
    moves = []
    for round in (1, 3):
        rows = row[None].clone()
        OneByOne(problem).train(rows, {}, torch.tensor([0]), round)
        moves.append(rows[0] - row)
    assert torch.allclose(moves[1], moves[0] / 4)  # one whole batch: the same gradient


def test_optimiser_state_is_reset_each_round() -> None:
    problem = task(nn.Linear(2, 3), shares([4], [2], outputs=3), lr=0.1, decay=1.0, momentum=0.9, epochs=1)
    row, _ = problem.layout.read(problem.module)
    first, again = row[None].clone(), row[None].clone()
    engine = Vectorised(problem, 1)
    engine.train(first, {}, torch.tensor([0]), 1)
    engine.train(again, {}, torch.tensor([0]), 2)
    assert torch.allclose(first, again)  # velocity left from round 1 would add to the second move


def test_a_module_that_draws_random_numbers_is_seeded_by_peer_round_and_step() -> None:
    problem = task(Drawing(), shares([4, 4], [1, 8, 8]))
    assert problem.draws
    first, _ = trained(OneByOne(problem), problem)
    torch.manual_seed(99)
    again, _ = trained(OneByOne(problem), problem)
    assert torch.equal(first, again)


@pytest.mark.parametrize("make", [Vectorised, stacked])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_diverged_rows_do_not_affect_other_rows(make: Callable[[Task, int], Engine], optimizer: str) -> None:
    problem = task(nets()["mlp"][0], shares([6, 6, 6], [1, 8, 8]), optimizer=optimizer)
    healthy, _ = trained(make(problem, 3), problem, rounds=1)
    rows = problem.layout.read(problem.module)[0].expand(3, -1).clone()
    rows[1] = torch.nan
    make(problem, 3).train(rows, {}, torch.arange(3), 1)
    assert torch.allclose(rows[[0, 2]], healthy[[0, 2]], atol=1e-12)
    assert bool(rows[1].isnan().all())


def test_scalar_outputs_may_omit_the_last_axis() -> None:
    """A network that returns [b] where the targets are [b, 1] learns the same."""
    data = shares([6, 8], [3], outputs=1, regression=True)
    torch.manual_seed(0)
    layer = nn.Linear(3, 1)
    whole, flat = task(layer, data, loss=mse), task(nn.Sequential(layer, nn.Flatten(0)), data, loss=mse)
    assert torch.allclose(trained(Vectorised(whole, 2), whole)[0], trained(Vectorised(flat, 2), flat)[0], atol=1e-12)
    assert torch.allclose(trained(OneByOne(whole), whole)[0], trained(OneByOne(flat), flat)[0], atol=1e-12)


def test_training_no_peers_does_nothing() -> None:
    problem = task(nn.Sequential(nn.Linear(2, 3)), shares([4], [2], outputs=3))
    for engine in (Vectorised(problem, 1), stacked(problem, 1)):
        rows, _ = trained(engine, problem, peers=torch.zeros(0, dtype=torch.int64))
        assert torch.equal(rows[0], problem.layout.read(problem.module)[0])


class Unrecorded:
    """Stands in for a CUDA graph on a CPU: takes the step with the inputs at fixed addresses."""

    def __init__(self, step: Callable[..., None], inputs: Sequence[Tensor], changed: object, pool: object) -> None:
        self.step, self.inputs = step, [value.clone() for value in inputs]

    def __call__(self, *inputs: Tensor) -> None:
        for mine, given in zip(self.inputs, inputs, strict=True):
            mine.copy_(given)
        self.step(*self.inputs)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [*product(["mlp", "cnn", "dropout"], ["recorded", *COMPILED]), ("everything", "recorded")],  # buffers: not compiled
)
def test_steps_padded_for_cuda_graphs_agree(
    name: str, optimizer: str, kind: StepKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peers with fewer batches, or outside the list, stay as they are while others take a step of the same graph."""
    monkeypatch.setattr(vectorised, "RecordedStep", Unrecorded)
    monkeypatch.setattr(Vectorised, "_pool", None)
    monkeypatch.setattr(torch, "compile", lambda traced: traced)
    dropout = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 10))
    net, inputs = (dropout, (1, 8, 8)) if name == "dropout" else nets()[name]
    problem = task(net, shares(UNEQUAL, inputs), optimizer=optimizer, lr=0.01)
    some = torch.tensor([0, 2, 3, 5, 1])
    plain, kept = trained(Vectorised(problem, 5), problem, peers=some)
    padded, kept_padded = trained(Vectorised(problem, 5, kind), problem, peers=some)
    fewer, _ = trained(Vectorised(problem, 6, kind), problem, peers=some)
    assert float((plain - padded).abs().max()) < 1e-9
    assert float((plain - fewer).abs().max()) < 1e-9
    assert all(torch.equal(kept[n], kept_padded[n]) for n in kept)


def test_a_finished_peer_is_not_touched_by_the_steps_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its model may give no finite loss for the sample that pads its batch."""
    monkeypatch.setattr(vectorised, "RecordedStep", Unrecorded)
    monkeypatch.setattr(Vectorised, "_pool", None)
    problem = task(nn.Linear(2, 3), shares([8, 2], [2], outputs=3), batch=2, epochs=1)
    data = problem.data.train.x.clone()
    data[0] = torch.inf  # a sample of the first peer
    split = replace(problem.data.train, x=data)
    problem = replace(problem, data=replace(problem.data, train=split))
    rows, _ = trained(Vectorised(problem, 2, "recorded"), problem, rounds=1)
    assert bool(rows[0].isnan().any())
    assert torch.equal(rows[1], trained(Vectorised(problem, 2), problem, rounds=1)[0][1])


def test_few_workspaces_are_kept_while_peers_stop_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """With buffers that cannot be padded, there is one for a whole chunk and one for the last other number of peers."""
    monkeypatch.setattr(vectorised, "RecordedStep", Unrecorded)
    pools = iter(range(9))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))
    net, inputs = nets()["everything"]
    problem = task(net, shares([8] * 6, inputs))
    engine, plain = Vectorised(problem, 4, "recorded"), Vectorised(problem, 4)
    kept, pool = [], []
    for peers in (3, 2, 6, 5, 4, 3, 2):
        found, expected = (trained(one, problem, peers=torch.arange(peers)) for one in (engine, plain))
        assert torch.allclose(found[0], expected[0], atol=1e-9)
        kept.append(sorted(engine.rooms))
        pool.append(engine._pool)
    assert kept == [[3], [2], [2, 4], [1, 4], [1, 4], [3, 4], [2, 4]]
    assert pool == [0, 1, 2, 2, 2, 2, 2]  # a new one whenever no graph is left


@pytest.mark.parametrize("engine", [OneByOne, lambda problem: Vectorised(problem, 6)])
def test_bfloat16_is_used_in_products_only(engine: Callable[[Task], Engine]) -> None:
    """Rows stay float32 and move nearly as with float32; they would be equal if nothing were rounded to bfloat16."""
    net, inputs = nets()["mlp"]
    full = task(net, shares(UNEQUAL, inputs), torch.float32)
    short = replace(full, precision="bf16")
    expected, _ = trained(engine(full), full)
    found, _ = trained(engine(short), short)
    moved = (expected - full.layout.read(full.module)[0]).norm()
    assert found.dtype == torch.float32
    assert 1e-5 < float((found - expected).norm() / moved) < 0.05
    assert engine(short).predict(found, {}, full.data.test.x[:2].expand(6, 2, *inputs)).dtype == torch.float32


@pytest.mark.parametrize("keys", [{}, {"is_causal": True}, {"scale": 0.3}, {"enable_gqa": True}, {"masked": True}])
def test_written_out_attention_is_attention(keys: dict[str, Any]) -> None:
    query = torch.randn(2, 4, 5, 8)
    key, value = (torch.randn(2, 2 if keys.get("enable_gqa") else 4, 5, 8) for _ in range(2))
    if keys.pop("masked", False):
        keys["attn_mask"] = torch.rand(5, 5) < 0.7
        keys["attn_mask"].fill_diagonal_(True)
    expected = F.scaled_dot_product_attention(query, key, value, **keys)
    with WrittenOutAttention():
        assert torch.allclose(F.scaled_dot_product_attention(query, key, value, **keys), expected, atol=1e-6)


def test_written_out_attention_reaches_into_multihead_attention() -> None:
    """Its softmax is then torch.softmax, which autocast knows; the gradient of the fused form fails in bfloat16."""
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(2, 5, 8)
    expected, _ = layer(x, x, x, need_weights=False)
    with WrittenOutAttention(), profile(activities=[ProfilerActivity.CPU]) as seen:
        found, weights = layer(x, x, x, need_weights=False)
    assert torch.allclose(found, expected, atol=1e-6)
    assert weights is None
    assert not any("scaled_dot_product" in event.key for event in seen.key_averages())


@pytest.mark.parametrize(
    "keys",
    [
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": 3, "padding": "same"},
        {"kernel_size": (2, 3), "padding": "valid"},
        {"kernel_size": (3, 2), "stride": (2, 1), "padding": (0, 1), "dilation": (1, 2)},
        {"kernel_size": 1, "stride": 2, "bias": False},
        {"kernel_size": 3, "groups": 2},
        {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
    ],
)
def test_a_convolution_is_a_product_of_patches(keys: dict[str, Any]) -> None:
    layer, x = nn.Conv2d(4, 6, **keys).double(), torch.randn(2, 4, 7, 8, dtype=torch.float64, requires_grad=True)
    tensors = [x, *layer.parameters()]
    expected = layer(x)
    with PatchConvolutions(), profile(activities=[ProfilerActivity.CPU]) as seen:
        found = layer(x)
    assert torch.allclose(found, expected, atol=1e-12)
    gradients = (torch.autograd.grad(outputs.square().sum(), tensors) for outputs in (expected, found))
    assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(*gradients, strict=True))
    written_out = keys.get("padding") != "same" and "groups" not in keys
    assert written_out == (not any("convolution" in event.key for event in seen.key_averages()))


@pytest.mark.parametrize("name", ["mlp", "everything"])
def test_engines_agree_on_the_outputs_for_training_and_for_validation_samples(name: str) -> None:
    net, inputs = nets()[name]
    data = shares(UNEQUAL, inputs)
    problem = task(net, replace(data, validation=shares(UNEQUAL[::-1], inputs).train))
    rows, kept = trained(OneByOne(problem), problem)
    model, held = torch.tensor([0, 2, 1, 1]), torch.tensor([1, 0, 1, 2])
    makes: list[Engine] = [Vectorised(problem, 2), *([stacked(problem, 2)] if name == "mlp" else [])]
    outputs = {samples: OneByOne(problem).cross_evaluate(rows, kept, model, held, samples) for samples in SAMPLES}
    assert outputs["train"].shape[1] == max(UNEQUAL[:3])
    assert outputs["validation"].shape[1] == max(UNEQUAL[::-1][:3])
    for engine in makes:
        for samples, expected in outputs.items():
            assert torch.allclose(engine.cross_evaluate(rows, kept, model, held, samples), expected, atol=1e-9)


def test_a_loss_on_validation_samples_needs_them() -> None:
    net, inputs = nets()["mlp"]
    problem = task(net, shares(UNEQUAL, inputs))
    rows, kept = trained(OneByOne(problem), problem)
    with pytest.raises(UserError, match=r"losses on validation samples need them: set data\.validation"):
        OneByOne(problem).cross_evaluate(rows, kept, torch.tensor([0]), torch.tensor([1]), "validation")
