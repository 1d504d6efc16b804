"""A row decided alone equals the same row decided among all: every method, several rounds."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from homophily.federation.contacts import view_of_all
from homophily.methods import Method, RoundContext, dispatch, methods
from tests.methods.views import play, random_table, shared_tables, similarities, view_of

PEER_METHODS = [name for name in methods if issubclass(methods.get(name), Method)]
NAMES = [name for name in PEER_METHODS if not methods.get(name).uses_fingerprints]  # kin's decision is in test_kin
ROUNDS = 12


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=8, deadline=None)
@given(st.integers(2, 14), st.integers(0, 10**6), st.data())
def test_a_row_alone_is_the_row_among_all(name: str, peers: int, seed: int, data: st.DataObject) -> None:
    method = methods.get(name)().in_rounds(ROUNDS)
    view = view_of(peers, [i % 2 for i in range(peers)], seed)
    together = play(method, view, ROUNDS)
    one = data.draw(st.integers(0, peers - 1))
    row = slice(one, one + 1)
    memory: dict[str, Tensor] = {}
    tables: dict[str, Tensor] = {}  # what all peers remembered after the last round
    for round in range(1, ROUNDS + 1):
        now = RoundContext(
            view.rows(row),
            round,
            dict(memory),
            shared_tables(method, view, tables).about(view.contacts[row]),
        )
        met = method.meet(now)
        alike = similarities(met, random_table(now.view, round))
        chosen = method.choose(now, met, alike if method.compares(now) else None)
        met_together, chosen_together, after = together[round - 1]
        assert torch.equal(met, met_together[row])
        assert torch.equal(chosen, chosen_together[row])
        memory, tables = now.memory, after.memory
        for key, remembered in memory.items():
            assert torch.equal(remembered.nan_to_num(nan=-9.0), tables[key][row].nan_to_num(nan=-9.0))


@pytest.mark.parametrize("name", NAMES)
def test_chunks_of_rows_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = methods.get(name)().in_rounds(ROUNDS)
    view = view_of_all(30, 5, None, 1, 12, torch.arange(30) % 3, torch.device("cpu"))
    at_once = play(method, view, ROUNDS)
    monkeypatch.setattr(dispatch, "_ON_CPU", 50)
    for (met, chosen, now), (met_at_once, chosen_at_once, then) in zip(
        play(method, view, ROUNDS), at_once, strict=True
    ):
        assert torch.equal(met, met_at_once)
        assert torch.equal(chosen, chosen_at_once)
        assert all(
            torch.equal(t.nan_to_num(nan=-9.0), then.memory[n].nan_to_num(nan=-9.0)) for n, t in now.memory.items()
        )


def test_friends_with_other_contacts_are_matched_by_id() -> None:
    view = view_of_all(20, 5, None, 1, 8, None, torch.device("cpu"))
    table = (100 * view.me[:, None] + view.contacts).double()
    table[:, 3] = torch.nan
    friends = torch.stack([(view.me + 1) % 20, (view.me + 7) % 20, torch.full_like(view.me, -1)], dim=1)
    shared = dispatch.SharedTables({"similarity": table}, view.contacts, local=lambda ids: ids.clamp(min=0))
    said = shared.about(view.contacts)("similarity", friends)
    for me in range(20):
        for column, about in enumerate(view.contacts[me].tolist()):
            entries = [
                float(table[f, view.contacts[f].tolist().index(about)])
                for f in friends[me, :2].tolist()
                if about in view.contacts[f].tolist()
            ]
            expected = next((entry for entry in entries if entry == entry), None)
            assert (None if said[me, column].isnan() else float(said[me, column])) == expected


@pytest.mark.parametrize("name", NAMES)
def test_two_peers_and_one_partner_are_enough(name: str) -> None:
    keys = {} if name == "local" else {"k": 1}
    method = methods.get(name)(**keys).in_rounds(9)
    for met, chosen, _ in play(method, view_of(2, [0, 0]), 9):
        assert not bool((chosen & ~met).any())
        assert int(met.sum()) == (0 if name == "local" else 2)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("local",)])
def test_a_cluster_of_one_peer_works(name: str) -> None:
    method = methods.get(name)(k=2).in_rounds(9)
    for met, chosen, now in play(method, view_of(6, [0, 1, 1, 1, 1, 1]), 9):
        assert not bool((chosen & ~met).any())
        held = method.neighbours(now, chosen)
        assert bool(held.double().isfinite().all())
        assert bool((held.double() >= 0).all())
        if name == "oracle":
            assert not bool(met[0].any())


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("local", "oracle")])
def test_peers_find_partners_if_all_similarities_are_equal(name: str) -> None:
    method = methods.get(name)(k=2).in_rounds(9)
    for _, chosen, _ in play(method, view_of(7), 9, table=torch.ones(7, 7)):
        if name == "pens":
            continue  # by its threshold, a peer may have no neighbours then
        assert bool(chosen.any(1).all())


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("local", "oracle")])
def test_diverged_peers_never_cause_nan(name: str) -> None:
    method = methods.get(name)(k=2).in_rounds(12)
    table = random_table(view_of(7, [0, 0, 0, 1, 1, 1, 1]), 0)
    table[:, [2, 5]] = -torch.inf
    for _, chosen, now in play(method, view_of(7), 12, table=table):
        for remembered in now.memory.values():
            assert not bool((remembered.double() == torch.inf).any())
        if method.metric is not None and method.compares(now) and name in ("panm", "pens"):
            assert not bool(chosen[:, [2, 5]].any())
