"""The contacts of each peer: the peers within a few hops of a topology, or some of them, drawn at random.

Every table has a row for each deciding peer and a column for each contact. Nothing here has N x N entries, unless each
peer has all others as its contacts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import torch
from scipy import sparse
from scipy.sparse.csgraph import breadth_first_order
from torch import Tensor

from homophily.errors import UserError
from homophily.federation.view import View
from homophily.randomness import Purpose, bits

_AT_ONCE = 1 << 20  # entries of temporary tables
_FEW_PEERS = 10_000  # up to which contacts are drawn by a random key for each pair of peers
_SPARE = 16  # draws beyond those that are expected to be needed
_POSITIVE = torch.iinfo(torch.int64).max

Check = Callable[[int], None]  # is given the number of columns before tables are made, and may refuse it
Widest = Callable[[int], int]  # from the columns that these peers need: those that the tables get


def view_of_all(
    peers: int,
    seed: int,
    graph: Any,
    hops: int,
    contacts: int | None,
    cluster: Tensor | None,
    device: torch.device,
    check: Check = lambda width: None,
) -> View:
    """Return the view of every peer: the peers within ``hops`` of a graph (None: all), at most ``contacts`` of them."""
    return view_of(torch.arange(peers, device=device), peers, seed, graph, hops, contacts, cluster, check)


def view_of(
    me: Tensor,
    peers: int,
    seed: int,
    graph: Any,
    hops: int,
    contacts: int | None,
    cluster: Tensor | None,
    check: Check = lambda width: None,
    widest: Widest = lambda width: width,
) -> View:
    """Return the view of the peers ``me`` [P] in a federation of ``peers``; other arguments as for ``view_of_all``.

    A row does not depend on the other rows, so a process that has some of the peers computes only theirs.
    cluster: [peers], the true clusters. widest: the largest number of columns of any process in a graph, so that the
    tables of all have the same shape.
    """
    seeds = torch.full_like(me, seed)
    everyone = torch.arange(peers, device=me.device)
    distance = torch.ones(1, 1, dtype=torch.int64, device=me.device)
    if graph is not None:
        known_to, distance = _within(me, seeds, _checked(graph, peers), hops, contacts, check, widest)
    elif contacts is None or contacts >= peers - 1:
        check(peers)
        known_to = everyone.expand(len(me), peers)
    else:
        check(contacts)
        known_to = _drawn(me, seeds, peers, contacts)
    known = (known_to != me[:, None]) & (known_to >= 0)
    same = None if cluster is None else _same_cluster(me, known_to, known, cluster)
    return View(me, seeds, known_to, known, distance.expand(known.shape), same)


def _same_cluster(me: Tensor, known_to: Tensor, known: Tensor, cluster: Tensor) -> Tensor:
    """Return [P, B] bool: whether a contact is in the own cluster."""
    same = torch.empty_like(known)
    for rows in _pieces(len(me), known.shape[1]):
        theirs = cluster[known_to[rows].clamp(min=0)]
        same[rows] = (theirs == cluster[me[rows], None]) & known[rows]
    return same


def _pieces(rows: int, width: int) -> list[slice]:
    """Return the rows of a table in pieces, so that temporary tables of this width are small."""
    step = max(1, _AT_ONCE // max(1, width))
    return [slice(first, min(rows, first + step)) for first in range(0, rows, step)]


# Contacts drawn from all peers


def _drawn(me: Tensor, seeds: Tensor, peers: int, size: int) -> Tensor:
    """Draw ``size`` other peers uniformly for each peer: [P, size] ids, ascending.

    Up to 10,000 peers, these are the others with the smallest of a random key for each pair. Above that number, keys
    for all pairs would take too long: each peer draws ids one after the other until it has enough different ones.
    """
    few = peers <= _FEW_PEERS or 2 * size > peers
    draw, width = (_smallest_keys, peers) if few else (_first_different, size)
    return torch.cat([draw(me[rows], seeds[rows], peers, size) for rows in _pieces(len(me), width)])


def _smallest_keys(me: Tensor, seeds: Tensor, peers: int, size: int) -> Tensor:
    everyone = torch.arange(peers, device=me.device)
    keys = bits(seeds[:, None], me[:, None], 0, Purpose.CONTACTS, everyone)
    keys = keys.masked_fill(everyone == me[:, None], torch.iinfo(torch.int64).max)
    return keys.topk(size, dim=1, largest=False, sorted=False).indices.sort(1).values


def _first_different(me: Tensor, seeds: Tensor, peers: int, size: int) -> Tensor:
    """Return the first ``size`` different ids of each peer's sequence of draws. A longer sequence begins the same."""
    draws = size + 2 * size * size // peers + _SPARE
    while True:
        chance = bits(seeds[:, None], me[:, None], 0, Purpose.CONTACTS, torch.arange(draws, device=me.device))
        other = (chance & _POSITIVE) % (peers - 1)
        ids, order = (other + (other >= me[:, None])).sort(dim=1, stable=True)
        again = torch.zeros_like(ids, dtype=torch.bool)
        again[:, 1:] = ids[:, 1:] == ids[:, :-1]
        fresh = torch.empty_like(again).scatter_(1, order, ~again)  # in the order of the draws
        taken = (fresh & (fresh.cumsum(1) <= size)).gather(1, order)
        if int(taken.sum(1).min()) == size:
            return ids[taken].view(len(me), size)
        draws *= 2


# Contacts in a graph


def _checked(graph: Any, peers: int) -> Any:
    """Return the graph as a sparse matrix [peers, peers] with a 1 for each edge; raise a UserError if it is unfit."""
    if not isinstance(graph, nx.Graph) or graph.is_directed():
        raise UserError(f"topology: must be an undirected networkx.Graph, not {type(graph).__name__}")
    if len(graph) != peers:
        raise UserError(f"topology: the graph has {len(graph)} peers, but the federation has {peers}")
    if wrong := [node for node in graph if node not in range(peers)]:
        raise UserError(f"topology: the graph's nodes must be the numbers 0 to {peers - 1}, but one is {wrong[0]!r}")
    if not nx.is_connected(graph):
        parts = nx.number_connected_components(graph)
        raise UserError(f"topology: the graph must be connected, but has {parts} components")
    return _matrix(graph)


def _matrix(graph: Any) -> Any:
    return nx.to_scipy_sparse_array(graph, nodelist=range(len(graph)), weight=None, dtype=np.int32, format="csr")


def _within(
    me: Tensor, seeds: Tensor, edges: Any, hops: int, contacts: int | None, check: Check, widest: Widest
) -> tuple[Tensor, Tensor]:
    """Return the ids of the peers within ``hops``, ascending, padded with -1, and their distances: [P, B] each.

    contacts: of more peers than these, those with the smallest of a random key for each pair are taken.
    """
    found = [
        _some(_reached(me[rows], edges, hops), me[rows], seeds[rows], contacts)
        for rows in _pieces(len(me), edges.shape[0])
    ]
    width = widest(max(int(count.max()) for count, _, _ in found))
    check(width)
    ids = torch.full((len(me), width), -1, dtype=torch.int64)
    distance = torch.ones_like(ids)
    for rows, (count, others, far) in zip(_pieces(len(me), edges.shape[0]), found, strict=True):
        mask = torch.arange(width) < count[:, None]
        ids[rows][mask], distance[rows][mask] = others, far
    return ids.to(me.device), distance.to(me.device)


def _reached(me: Tensor, edges: Any, hops: int) -> Any:
    """Return the distances of the peers within ``hops`` of the peers ``me`` [P], as a sparse matrix [P, peers]."""
    start = me.cpu().numpy()
    place = np.arange(len(start))
    shape = (len(start), edges.shape[0])
    frontier = seen = sparse.csr_array((np.ones(len(start), dtype=np.int32), (place, start)), shape=shape)
    distance = sparse.csr_array(shape, dtype=np.int32)
    for far in range(1, hops + 1):
        frontier = frontier @ edges
        frontier.data[:] = 1
        frontier = frontier - frontier.multiply(seen)
        frontier.eliminate_zeros()
        if not frontier.nnz:
            break
        seen, distance = seen + frontier, distance + far * frontier
    distance.sort_indices()
    return distance


def _some(distance: Any, me: Tensor, seeds: Tensor, contacts: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return how many contacts each peer has [P], and their ids and distances, one peer after the other."""
    count = torch.from_numpy(np.diff(distance.indptr)).long()
    ids, far = (torch.from_numpy(table).long() for table in (distance.indices, distance.data))
    if contacts is None or not bool((count > contacts).any()):
        return count, ids, far
    row = torch.arange(len(count)).repeat_interleave(count)
    keys = bits(seeds.cpu()[row], me.cpu()[row], 0, Purpose.CONTACTS, ids)
    order = torch.from_numpy(np.lexsort((keys.numpy(), row.numpy())))
    position = torch.arange(len(row)) - (count.cumsum(0) - count)[row]
    taken = order[position < contacts].sort().values
    return count.clamp(max=contacts), ids[taken], far[taken]


def weighted_hops(graph: Any, weights: Tensor) -> Tensor:
    """Return, for each peer of a connected graph, the sum over all peers of their weight times their distance in hops.

    weights: [N] int64; the distances of a peer with weight 0 are not computed. Returns [N] int64, on the CPU.
    """
    edges = _matrix(graph)
    out = np.zeros(len(graph), dtype=np.int64)
    for source, weight in ((int(peer), int(weights[peer])) for peer in weights.nonzero()[:, 0]):
        _, towards = breadth_first_order(edges, source)
        towards[source] = source
        out += weight * _depths(towards)
    return torch.from_numpy(out)


def _depths(towards: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the depth of each node of a tree. towards: the parent of each node; the root is its own parent.

    A step doubles how far each node has looked up, so a path of N nodes takes log2 N steps.
    """
    depth: np.ndarray[Any, Any] = (towards != np.arange(len(towards))).astype(np.int64)
    while True:
        further = depth[towards]
        if not further.any():
            return depth
        depth, towards = depth + further, towards[towards]
