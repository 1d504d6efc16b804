"""Linear models in three clusters: methods that search for similar peers find them, random does not."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import homophily
from homophily import PeerData
from homophily.federation.similarity import Pairs

PEERS, CLUSTERS = 18, 3

pytestmark = pytest.mark.usefixtures("here")


def federation() -> list[PeerData]:
    """Each cluster has its own coefficients, far from the others'."""
    chance = np.random.default_rng(0)
    peers = []
    for i in range(PEERS):
        theta = np.eye(CLUSTERS)[i % CLUSTERS] * 4 - 1
        x = chance.normal(size=(40, CLUSTERS)).astype(np.float32)
        y = x @ theta + 0.1 * chance.normal(size=40)
        peers.append(PeerData(x=x, y=y.astype(np.float32), cluster=i % CLUSTERS))
    return peers


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(CLUSTERS, 1)


def inside(method: dict[str, Any], rounds: int, **keys: Any) -> float:
    """The share of same-cluster merges in the last ten rounds."""
    config = {"rounds": rounds, "method": method, "evaluate": rounds, **keys}
    found = homophily.run(config, model=network(), data=federation())
    shares = [line["same_cluster_merges"] for line in found.metrics()[-10:]]
    return float(np.mean([share for share in shares if share is not None]))


@pytest.mark.parametrize(
    ("method", "rounds"),
    [
        ({"name": "panm", "k": 3, "l": 6, "t1": 10, "tau": 5}, 25),
        ({"name": "panm", "metric": "panm", "k": 3, "l": 8, "t1": 18, "tau": 5}, 20),
        ({"name": "dac", "k": 3, "tau": 30.0}, 25),
        ({"name": "dac", "k": 3, "tau": 30.0, "estimate": False}, 50),
        ({"name": "dac-var", "k": 3, "metric": "cosine-gradients"}, 40),
        ({"name": "dpg", "k": 3, "rho": 0.05}, 60),
        ({"name": "oracle", "k": 3}, 10),
    ],
)
def test_peers_of_a_cluster_find_each_other(method: dict[str, Any], rounds: int) -> None:
    assert inside(method, rounds) >= 0.95


def test_random_stays_near_the_base_rate() -> None:
    assert abs(inside({"name": "random", "k": 3}, 20) - 5 / 17) < 0.1


def test_pens_does_better_than_chance() -> None:
    assert inside({"name": "pens", "k": 3, "l": 8, "t1": 20}, 30) > 0.6


def test_ifca_sorts_clients_by_cluster_and_fedavg_cannot() -> None:
    def error(method: dict[str, Any]) -> float:
        config = {"rounds": 20, "method": method, "init": "common"}
        return float(homophily.run(config, model=network(), data=federation()).summary["mse"])

    assert error({"name": "fedavg"}) > 5.0
    built = {"rounds": 20, "seed": 1, "method": {"name": "ifca", "models": 5}, "model": {"name": "linear"}}
    assert homophily.run(built, data=federation()).summary["mse"] < 0.1


def test_a_server_costs_all_its_models_and_one_back() -> None:
    config = {"rounds": 4, "method": {"name": "ifca", "models": 3}, "model": {"name": "linear"}}
    found = homophily.run(config, data=federation()).summary
    assert found["models_sent_per_peer"] == found["nominal_models_per_peer"] == 4 * (3 + 1)
    half = {**config, "method": {"name": "fedavg", "fraction": 0.5}}
    assert homophily.run(half, data=federation()).summary["models_sent_per_peer"] == 4 * 2 * 0.5


@pytest.mark.parametrize("merge", ["fedavg", "fedsim", "median", "trimmed-mean", "krum"])
def test_every_merge_works_with_a_method_that_compares(merge: str) -> None:
    assert inside({"name": "dac", "k": 3}, 25, merge=merge) >= 0.9


@pytest.mark.parametrize(
    "topology", [{"name": "torus", "rows": 3}, {"name": "ring"}, {"name": "star"}, {"name": "random"}]
)
@pytest.mark.parametrize("name", ["local", "random", "fix-topology", "oracle", "pens", "panm", "dac", "dpg"])
def test_every_method_runs_on_every_topology(topology: dict[str, Any], name: str) -> None:
    config = {"rounds": 6, "topology": topology, "method": {"name": name}, "evaluate": 6}
    found = homophily.run(config, model=network(), data=federation()).summary
    assert np.isfinite(found["mse"])
    far = {int(hops) for hops in found["models_per_peer_round_by_hops"]}
    assert far <= ({1, 2} if name in ("oracle", "dpg") else {1})


def test_on_peer_sends_another_model_and_the_panm_metric_twice_the_bytes() -> None:
    def sent(**keys: Any) -> tuple[float, float]:
        config = {"rounds": 3, "method": {"name": "dac", "k": 3, "estimate": False, **keys}}
        found = homophily.run(config, model=network(), data=federation()).summary
        return found["models_sent_per_peer"], found["bytes_sent_per_peer"]

    models, size = sent()
    assert (models, size) == (9, 9 * 4 * (CLUSTERS + 1))
    assert sent(on="peer") == (2 * models, 2 * size)
    assert sent(metric="panm") == (models, 2 * size)


def test_updates_are_sent_for_a_metric_that_does_not_declare_its_cost() -> None:
    config = {"rounds": 3, "method": {"name": "dac", "k": 3, "estimate": False, "metric": f"{__name__}:nearness"}}
    found = homophily.run(config, model=network(), data=federation()).summary
    assert found["models_sent_per_peer"] == 9
    assert found["bytes_sent_per_peer"] == 9 * 2 * 4 * (CLUSTERS + 1)


def nearness(pairs: Pairs) -> Tensor:
    return -(pairs.mine - pairs.yours).norm(dim=1).double()


@pytest.mark.parametrize(("rounds", "entries"), [(1, 0), (2, 3)])
def test_the_tables_of_dac_count_as_bytes(rounds: int, entries: int) -> None:
    """No table in the first round; in the second, an id and a number for each peer met in the first."""

    def size(estimate: bool) -> float:
        config = {"rounds": rounds, "method": {"name": "dac", "k": 3, "estimate": estimate}}
        return float(homophily.run(config, model=network(), data=federation()).summary["bytes_sent_per_peer"])

    assert size(True) - size(False) == 3 * entries * (8 + 8)


def test_the_tables_of_dac_fill_up() -> None:
    def size(rounds: int) -> float:
        config = {"rounds": rounds, "method": {"name": "dac", "k": PEERS - 1, "tau": 1.0}}
        return float(homophily.run(config, model=network(), data=federation()).summary["bytes_sent_per_peer"])

    assert size(3) - size(2) == (PEERS - 1) * (4 * (CLUSTERS + 1) + (PEERS - 1) * (8 + 8))


def test_a_note_says_that_the_estimates_of_dac_cannot_apply() -> None:
    def notes(topology: str) -> list[str]:
        config = {"rounds": 1, "topology": topology, "method": {"name": "dac", "k": 2}}
        found = homophily.run(config, model=network(), data=federation())
        return list(found.summary["notes"])

    assert "estimates cannot apply" in notes("ring")[0]
    assert notes("full") == []
    assert notes("small-world") == []
