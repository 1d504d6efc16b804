"""Learning rates and epochs by peer: how a config names them, and that each peer trains as with its own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import homophily
from homophily.config.schema import Training
from homophily.errors import UserError
from homophily.models import models
from homophily.training.one_by_one import OneByOne
from homophily.training.per_peer import PeerNames, values_by_peer
from homophily.training.task import Task
from homophily.training.vectorised import Vectorised
from tests.training.nets import shares, task, trained
from tests.training.test_engines import UNEQUAL, stacked

PEERS = PeerNames(["ann", "bob", "cid"], ["north", "south", "south"])
RATES, EPOCHS = [0.1, 0.05, 0.1, 0.02, 0.05, 0.07], [1, 3, 2, 3, 2, 1]


def rates(given: Any, peers: PeerNames = PEERS) -> list[float]:
    return values_by_peer(Training(lr=0.3, lr_by_peer=given), peers)["lr"]


def test_values_are_a_list_or_a_table_by_peer_and_cluster() -> None:
    assert rates([0.1, 0.2, 0.4]) == [0.1, 0.2, 0.4]
    assert rates({"bob": 0.1}) == [0.3, 0.1, 0.3]
    assert rates({"south": 0.1}) == [0.3, 0.1, 0.1]
    assert rates({"south": 0.1, "cid": 0.2}) == [0.3, 0.1, 0.2]
    assert values_by_peer(Training(), PEERS) == {}
    assert values_by_peer(Training(epochs_by_peer={"north": 7}), PEERS) == {"epochs": [7, 3, 3]}


@pytest.mark.parametrize(
    ("given", "peers", "says"),
    [
        ([0.1], PEERS, r"training\.lr_by_peer has 1 values, but there are 3 peers"),
        ({"dan": 0.1}, PEERS, "no peer or cluster is called 'dan'; there are north, south, ann, bob, cid"),
        ({"1": 0.1}, PeerNames(["0", "1"], ["1", "1"]), "'1' is the name of both a peer and a cluster"),
    ],
)
def test_a_list_of_another_length_and_an_unknown_name_are_refused(given: Any, peers: PeerNames, says: str) -> None:
    with pytest.raises(UserError, match=says):
        rates(given, peers)


def test_simulated_peers_are_called_by_name_else_by_number() -> None:
    data = shares([2, 2, 2], [3]).roster
    assert list(PeerNames.of(data).names) == ["0", "1", "2"]
    assert list(PeerNames.of(replace(data, names=("ann", None, "cid"))).names) == ["ann", "1", "cid"]
    named = replace(data, cluster=torch.tensor([0, 1, 0]), cluster_names=("north", "south"))
    assert list(PeerNames.of(named).clusters) == ["north", "south", "north"]


def by_peer(**keys: object) -> Task:
    torch.manual_seed(3)
    problem = task(models.get("mlp")(inputs=(6,), outputs=10), shares(UNEQUAL, (6,)), **keys)
    lr = torch.tensor(RATES, dtype=torch.float64)
    return replace(problem, lr_by_peer=lr, epochs_by_peer=torch.tensor(EPOCHS))


@pytest.mark.parametrize("keys", [{}, {"momentum": 0.0}, {"optimizer": "adam"}], ids=["momentum", "plain", "Adam"])
def test_each_peer_trains_as_in_a_run_with_its_own_settings(keys: dict[str, object]) -> None:
    problem = by_peer(**keys)
    found, _ = trained(OneByOne(problem), problem)
    for engine in (Vectorised(problem, 4), stacked(problem, 4), stacked(problem, 1)):
        assert float((found - trained(engine, problem)[0]).abs().max()) < 1e-9
    for peer, (lr, epochs) in enumerate(zip(RATES, EPOCHS, strict=True)):
        own = replace(problem.settings, lr=lr, epochs=epochs)
        alone = replace(problem, settings=own, lr_by_peer=None, epochs_by_peer=None)
        rows, _ = trained(OneByOne(alone), alone, peers=torch.tensor([peer]))
        assert torch.equal(rows[peer], found[peer])


def test_a_run_takes_rates_by_cluster_and_epochs_by_peer(tmp_path: Path) -> None:
    base = {"peers": 4, "rounds": 2, "data": {"train": 10, "test": 5}, "method": "local", "engine": "one-by-one"}
    training = {"lr_by_peer": {"90°": 0.2}, "epochs_by_peer": [1, 1, 2, 1]}
    run = homophily.run({**base, "training": {"epochs": 5, **training}}, out=tmp_path / "run", device="cpu")
    assert run.config.training.lr_by_peer == {"90°": 0.2}
    expected = [(0.05, 1), (0.2, 1), (0.05, 2), (0.05, 1)]
    for peer, (lr, epochs) in enumerate(expected):
        keys = {**base, "training": {"lr": lr, "epochs": epochs}}
        alone = homophily.run(keys, out=tmp_path / str(peer), device="cpu")
        for name, weights in alone.model(peer).state_dict().items():
            assert np.array_equal(weights, run.model(peer).state_dict()[name])
