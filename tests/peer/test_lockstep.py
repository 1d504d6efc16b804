"""In lockstep real peers, a process each, end with the very weights of the simulation."""

from math import prod
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from homophily.config import make
from homophily.peer.deploy import Deployment, deploy

NORMAL = {"name": "tests.peer.test_lockstep:normalised"}
QUICK: dict[str, Any] = {"rounds": 3, "data": {"train": 20, "test": 10, "angles": [0, 180]}}


def normalised(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    layers = nn.Linear(prod(inputs), 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, outputs)
    return nn.Sequential(nn.Flatten(), *layers)


def played(folder: Path, peers: int, **keys: Any) -> Deployment:
    return deploy(make({**QUICK, **keys}), peers, folder, progress=lambda text: None)


def assert_identical(found: Deployment) -> None:
    result = found.result()
    assert result["largest_difference"] == 0.0
    assert result["identical"] is True
    assert result["accuracy"] == pytest.approx(result["simulated_accuracy"])
    lines = [line for run in found.peers for line in run.metrics()]
    assert [line["unreachable"] for line in lines] == [[]] * len(lines)
    assert any(line["merged"] for line in lines), "peers that never merge prove nothing"


@pytest.mark.parametrize(
    "method",
    [{"name": "panm", "k": 2, "t1": 2}, {"name": "dac", "k": 2}, {"name": "kin", "k": 2}],
    ids=lambda m: m["name"],
)
def test_eight_peers_do_what_the_simulation_does(method: dict[str, Any], tmp_path: Path) -> None:
    assert_identical(played(tmp_path, 8, method=method))


def test_dpg_on_a_torus_does_what_the_simulation_does(tmp_path: Path) -> None:
    found = played(tmp_path, 16, method={"name": "dpg"}, topology={"name": "torus", "rows": 4}, rounds=2)
    assert_identical(found)


def test_personal_layers_stay_with_their_peers(tmp_path: Path) -> None:
    found = played(tmp_path, 4, method={"name": "dac", "k": 2}, model={"name": "mlp", "personal": ["3"]})
    assert_identical(found)


def test_a_last_batch_of_one_joins_the_one_before_where_batches_are_normalised(tmp_path: Path) -> None:
    data, training = {"train": 21, "test": 10, "angles": [0, 180]}, {"batch": 20}
    assert_identical(played(tmp_path, 2, method={"name": "random", "k": 1}, data=data, training=training, model=NORMAL))


def test_models_from_two_hops_away_come_over_others(tmp_path: Path) -> None:
    """On a ring of five everyone is within two hops, and half of the models pass through somebody."""
    found = played(tmp_path, 5, method={"name": "random", "k": 4, "hops": 2}, topology="ring")
    assert_identical(found)
    for run in found.peers:
        assert [len(line["merged"]) for line in run.metrics()] == [4] * 3


def test_who_stops_early_is_not_waited_for_and_goes_on_answering(tmp_path: Path) -> None:
    data = {"train": 20, "test": 10, "validation": 10}
    method, training = {"name": "random", "k": 2}, {"patience": 1, "lr": 0.5}
    found = played(tmp_path, 4, rounds=12, data=data, method=method, training=training)
    assert_identical(found)
    assert len({len(run.metrics()) for run in found.peers}) > 1


def test_kin_does_without_those_who_have_too_few_samples(tmp_path: Path) -> None:
    data = {"train": 1, "test": 10, "angles": [0, 180]}
    found = played(tmp_path, 3, data=data, method={"name": "kin", "k": 1}, rounds=2)
    assert found.result()["identical"] is True
