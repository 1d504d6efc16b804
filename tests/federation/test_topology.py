"""Graphs, hops and contact lists."""

from pathlib import Path

import networkx as nx
import pytest
import torch

from homophily.errors import UserError
from homophily.federation.contacts import view_of_all
from homophily.federation.topology import topologies
from homophily.methods import View

CPU = torch.device("cpu")


def seen(graph: object, peers: int, hops: int = 1, contacts: int | None = None) -> View:
    return view_of_all(peers, 3, graph, hops, contacts, None, CPU)


def known(view: View, peer: int) -> dict[int, int]:
    """The peers that a peer knows, and their distances."""
    there = view.known[peer]
    return dict(zip(view.contacts[peer][there].tolist(), view.hops[peer][there].tolist(), strict=True))


def test_in_a_full_topology_everyone_is_one_hop_away() -> None:
    view = seen(topologies.get("full")(peers=4), 4)
    assert known(view, 2) == {0: 1, 1: 1, 3: 1}


def test_contacts_are_the_peers_within_some_hops() -> None:
    ring = topologies.get("ring")(peers=7)
    assert known(seen(ring, 7), 0) == {1: 1, 6: 1}
    assert known(seen(ring, 7, hops=2), 0) == {1: 1, 2: 2, 5: 2, 6: 1}
    line = topologies.get("line")(peers=5)
    assert known(seen(line, 5, hops=3), 0) == {1: 1, 2: 2, 3: 3}
    assert known(seen(line, 5, hops=3), 2) == {0: 2, 1: 1, 3: 1, 4: 2}
    assert known(seen(topologies.get("star")(peers=5), 5, hops=2), 1) == {0: 1, 2: 2, 3: 2, 4: 2}


def test_a_torus_has_four_neighbours_each() -> None:
    torus = topologies.get("torus")(peers=100, seed=1, rows=10)
    assert {degree for _, degree in torus.degree} == {4}
    assert known(seen(torus, 100), 0) == {1: 1, 9: 1, 10: 1, 90: 1}
    assert len(known(seen(torus, 100, hops=2), 0)) == 12
    assert topologies.get("torus")(peers=12, seed=1).number_of_edges() == 24  # 3 by 4


def test_a_shuffled_torus_is_a_torus_on_which_clusters_are_scattered() -> None:
    plain, mixed, again, other = (
        topologies.get("torus")(peers=100, seed=seed, shuffle=shuffle)
        for seed, shuffle in ((1, False), (1, True), (1, True), (2, True))
    )
    assert sorted(mixed) == list(range(100))
    assert nx.is_isomorphic(plain, mixed)
    assert set(map(frozenset, mixed.edges)) == set(map(frozenset, again.edges)) != set(map(frozenset, other.edges))

    def inside(graph: "nx.Graph[int]") -> float:
        """The share of edges within one of four clusters of consecutive peers."""
        return sum(a // 25 == b // 25 for a, b in graph.edges) / graph.number_of_edges()

    assert inside(plain) > 0.7
    assert 0.15 < inside(mixed) < 0.35  # 24 of the 99 others are of the same cluster


def test_random_graphs_are_connected_with_the_requested_degrees() -> None:
    graph = topologies.get("random")(peers=60, seed=1)
    assert nx.is_connected(graph)
    assert {degree for _, degree in graph.degree} <= set(range(5, 11))
    assert len({degree for _, degree in graph.degree}) > 2
    again, other = (topologies.get("random")(peers=60, seed=s) for s in (1, 2))
    assert set(graph.edges) == set(again.edges) != set(other.edges)
    assert nx.is_connected(topologies.get("small-world")(peers=40, seed=1))
    assert nx.is_connected(topologies.get("erdos-renyi")(peers=40, seed=1, probability=0.2))


def test_edges_come_from_csv_and_graphml(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("from,to\n0,1\n1, 2\n\n2,3\n")
    assert known(seen(topologies.get("file")(peers=4, path=str(tmp_path / "edges.csv")), 4), 1) == {0: 1, 2: 1}
    (tmp_path / "excel.csv").write_text("\ufeff0,1\n1,2\n2,3\n3,0\n", encoding="utf-8")
    assert known(seen(topologies.get("file")(peers=4, path=str(tmp_path / "excel.csv")), 4), 0) == {1: 1, 3: 1}
    nx.write_graphml(nx.cycle_graph(4), tmp_path / "ring.graphml")
    assert known(seen(topologies.get("file")(peers=4, path=str(tmp_path / "ring.graphml")), 4), 0) == {1: 1, 3: 1}


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("torus", {"peers": 10, "seed": 0, "rows": 3}, r"topology\.rows = 3: 10 peers"),
        ("torus", {"peers": 7, "seed": 0}, r"topology\.rows"),
        ("random", {"peers": 8, "seed": 0}, r"topology\.low.*8 peers"),
        ("small-world", {"peers": 8, "seed": 0, "rewire": 2.0}, r"topology\.rewire = 2"),
        ("small-world", {"peers": 8, "seed": 0, "degree": 5}, r"topology\.degree = 5.*even"),
        ("erdos-renyi", {"peers": 30, "seed": 0, "probability": 0.001}, r"topology\.probability = 0\.001"),
        ("erdos-renyi", {"peers": 30, "seed": 0, "probability": 0.0}, r"topology\.probability = 0"),
        ("file", {"peers": 4, "path": "nowhere.csv"}, r"topology\.path: cannot read nowhere\.csv"),
    ],
)
def test_impossible_graphs_are_refused(name: str, keys: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        topologies.get(name)(**keys)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,1\n1,2\n", "3 peers"),
        ("0,1\nx,y\n", "line 2"),
        ("0;1\n1,2\n2,3\n", "line 1"),
        ("0,1\n2,3\n", "must be connected, but has 2 components"),
        ("0,1\n1,2\n2,9\n", "must contain each peer from 0 to 3"),
    ],
)
def test_unsuitable_topology_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "edges.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        seen(topologies.get("file")(peers=4, path=str(tmp_path / "edges.csv")), 4)


def test_degrees_that_are_hard_to_draw_are_still_drawn() -> None:
    graph = topologies.get("random")(peers=12, seed=0, low=5, high=11)
    assert nx.is_connected(graph)
