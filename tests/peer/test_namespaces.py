"""Real peers in network namespaces: partitions, lost packets, slow links."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations, product
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

import homophily
from homophily.peer.deploy import Deployment
from tests.peer.field import ENDLESS
from tests.peer.namespaces import Network, SpreadField, obstacle

needs_namespaces = pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))
needs_nft = pytest.mark.skipif(obstacle("nft") is not None, reason=str(obstacle("nft")))
needs_tc = pytest.mark.skipif(obstacle("tc") is not None, reason=str(obstacle("tc")))


@contextmanager
def spread(network: Network, folder: Path, pace: str = "free", **keys: Any) -> Iterator[SpreadField]:
    peers = SpreadField(network, folder, pace, **keys)
    try:
        yield peers
    finally:
        peers.close()


@needs_namespaces
def test_a_network_partition_splits_the_federation_until_it_ends(tmp_path: Path) -> None:
    across = list(product((0, 1), (2, 3)))
    with Network(4, combinations(range(4), 2)) as network, spread(network, tmp_path / "field") as peers:
        peers.start(0, 1, 2, 3)
        peers.all_meet(0, 1, 2, 3)
        network.cut(*across)
        peers.all_meet(0, 1)
        peers.all_meet(2, 3)
        peers.go_on(0, 1, 2, 3)
        network.join(*across)
        peers.all_meet(0, 1, 2, 3)


@needs_nft
def test_lost_packets_change_no_byte(tmp_path: Path) -> None:
    keys = {"rounds": 5, "method": {"name": "dac", "k": 2}, "extra_metrics": []}
    with (
        Network(4, combinations(range(4), 2)) as network,
        spread(
            network, tmp_path / "field", "lockstep", peer={"wait_for": 3, "deadline": 120.0, "lease": 20.0}, **keys
        ) as peers,
    ):
        network.lose(2)
        peers.start(0, 1, 2, 3)
        assert [peers.end(i) for i in range(4)] == [0] * 4
        assert network.lost()
        simulation = homophily.run({**ENDLESS, **keys, "peers": 4}, out=tmp_path / "simulation", device="cpu")
        found = Deployment(peers.folder, [peers.run(i) for i in range(4)], simulation, 0.0).result()
    assert found["identical"] is True


@pytest.mark.slow
@pytest.mark.timeout(5400)
@needs_tc
def test_large_models_cross_a_torus_of_slow_links(tmp_path: Path) -> None:
    """4 x 4 peers, models of 20 MB, 4 pulls a round, links of 200 Mbit/s: 20 rounds without a pull that fails."""
    links = nx.convert_node_labels_to_integers(nx.grid_2d_graph(4, 4, periodic=True), ordering="sorted").edges
    keys = {
        "rounds": 20,
        "method": {"name": "random", "k": 4, "hops": 2},
        "topology": {"name": "torus", "rows": 4},
        "model": {"name": "mlp", "hidden": [2048, 2304]},
        "extra_metrics": [],
    }
    patience = {"deadline": 600.0, "lease": 20.0, "wait_for": 15, "cache_mb": 128}
    with Network(16, links) as network, spread(network, tmp_path / "field", "lockstep", peer=patience, **keys) as peers:
        network.slow_down("200mbit")
        peers.start(*range(16))
        assert [peers.end(i, seconds=5000) for i in range(16)] == [0] * 16
        for i in range(16):
            lines = peers.lines(i)
            assert [len(line["met"]) for line in lines] == [4] * 20
            assert [line["unreachable"] for line in lines] == [[]] * 20
