"""Optimizer classes by name train peers one by one, as a plain torch loop does."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import homophily
from homophily.errors import UserError
from homophily.simulation.configuration import make, over
from homophily.training.one_by_one import OneByOne
from homophily.training.task import Settings
from homophily.training.torch_optimisers import optimizer_class, torch_optimiser
from tests.training.nets import shares, task, trained


class Halving(torch.optim.SGD):
    """An optimizer of a user's own."""


@pytest.mark.parametrize("name", ["RMSprop", "torch.optim.RMSprop"])
def test_a_class_trains_like_a_plain_loop(name: str) -> None:
    keys = {"optimizer_options": {"alpha": 0.9, "centered": True}, "epochs": 4, "lr": 0.01}
    problem = task(
        nn.Linear(3, 2),
        shares([4], [3], outputs=2),
        optimizer=name,
        **keys,
    )
    found, _ = trained(OneByOne(problem), problem, rounds=1)
    net = nn.Linear(3, 2).double()
    net.load_state_dict(problem.module.state_dict())
    optimiser = torch.optim.RMSprop(net.parameters(), lr=0.01, alpha=0.9, centered=True)
    for _ in range(4):  # one batch per epoch: its order does not matter
        optimiser.zero_grad()
        x, y = problem.batch(torch.arange(4))
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    assert torch.allclose(found[0], problem.layout.read(net)[0], atol=1e-12)


@pytest.mark.parametrize(
    "name", ["ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Rprop", "SGD"]
)
def test_every_other_class_of_torch_trains(name: str) -> None:
    problem = task(nn.Linear(3, 2), shares([4], [3], outputs=2), optimizer=name, lr=0.01)
    rows, _ = trained(OneByOne(problem), problem, rounds=1)
    assert bool(rows.isfinite().all())
    assert not torch.equal(rows[0], problem.layout.read(problem.module)[0])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("contiguous", [True, False])
def test_sgd_takes_the_steps_of_torch(momentum: float, contiguous: bool) -> None:
    """Also if a parameter gets its first gradient in a later step, and another one never."""
    settings = Settings("sgd", momentum=momentum, nesterov=momentum > 0, weight_decay=0.1)
    start = [torch.randn(4, 6), torch.randn(5, 2), torch.randn(3, 2)]
    placed = [one.clone() if contiguous else one.mT.contiguous().mT for one in start]
    mine, theirs = ([nn.Parameter(one.clone()) for one in placed] for _ in range(2))
    assert all(parameter.is_contiguous() == contiguous for parameter in mine)
    ours = torch_optimiser(mine, settings, 0.1)
    torchs = torch.optim.SGD(theirs, 0.1, momentum, weight_decay=0.1, nesterov=momentum > 0, fused=False, foreach=True)
    for step in range(3):
        for parameters in (mine, theirs):
            for i, parameter in enumerate(parameters):
                chance = torch.Generator().manual_seed(10 * step + i)
                used = i == 0 or (i == 1 and step)
                parameter.grad = torch.randn(parameter.shape, generator=chance) if used else None
        ours.step()
        torchs.step()
    for one, other in zip(mine, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-6, rtol=1e-6)
    assert torch.equal(mine[2], start[2])
    assert not torch.equal(mine[1], start[1])


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_sparse_gradients_train_like_dense_ones(optimizer: str) -> None:
    class Words(nn.Module):
        def __init__(self, sparse: bool) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(8, 4, sparse=sparse), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.table(x).mean(1))

    data = shares([5, 7], [3], outputs=2)
    words = replace(data.train, x=data.train.x.abs().long().clamp(max=7))
    data = replace(data, train=words, test=words)
    nets = Words(sparse=True), Words(sparse=False)
    nets[0].load_state_dict(nets[1].state_dict())
    problems = [task(net, data, optimizer=optimizer, momentum=0.9, weight_decay=0.1, clip=1.0) for net in nets]
    sparse, dense = (trained(OneByOne(problem), problem)[0] for problem in problems)
    assert torch.equal(sparse, dense)


def test_a_class_of_ones_own_is_found_by_its_path() -> None:
    assert optimizer_class(f"{__name__}:Halving") is Halving
    with pytest.raises(UserError, match=r"must be a subclass of torch\.optim\.Optimizer"):
        optimizer_class("torch.nn:Linear")


def test_a_run_records_the_optimizer_and_why_it_trains_one_by_one(tmp_path: Path) -> None:
    training = {"optimizer": "RMSprop", "lr": 0.01, "optimizer_options": {"alpha": 0.9}}
    keys = {"peers": 4, "rounds": 2, "data": {"train": 5, "test": 5}, "method": "local", "training": training}
    run = homophily.run(keys, out=tmp_path / "run", device="cpu")
    assert run.about["plan"]["engine"] == "one-by-one"
    assert "training.optimizer = 'RMSprop'" in run.about["plan"]["why"]
    assert run.config.training.optimizer_options == {"alpha": 0.9}
    again = homophily.run(run.path / "config.toml", out=tmp_path / "again", device="cpu")
    assert again.scores == run.scores


def test_another_optimizer_drops_the_options_of_the_one_before() -> None:
    config = make({"training": {"optimizer": "RMSprop", "optimizer_options": {"alpha": 0.9}, "lr": 0.01}})
    assert over(config, {"training": {"lr": 0.1}}).training.optimizer_options == {"alpha": 0.9}
    assert over(config, {"training": {"optimizer": "adam"}}).training.optimizer_options == {}
