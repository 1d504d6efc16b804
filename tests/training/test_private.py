"""Private training: what a step computes, the engines against each other, and where random numbers come from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import binom
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from homophily.data.transforms import BatchTransform
from homophily.data.transforms import Draws as Chance
from homophily.federation.layout import Layout
from homophily.models import models
from homophily.privacy.draws import Draws, KeyedDraws, SecretDraws
from homophily.training.engines import read_chain
from homophily.training.objectives import FedProx, FedRep, Objective
from homophily.training.one_by_one import OneByOne
from homophily.training.private import Private, batch_room, clipped_sum
from homophily.training.schedule import batches
from homophily.training.stacked.cpu import Stacked
from homophily.training.task import Task
from homophily.training.vectorised import Vectorised
from tests.training.nets import shares, task, trained

COUNTS = [9, 5, 12, 4, 8, 2]
KEYED = KeyedDraws()


def private(counts: list[int], noise: float = 0.7, batch: int = 4, draws: Draws = KEYED) -> Private:
    n = torch.tensor(counts, dtype=torch.float64)
    steps = (n / batch).round().clamp(min=1).long()
    full = torch.full_like(n, batch)
    return Private(0.5, torch.full_like(n, noise), (batch / n).clamp(max=1), full, steps, max(counts), draws)


def problem(net: nn.Module | None = None, inputs: tuple[int, ...] = (6,), noise: float = 0.7, **settings: Any) -> Task:
    torch.manual_seed(3)
    net = net or models.get("mlp")(inputs=inputs, outputs=10, hidden=[5])
    return replace(task(net, shares(COUNTS, inputs), **settings), private=private(COUNTS, noise))


NETS = {
    "mlp": lambda: (models.get("mlp")(inputs=(6,), outputs=10, hidden=[5]), (6,)),
    "dropout": lambda: (nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.Linear(8, 10)), (6,)),
    "linear": lambda: (models.get("linear")(inputs=(6,), outputs=10), (6,)),
    "cnn": lambda: (models.get("cnn")(inputs=(1, 14, 14), outputs=10), (1, 14, 14)),
    "channels last": lambda: (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 10)).to(memory_format=torch.channels_last),
        (3, 6, 6),
    ),
}


@pytest.mark.parametrize("name", list(NETS))
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_vectorised_engine_agrees_with_the_reference(name: str, optimizer: str) -> None:
    torch.manual_seed(3)
    given = problem(*NETS[name](), optimizer=optimizer, weight_decay=1e-3, clip=2.0)
    plain, _ = trained(OneByOne(given), given)
    for chunk in (2, 6):
        fast, _ = trained(Vectorised(given, chunk), given)
        assert float((plain - fast).abs().max()) < 1e-8


class Constant(Objective):
    """A penalty that does not depend on the weights."""

    def penalty(self, weights: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> Tensor:
        return torch.ones(())


def test_a_penalty_without_a_gradient_changes_nothing() -> None:
    given = problem()
    plain, _ = trained(OneByOne(given), given)
    constant = replace(given, objective=Constant())
    for engine in (OneByOne(constant), Vectorised(constant, 6)):
        assert float((plain - trained(engine, constant)[0]).abs().max()) < 1e-8


@pytest.mark.parametrize("name", ["mlp", "linear", "cnn", "channels last"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(("chunk", "workers"), [(2, 2), (6, 1)])
def test_the_stacked_engine_agrees_with_the_reference(name: str, optimizer: str, chunk: int, workers: int) -> None:
    given = problem(*NETS[name](), optimizer=optimizer, weight_decay=1e-3, clip=2.0)
    plain, _ = trained(OneByOne(given), given)
    assert float((plain - trained(stacked(given, chunk, workers), given)[0]).abs().max()) < 1e-8


def stacked(given: Task, chunk: int = 6, workers: int = 1) -> Stacked:
    chain = read_chain(given.module, given.layout, given.loss, given.data)
    assert not isinstance(chain, str)
    return Stacked(given, chain, chunk, workers)


def test_the_penalty_of_an_objective_is_added_after_the_noise() -> None:
    given = replace(problem(), objective=FedProx(mu=0.5))
    plain, _ = trained(OneByOne(given), given)
    fast, _ = trained(Vectorised(given, 6), given)
    assert float((plain - fast).abs().max()) < 1e-8
    assert float((plain - trained(OneByOne(problem()), problem())[0]).abs().max()) > 1e-4


def test_phases_train_their_layers_only() -> None:
    given = problem(models.get("mlp")(inputs=(6,), outputs=10, hidden=[5]))
    layout = Layout.of(given.module, ["3*"])
    assert any(column.personal for column in layout.columns)
    given = replace(given, layout=layout, objective=FedRep(head_epochs=1))
    plain, _ = trained(OneByOne(given), given)
    fast, _ = trained(Vectorised(given, 6), given)
    assert float((plain - fast).abs().max()) < 1e-8


def test_a_step_is_the_noised_sum_of_clipped_gradients_over_the_expected_batch() -> None:
    given = replace(problem(noise=0.0, momentum=0.0, epochs=1), data=shares([12], (6,)))
    given = replace(given, private=replace(private([12], 0.0), steps=torch.tensor([1])))
    given = replace(given, seed=given.seed[:1], ids=given.ids[:1])
    assert given.private is not None
    position, inside = given.private.drawn(
        given.seed, given.ids, given.private.rate, torch.tensor([12]), 1, torch.tensor([0])
    )
    total = torch.zeros(given.layout.trainable, dtype=torch.float64)
    parameters = list(given.module.parameters())
    x, y = given.batch(position[0, inside[0]])
    assert 0 < len(x) < 12
    for i in range(len(x)):
        found = torch.autograd.grad(given.loss(given.module(x[i : i + 1]), y[i : i + 1]).sum(), parameters)
        each = torch.cat([g.flatten() for g in found])
        total += each * min(1.0, 0.5 / float(each.norm()))
    start = given.layout.read(given.module)[0]
    rows, _ = trained(Vectorised(given, 1), given, rounds=1)
    assert torch.allclose(rows[0], start - 0.05 * total / 4, atol=1e-10)


def test_one_sample_changes_the_sum_by_at_most_the_clip() -> None:
    gradients = torch.randn(7, 30, dtype=torch.float64) * torch.tensor([0.01, 0.1, 1, 10, 100, 1e6, 1])[:, None]
    gradients[6, 3] = torch.nan
    every = torch.ones(7)
    for one in range(7):
        without = every.clone()
        without[one] = 0
        change = clipped_sum(gradients, every, 0.5) - clipped_sum(gradients, without, 0.5)
        assert float(change.norm()) <= 0.5 * (1 + 1e-12)
    assert float(clipped_sum(gradients[6:], every[6:], 0.5).abs().max()) == 0


ENGINES = {
    "one-by-one": OneByOne,
    "vectorised": lambda task: Vectorised(task, 6),
    "stacked": lambda task: stacked(task),
}


@pytest.mark.parametrize("engine", list(ENGINES.values()), ids=list(ENGINES))
def test_a_sample_with_infinite_gradients_does_not_make_a_model_diverge(engine: Any) -> None:
    """So the flag that a model has diverged tells nothing about a sample."""
    given = problem()
    x = given.data.train.x.clone()
    x[::3] = torch.inf
    given = replace(given, data=replace(given.data, train=replace(given.data.train, x=x)))
    rows, _ = trained(engine(given), given)
    assert bool(rows.isfinite().all())


def test_noise_has_the_stated_deviation_and_differs_from_step_to_step() -> None:
    chosen, peer = private([100], 3.0), torch.tensor([0])
    zero = torch.zeros(1, 20000, dtype=torch.float64)
    first, second = (chosen.noised(zero, peer + 7, peer, peer, 1, peer + step)[0] * 4 for step in (0, 1))
    assert float(first.std()) == pytest.approx(0.5 * 3.0, rel=0.03)
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.03


def test_each_sample_is_drawn_independently_with_the_rate() -> None:
    chosen, one = private([200], batch=20), torch.tensor([0])
    counts = torch.tensor([200])
    sizes = torch.tensor([int(chosen.drawn(one, one, chosen.rate, counts, 1, one + s)[1].sum()) for s in range(400)])
    assert float(sizes.double().mean()) == pytest.approx(20, rel=0.05)
    assert float(sizes.double().var()) == pytest.approx(200 * 0.1 * 0.9, rel=0.3)


@pytest.mark.parametrize(("samples", "rate", "steps", "delta"), [(200, 0.05, 3600, 1e-7), (600, 0.5, 60, 1e-8)])
@pytest.mark.parametrize("epsilon", [0.0, 8.0])
def test_a_batch_overflows_rarely_enough(samples: int, rate: float, steps: int, delta: float, epsilon: float) -> None:
    room = batch_room(samples, rate, steps, epsilon, delta)
    added = [(1 + math.exp(epsilon)) * steps * binom.sf(size, samples, rate) for size in (room, room - 2)]
    assert added[0] <= delta < added[1]


def test_a_batch_has_room_for_all_samples_if_epsilon_is_huge() -> None:
    assert batch_room(50, 0.5, 10, 1000.0, 1e-7) == 50


def test_samples_that_do_not_fit_are_left_out() -> None:
    chosen, one = replace(private([200], batch=100), room=30), torch.tensor([0])
    position, inside = chosen.drawn(one, one, chosen.rate, torch.tensor([200]), 1, one)
    assert position.shape == (1, 30)
    assert bool(inside.all())


def _keys(count: int) -> tuple[Tensor, Tensor, int, Tensor, Tensor]:
    one = torch.tensor([[0]])
    return one, one, 1, one, torch.arange(count)


def test_draws_of_a_simulation_do_not_predict_those_of_a_real_peer() -> None:
    simulated, again, secret = (
        source.normal(*_keys(5000))[0] for source in (KeyedDraws(), KeyedDraws(), SecretDraws())
    )
    assert torch.equal(simulated, again)
    other = SecretDraws().normal(*_keys(5000))[0]
    for a, b in ((simulated, secret), (secret, other)):
        assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 0.06
    assert float(secret.std()) == pytest.approx(1, rel=0.05)
    picked = [source.uniform(*_keys(5000))[0] < 0.5 for source in (KeyedDraws(), SecretDraws())]
    assert float((picked[0] == picked[1]).double().mean()) == pytest.approx(0.5, abs=0.05)


def test_nobody_predicts_how_a_real_peer_transforms_its_samples() -> None:
    """A sample is transformed by its place in the data: if places were public, one sample more would change others."""

    def moved(x: Tensor, chance: Chance) -> Tensor:
        return x + chance.normal(*x.shape[1:])

    given = replace(problem(), transform=BatchTransform([moved]))
    assert given.private is not None
    plain, _ = trained(OneByOne(given), given)
    assert float((plain - trained(Vectorised(given, 6), given)[0]).abs().max()) < 1e-8
    assert float((plain - trained(stacked(given), given)[0]).abs().max()) < 1e-8
    sources = (KeyedDraws(), KeyedDraws(), SecretDraws(), SecretDraws())
    of_all = replace(given.private, rate=torch.ones(len(COUNTS), dtype=torch.float64))
    tasks = [replace(given, private=replace(of_all, draws=source)) for source in sources]
    keys = [next(batches(one, torch.tensor([0]), 1, range(1))).keys for one in tasks]
    simulated, again, secret, other = (one for one in keys if one is not None)
    assert torch.equal(simulated, again)
    assert simulated.shape == secret.shape == (1, COUNTS[0])
    for a, b in ((simulated, secret), (secret, other)):
        assert not bool((a == b).any())


class Branches(nn.Module):
    """Uses other parameters for other samples: by a condition in Python, or by a mask that gives the same."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.masked, self.left, self.right = masked, nn.Linear(6, 10), nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        if self.masked:
            return torch.where(x[:, :1] > 0, self.left(x), self.right(x))
        return torch.cat([(self.left if float(one[0]) > 0 else self.right)(one[None]) for one in x])


class Tokens(nn.Module):
    """Rounds its inputs to tokens; the gradient of its embeddings may be sparse."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(4, 5, sparse=sparse), nn.Linear(5, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.tokens(x.abs().long().clamp(max=3)).mean(1))
        return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("clip", [1e-12, 1.0, 1e12])
def test_a_sample_changes_a_sum_by_at_most_the_clip_however_the_sum_is_rounded(dtype: torch.dtype, clip: float) -> None:
    torch.manual_seed(0)
    gradients, mask = torch.rand(20000, 50).to(dtype) * clip, torch.ones(20000)
    without = mask.clone()
    without[0] = 0
    change = clipped_sum(gradients, mask, clip) - clipped_sum(gradients, without, clip)
    assert 0.9 * clip < float(change.norm()) <= (1 + 1e-6) * clip
    for size in (1e-30, 1e-20, 1e-10, 1.0, 1e18, 1e37):
        one = clipped_sum(torch.full((1, 100), size, dtype=dtype), torch.ones(1), clip)
        assert float(one.norm()) <= (1 + 1e-6) * clip


class Largest(TorchDispatchMode):
    """Notes the bytes of the largest tensor that an operation computes."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor):  # not the lists of views that torch.split returns
            self.bytes = max(self.bytes, found.nbytes)
        return found


def test_gradients_are_clipped_without_a_second_table_of_them() -> None:
    gradients, mask = torch.randn(64, 100_000), (torch.arange(64) % 5 > 0).float()
    with Largest() as largest:
        found = clipped_sum(gradients, mask, 2.0)
    assert largest.bytes < gradients.nbytes / 2
    expected = (2.0 * gradients.double() / gradients.double().norm(dim=1, keepdim=True))[mask > 0].sum(0)
    assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("kind", [Branches, Tokens])
def test_a_sample_need_not_use_all_parameters_and_gradients_may_be_sparse(kind: Any) -> None:
    nets = kind(False), kind(True)
    nets[1].load_state_dict(nets[0].state_dict())
    one, other = (trained(OneByOne(given), given)[0] for given in map(problem, nets))
    assert float((one - other).abs().max()) < 1e-8
