"""All peers in one process: models are handed out as they lie, and what would travel is counted."""

from __future__ import annotations

import networkx as nx
import pytest
import torch

from homophily.fingerprints import fingerprint
from homophily.fingerprints.fingerprint import Fingerprints, sampled
from homophily.simulation.sources import InMemory, LocalModels
from tests.simulation.tiny import federation, fingerprints, flags, in_memory, published, tiny_task, view_of

SIZES = [10, 100, 1000, 0]  # bytes of four fingerprints
EVERYONE = flags(4, 0, 1, 2, 3)
PATH = nx.path_graph(4)


def source(
    contacts: int | None = None, graph: nx.Graph | None = None, hops: int = 1, made: list[int] | None = None
) -> InMemory:
    """Four peers with fingerprints of the sizes above; ``made`` counts how often they are made."""

    def make(earlier: int) -> Fingerprints:
        if made is not None:
            made.append(1)
        return fingerprints(SIZES)

    view = view_of(4, contacts, graph, hops)
    return InMemory(view, torch.zeros(4, 2), torch.ones(4), make, graph, limited=contacts is not None)


def heard_bytes(of: InMemory, active: torch.Tensor = EVERYONE) -> float:
    heard = of.fingerprints(1, 0, active, needed=True)
    assert heard is not None
    return heard.bytes


# Models


def test_the_view_is_that_of_all_peers_in_every_round() -> None:
    view = view_of(4)
    found = in_memory(view, torch.zeros(4, 2))
    assert found.view(1) is found.view(9) is view
    assert found.has_all_peers
    assert not found.asynchronous


def test_models_are_handed_out_and_not_copied() -> None:
    task = tiny_task([1, 2, 3, 4])
    models, start, before = federation(task, [[1.0, 2.0]] * 4), torch.zeros(4, 2), torch.ones(4, 2)
    view = view_of(4)
    found = in_memory(view, start, [1, 2, 3, 4])
    own = published(models, before)
    found.publish(1, own)
    met = view.known & flags(4, 1)
    got = found.fetch(1, met, updates=True)
    assert got.rows is models.rows
    assert got.kept is models.kept
    assert got.before is before
    assert got.start is start
    assert got.met is met
    assert got.contacts is view.contacts
    assert (got.diverged, got.trained) == (own.diverged, own.trained)
    assert got.samples.tolist() == [1, 2, 3, 4]
    assert got.ids is None
    models.rows[2] = 7.0
    assert got.rows[2].tolist() == [7.0, 7.0]


def test_a_checkpoint_needs_nothing_of_it() -> None:
    found, memory = in_memory(view_of(4), torch.zeros(4, 2)), {"seen": torch.ones(4, 4)}
    assert (found.tensors(), found.numbers()) == ({}, {})
    assert found.restore({}, {}, memory) is memory


def test_shared_tables_are_counted_by_their_entries() -> None:
    nan = torch.nan
    first = torch.tensor([[0.1, 0.2, nan], [nan, nan, nan], [nan, 0.5, nan]], dtype=torch.float64)
    second = torch.tensor([[nan, nan, 0.3], [nan, nan, nan], [0.1, 0.2, 0.3]], dtype=torch.float64)
    found = in_memory(view_of(3), torch.zeros(3, 2))
    models = federation(tiny_task([1, 1, 1]), [[0.0, 0.0]] * 3)

    def sizes(tables: dict[str, torch.Tensor]) -> list[int] | None:
        found.publish(1, published(models, tables=tables))
        got = found.fetch(1, found.view(1).known, updates=False).table_bytes
        return None if got is None else got.tolist()

    assert sizes({}) is None
    # An id and a number for each entry; what a peer remembers of itself does not count.
    assert sizes({"a": first}) == [1 * 16, 0, 1 * 16]
    # An entry in one of two tables is an id and a number in both.
    assert sizes({"a": first, "b": second}) == [2 * 24, 0, 2 * 24]


# Fingerprints


def test_everyone_receives_everyones_fingerprint_over_one_hop() -> None:
    assert heard_bytes(source()) == 4 * 1110 - 1110
    heard = source().fingerprints(1, 0, EVERYONE, needed=True)
    assert heard is not None
    assert not heard.limited
    assert heard.ids.tolist() == [0, 1, 2, 3]
    assert heard.prints.bytes.tolist() == SIZES


def test_a_peer_that_has_stopped_neither_sends_nor_receives_one() -> None:
    assert heard_bytes(source(), flags(4, 0, 1, 3)) == 100 + 10 + 110
    assert heard_bytes(source(), flags(4, 2)) == 0


def test_limited_contacts_limit_partners_and_not_fingerprints() -> None:
    """Up to 1,000 peers everyone hears of everyone, whomever it can merge with."""
    found = source(contacts=2)
    assert found.view(1).contacts.shape == (4, 2)
    assert heard_bytes(found) == heard_bytes(source()) == 4 * 1110 - 1110
    heard = found.fingerprints(1, 0, EVERYONE, needed=True)
    assert heard is not None
    assert heard.limited
    assert heard.ids.tolist() == [0, 1, 2, 3]


def test_in_a_partial_topology_fingerprints_travel_over_all_hops() -> None:
    """Peers may meet only neighbours, and still hear of everyone: distances in a path add up to 6, 4, 4 and 6."""
    assert heard_bytes(source(graph=PATH)) == 6 * 10 + 4 * 100 + 4 * 1000 + 6 * 0
    assert heard_bytes(source(graph=PATH), flags(4, 0, 2)) == 2 * 10 + 2 * 1000


def test_in_a_partial_topology_limited_contacts_change_no_bill() -> None:
    assert heard_bytes(source(contacts=1, graph=PATH, hops=2)) == heard_bytes(source(graph=PATH))


# Many peers: a keyed sample, and contacts


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of four peers, the two that are compared by everyone."""
    monkeypatch.setattr(fingerprint, "LARGE", 2)
    chosen = sampled(fingerprints(SIZES), torch.arange(4), 0).tolist()
    assert len(chosen) == 2
    assert 3 not in chosen  # it has no fingerprint
    return chosen


def test_among_many_everyone_receives_the_sample_and_its_contacts(sample: list[int]) -> None:
    """A contact in the sample is received once."""
    found = source(contacts=2)
    received = [set(sample) | set(found.view(1).contacts[me].tolist()) - {me} for me in range(4)]
    assert heard_bytes(found) == sum(SIZES[peer] for me in range(4) for peer in received[me] - {me})
    assert heard_bytes(source(contacts=1)) < heard_bytes(source())


def test_among_many_without_limited_contacts_everyone_is_a_contact(sample: list[int]) -> None:
    assert heard_bytes(source()) == 4 * 1110 - 1110


def test_among_many_those_that_have_stopped_neither_send_nor_receive(sample: list[int]) -> None:
    found, stopped = source(contacts=2), sample[0]
    active = flags(4, *({0, 1, 2, 3} - {stopped}))
    contacts = found.view(1).contacts.tolist()
    wanted = [(me, (set(sample) | set(contacts[me])) - {me, stopped}) for me in range(4) if me != stopped]
    assert heard_bytes(found, active) == sum(SIZES[peer] for _, peers in wanted for peer in peers)


def test_among_many_in_a_partial_topology_every_hop_costs(sample: list[int]) -> None:
    found, far = source(contacts=2, graph=PATH), dict(nx.all_pairs_shortest_path_length(PATH))
    view = found.view(1)
    total = 0
    for me in range(4):
        known = set(view.contacts[me][view.known[me]].tolist())
        total += sum(far[me][peer] * SIZES[peer] for peer in set(sample) | known)
    assert heard_bytes(found) == total


def test_of_1200_peers_each_receives_1000_fingerprints_and_those_of_its_contacts() -> None:
    """Tiny fingerprints of one byte each."""
    peers, view = 1200, view_of(1200, 5)
    found = InMemory(
        view, torch.zeros(peers, 2), torch.ones(peers), lambda _: fingerprints([1] * peers), None, limited=True
    )
    chosen = set(sampled(fingerprints([1] * peers), torch.arange(peers), 0).tolist())
    assert len(chosen) == 1000
    outside = sum(peer not in chosen for peer in view.contacts.flatten().tolist())
    assert heard_bytes(found, torch.ones(peers, dtype=torch.bool)) == 1000 * peers - 1000 + outside


def test_padded_contacts_are_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends of a path have one neighbour, the others two; nobody is in the sample."""
    monkeypatch.setattr(fingerprint, "LARGE", 0)
    assert heard_bytes(source(contacts=2, graph=PATH)) == 100 + (10 + 1000) + (100 + 0) + 1000


@pytest.mark.parametrize(("renew", "due"), [(0, [1]), (1, [1, 2, 3, 4, 5, 6]), (2, [1, 3, 5]), (5, [1, 6])])
def test_fingerprints_are_made_only_when_they_are_due(renew: int, due: list[int]) -> None:
    made: list[int] = []
    found = source(made=made)
    rounds = [r for r in range(1, 7) if found.fingerprints(r, renew, EVERYONE, needed=False) is not None]
    assert rounds == due
    assert len(made) == len(due)


# Rows by id


def models(ids: list[int] | None) -> LocalModels:
    models, view = federation(tiny_task([1, 1, 1]), [[0.0, 0.0]] * 3), view_of(3)
    found = in_memory(view, torch.zeros(3, 2))
    found.publish(1, published(models))
    got = found.fetch(1, view.known, updates=False)
    named = None if ids is None else torch.tensor(ids)
    return LocalModels(**{**vars(got), "ids": named})


def test_without_ids_a_row_is_a_peers_number() -> None:
    assert models(None).local(torch.tensor([[2, 0], [1, -1]])).tolist() == [[2, 0], [1, 0]]


def test_with_ids_a_row_is_found_by_its_id() -> None:
    """A real peer comes first, then the models that it has fetched, in any order."""
    found = models([7, 2, 5])
    assert found.local(torch.tensor([[2, 7], [5, 2]])).tolist() == [[1, 0], [2, 1]]
    assert int(found.local(torch.tensor([-1]))) in range(3)
