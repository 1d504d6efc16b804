"""Topologies: graphs by name or from a file."""

from __future__ import annotations

import csv
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import networkx as nx
import torch
from pydantic import Field

from homophily.errors import UserError
from homophily.plugins.registry import Registry
from homophily.randomness import Purpose, bits, word

Topology = Callable[..., "nx.Graph[int] | None"]

topologies: Registry[Topology] = Registry("topology", passed=("peers", "seed"))

_TRIES = 200


@topologies("full")
def full(peers: int) -> None:
    """Every peer can reach every other in one hop."""


@topologies("ring")
def ring(peers: int) -> Any:
    """Every peer has two neighbours, in a circle."""
    return nx.cycle_graph(peers)


@topologies("line")
def line(peers: int) -> Any:
    """Every peer has two neighbours, in a row; the first and the last have one."""
    return nx.path_graph(peers)


@topologies("star")
def star(peers: int) -> Any:
    """Peer 0 is the only neighbour of every other peer."""
    return nx.star_graph(peers - 1)


@topologies("torus")
def torus(
    peers: int,
    seed: int,
    rows: Annotated[
        int | None,
        Field(description="rows of the grid: at least 3, and a divisor of `peers`. Left out: as square as it can be"),
    ] = None,
    shuffle: Annotated[
        bool, Field(description="whether peers are placed at random; else row by row, cluster after cluster")
    ] = False,
) -> Any:
    """A grid of ``rows`` whose opposite edges meet: four neighbours each (default: as square as possible).

    Peers are placed row by row, so that peers of a cluster are neighbours; ``shuffle`` places them at random.
    """
    if rows is None:
        rows = max((r for r in range(1, int(peers**0.5) + 1) if peers % r == 0), default=1)
    if rows < 3 or peers % rows or peers // rows < 3:
        raise UserError(
            f"topology.rows = {rows}: {peers} peers cannot form a torus of {rows} rows; it needs at least 3 by 3 peers"
        )
    grid = nx.grid_2d_graph(rows, peers // rows, periodic=True)
    graph = nx.convert_node_labels_to_integers(grid, ordering="sorted")
    if not shuffle:
        return graph
    places = bits(seed, Purpose.TOPOLOGY, torch.arange(peers)).argsort().tolist()
    return nx.relabel_nodes(graph, dict(enumerate(places)))


@topologies("random")
def random(
    peers: int,
    seed: int,
    low: Annotated[int, Field(description="the fewest neighbours of a peer, at least 1")] = 5,
    high: Annotated[int, Field(description="the most neighbours of a peer, below `peers`")] = 10,
) -> Any:
    """Connected random graph; every peer's number of neighbours is uniform from ``low`` to ``high`` (5 to 10)."""
    if not 1 <= low <= high < peers:
        raise UserError(
            f"topology.low, topology.high: must satisfy 1 <= low <= high < peers, not {low}, {high} with {peers} peers"
        )
    for attempt in range(_TRIES):
        drawn = bits(seed, Purpose.TOPOLOGY, attempt, torch.arange(peers)) % (high - low + 1)
        degrees = (low + drawn).tolist()
        if sum(degrees) % 2 or not nx.is_graphical(degrees):
            continue
        with suppress(nx.NetworkXError):  # networkx may fail to draw one; try again
            graph = nx.random_degree_sequence_graph(degrees, seed=_seed(seed, attempt), tries=20)
            if nx.is_connected(graph):
                return graph
    raise UserError(
        f"topology.low, topology.high: found no connected graph of {peers} peers with degrees {low} to {high}"
    )


@topologies("small-world")
def small_world(
    peers: int,
    seed: int,
    degree: Annotated[int, Field(description="neighbours in the ring: an even number from 2 to `peers` - 1")] = 4,
    rewire: Annotated[float, Field(description="probability that an edge is rewired, from 0 to 1")] = 0.1,
) -> Any:
    """Watts-Strogatz: a ring with ``degree`` neighbours each, every edge rewired with probability ``rewire``."""
    if not 2 <= degree < peers or degree % 2 or not 0 <= rewire <= 1:
        raise UserError(
            f"topology.degree = {degree}, topology.rewire = {rewire}: degree must be even and from 2 to peers - 1, "
            "rewire must be from 0 to 1"
        )
    try:
        return nx.connected_watts_strogatz_graph(peers, degree, rewire, tries=_TRIES, seed=_seed(seed))
    except nx.NetworkXError:
        raise UserError(f"topology.degree = {degree}: found no connected graph of {peers} peers; raise it") from None


@topologies("erdos-renyi")
def erdos_renyi(
    peers: int,
    seed: int,
    probability: Annotated[
        float, Field(description="probability that two peers are neighbours, above 0 and at most 1")
    ] = 0.1,
) -> Any:
    """Erdős-Rényi: any two peers are neighbours with the same ``probability``; redrawn until the graph is connected."""
    if not 0 < probability <= 1:
        raise UserError(f"topology.probability = {probability}: must be above 0 and at most 1")
    for attempt in range(_TRIES):
        graph = nx.fast_gnp_random_graph(peers, probability, seed=_seed(seed, attempt))
        if nx.is_connected(graph):
            return graph
    raise UserError(f"topology.probability = {probability}: found no connected graph of {peers} peers; raise it")


@topologies("file")
def file(
    peers: int,
    path: Annotated[str, Field(description="the file: CSV with two peer numbers per line, or GraphML")],
) -> Any:
    """A graph from a file: an edge list as CSV (two peer numbers per line) or GraphML."""
    source = Path(path)
    try:
        graph = nx.read_graphml(source, node_type=str) if source.suffix == ".graphml" else _read_csv(source)
    except OSError as error:
        raise UserError(f"topology.path: cannot read {path}: {error.strerror}") from error
    except (nx.NetworkXError, SyntaxError, ValueError) as error:
        raise UserError(f"topology.path: {path} is not an edge list: {error}") from error
    graph = nx.Graph(graph.to_undirected())
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    try:
        graph = nx.relabel_nodes(graph, {node: int(str(node).removeprefix("n")) for node in graph})
    except ValueError:
        raise UserError(f"topology.path: {path}: peers must be numbers from 0 to {peers - 1}") from None
    if set(graph) != set(range(peers)):
        raise UserError(
            f"topology.path: {path} has {len(graph)} peers, but must contain each peer from 0 to {peers - 1}"
        )
    return graph


def _read_csv(path: Path) -> Any:
    graph = nx.Graph()
    with path.open(newline="", encoding="utf-8-sig") as lines:
        for number, cells in enumerate(csv.reader(lines), start=1):
            if not any(cell.strip() for cell in cells):
                continue
            try:
                graph.add_edge(int(cells[0]), int(cells[1]))
            except (ValueError, IndexError):
                if number > 1 or any(c.isdigit() for c in ",".join(cells)):  # the first line may be a heading
                    raise ValueError(f"line {number} must be two peer numbers, not {','.join(cells)!r}") from None
    return graph


def _seed(*keys: int) -> int:
    return word(keys[0], Purpose.TOPOLOGY, *keys[1:]) >> 33
