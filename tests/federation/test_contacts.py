"""Who knows whom: draws of contacts, reach in graphs, and sums of hops."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from homophily.federation import contacts
from homophily.federation.contacts import view_of, view_of_all, weighted_hops
from homophily.federation.topology import topologies
from homophily.methods import View
from homophily.randomness import Purpose, bits

CPU = torch.device("cpu")


def seen(graph: object, peers: int, hops: int = 1, contacts: int | None = None) -> View:
    return view_of_all(peers, 3, graph, hops, contacts, None, CPU)


def test_bounded_contacts_are_a_uniform_sample_in_ascending_order() -> None:
    view = seen(None, 50, contacts=7)
    assert view.contacts.shape == (50, 7)
    assert bool((view.contacts[:, 1:] > view.contacts[:, :-1]).all())
    assert not bool((view.contacts == view.me[:, None]).any())
    often = view.contacts.flatten().bincount(minlength=50)
    assert int(often.max()) < 20
    ring = seen(topologies.get("ring")(peers=9), 9, hops=3, contacts=2)
    assert ring.known.sum(1).tolist() == [2] * 9
    assert bool((ring.hops[ring.known] <= 3).all())


def test_among_few_peers_contacts_are_those_with_the_smallest_keys() -> None:
    """The draw that recorded runs rest on."""
    view = seen(None, 20, contacts=4)
    for me in range(20):
        others = torch.tensor([peer for peer in range(20) if peer != me])
        keys = bits(3, me, 0, Purpose.CONTACTS, others)
        assert view.contacts[me].tolist() == sorted(others[keys.argsort()[:4]].tolist())


def test_among_many_peers_contacts_are_different_others_drawn_uniformly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contacts, "_FEW_PEERS", 10)
    view = seen(None, 2000, contacts=50)
    assert view.contacts.shape == (2000, 50)
    assert bool((view.contacts[:, 1:] > view.contacts[:, :-1]).all())
    assert not bool((view.contacts == view.me[:, None]).any())
    often = view.contacts.flatten().bincount(minlength=2000).double()
    assert len(often) == 2000
    # Poisson: the variance over peers equals the mean, within five standard deviations of its estimate
    assert abs(float(often.var()) / 50 - 1) < 5 * (2 / 2000) ** 0.5


@settings(max_examples=20, deadline=None)
@given(st.integers(4, 60), st.integers(0, 10**6), st.data())
def test_a_sequence_of_draws_always_has_enough_different_peers(peers: int, seed: int, data: st.DataObject) -> None:
    """Also if nearly all draws are needed, or repeat earlier ones."""
    size = data.draw(st.integers(1, peers // 2))
    me = torch.arange(peers)
    found = contacts._first_different(me, torch.full_like(me, seed), peers, size)
    assert all(len(set(row) - {i}) == size for i, row in enumerate(found.tolist()))
    assert int(found.min()) >= 0
    assert int(found.max()) < peers


@pytest.mark.parametrize("few", [10, 10_000])
@pytest.mark.parametrize("graph", [None, "small-world"])
def test_some_rows_are_the_rows_of_all(few: int, graph: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a process can compute the contacts of its own peers alone."""
    monkeypatch.setattr(contacts, "_FEW_PEERS", few)
    edges = None if graph is None else topologies.get(graph)(peers=60, seed=1)
    cluster, some = torch.arange(60) % 3, torch.tensor([3, 17, 18, 59])
    whole = view_of_all(60, 5, edges, 2, 6, cluster, CPU)
    part = view_of(some, 60, 5, edges, 2, 6, cluster)
    for name in ("me", "seed", "contacts", "known", "hops", "same"):
        assert torch.equal(getattr(part, name), getattr(whole, name)[some]), name


def test_pieces_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = [None, topologies.get("star")(peers=40), topologies.get("random")(peers=40, seed=2)]
    whole = [seen(graph, 40, hops=2, contacts=9) for graph in graphs]
    monkeypatch.setattr(contacts, "_AT_ONCE", 100)
    for graph, view in zip(graphs, whole, strict=True):
        again = seen(graph, 40, hops=2, contacts=9)
        assert torch.equal(again.contacts, view.contacts)
        assert torch.equal(again.hops, view.hops)


@settings(max_examples=20, deadline=None)
@given(st.integers(5, 30), st.integers(1, 4), st.integers(0, 1000))
def test_reach_and_sums_of_hops_are_those_of_shortest_paths(peers: int, hops: int, seed: int) -> None:
    graph = nx.connected_watts_strogatz_graph(peers, 4, 0.3, seed=seed)
    far = dict(nx.all_pairs_shortest_path_length(graph))
    view = seen(graph, peers, hops)
    for me in range(peers):
        there = view.known[me]
        found = dict(zip(view.contacts[me][there].tolist(), view.hops[me][there].tolist(), strict=True))
        assert found == {peer: d for peer, d in far[me].items() if 0 < d <= hops}
    weights = bits(seed, torch.arange(peers)) % 7
    expected = [sum(far[me][peer] * int(weights[peer]) for peer in range(peers)) for me in range(peers)]
    assert weighted_hops(graph, weights).tolist() == expected


def test_hops_add_up_on_a_long_path() -> None:
    """A path is the deepest tree."""
    weights = torch.zeros(3000, dtype=torch.int64)
    weights[0], weights[2999] = 1, 10
    assert weighted_hops(nx.path_graph(3000), weights).tolist() == [i + 10 * (2999 - i) for i in range(3000)]


def test_a_number_of_columns_can_be_refused_before_tables_are_made() -> None:
    asked: list[int] = []
    for graph, limit in ((None, None), (None, 5), (topologies.get("star")(peers=30), None)):
        view_of_all(30, 0, graph, 1, limit, None, CPU, asked.append)
    assert asked == [30, 5, 29]
