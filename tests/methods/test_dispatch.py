"""Decisions of methods are checked: they must be about peers that a row knows, asked or met."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from homophily import Method, RoundContext, UserError, View
from homophily.federation.contacts import view_of_all
from homophily.methods import dispatch, methods
from homophily.randomness import uniform
from tests.methods.views import random_table, shared_tables, similarities, view_of

PEER_METHODS = [name for name in methods if issubclass(methods.get(name), Method)]
NOTHING = dispatch.SharedTables({}, torch.zeros(0, 0, dtype=torch.int64), local=lambda ids: ids)


class Weighing(Method):
    """Holds everyone to be alike, and gives itself and padding a weight of NaN."""

    def neighbours(self, now: RoundContext, partners: Tensor) -> Tensor:
        return torch.where(now.known, 2.0, torch.nan)


def test_a_peer_that_is_not_known_is_never_a_neighbour() -> None:
    view = view_of(3)
    found = dispatch.neighbours(Weighing(), view, 1, {}, view.known)
    assert torch.equal(found, 2.0 * view.known)


# Decisions outside the allowed set


class Everyone(Method):
    """Asks and merges with every column of its contacts, including itself and padding."""

    def meet(self, now: RoundContext) -> Tensor:
        return torch.ones_like(now.known)

    def choose(self, now: RoundContext, met: Tensor, similarity: Tensor | None) -> Tensor:
        return torch.ones_like(met)


def test_a_method_that_asks_itself_is_refused() -> None:
    says = r"method: Everyone\.meet chose peers that are not among its contacts \(peer 0 chose itself\)"
    with pytest.raises(UserError, match=says):
        dispatch.meet(Everyone(), view_of(3), 1, {})


def test_a_method_that_asks_padding_is_refused() -> None:
    view = view_of(3)
    padded = replace(view, contacts=torch.where(view.known, view.contacts, -1))
    with pytest.raises(UserError, match=r"\(peer 0 chose place 0 of its contacts, which is empty\)"):
        dispatch.meet(Everyone(), padded, 1, {})


def test_the_peer_that_is_named_is_the_one_that_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    class Later(Method):
        def meet(self, now: RoundContext) -> Tensor:
            return torch.where(now.view.me[:, None] == 2, True, now.known)

    monkeypatch.setattr(dispatch, "_ON_CPU", 3)  # a row at a time
    with pytest.raises(UserError, match=r"\(peer 2 chose itself\)"):
        dispatch.meet(Later(), view_of(3), 1, {})


def test_a_method_that_merges_with_peers_it_did_not_meet_is_refused() -> None:
    view = view_of(3)
    met = view.known.clone()
    met[1, 2] = False
    chosen, _ = dispatch.choose(Method(), view, 1, {}, met, met, None, NOTHING)
    assert torch.equal(chosen, met)
    with pytest.raises(UserError, match=r"method: Everyone\.choose chose peers that it did not meet \(peer 0 chose it"):
        dispatch.choose(Everyone(), view, 1, {}, met, met, None, NOTHING)

    class Known(Method):
        def choose(self, now: RoundContext, met: Tensor, similarity: Tensor | None) -> Tensor:
            return now.known

    with pytest.raises(UserError, match=r"Known\.choose chose peers that it did not meet \(peer 1 chose peer 2\)"):
        dispatch.choose(Known(), view, 1, {}, met, met, None, NOTHING)


def test_choosing_a_peer_that_was_asked_and_did_not_answer_is_allowed() -> None:
    """A peer has stopped, or a model did not arrive: the choice is not an error, and has no effect."""
    view = view_of(4)
    asked = view.known
    met = asked.clone()
    met[0] = False  # has stopped
    met[1, 3] = False  # its model did not arrive

    class Again(Method):
        def choose(self, now: RoundContext, met: Tensor, similarity: Tensor | None) -> Tensor:
            return now.known

    chosen, _ = dispatch.choose(Again(), view, 1, {}, asked, met, None, NOTHING)
    assert torch.equal(chosen, met)


def test_contacts_that_cannot_be_reached_may_be_asked() -> None:
    """A real peer remembers peers that are offline for a round; a simulation has no such peers."""
    view = view_of(3)
    away = replace(view, known=view.known & (view.contacts != 2))

    class Remembering(Method):
        def meet(self, now: RoundContext) -> Tensor:
            return now.view.contacts != now.view.me[:, None]

    assert torch.equal(dispatch.meet(Remembering(), away, 1, {}), view.known)


def decisions(method: Method, view: View, rounds: int) -> Iterator[tuple[RoundContext, Tensor, Tensor]]:
    """The unchecked answers of a method; in each round some peers are out of reach and some models do not arrive."""
    memory: dict[str, Tensor] = {}
    if method.uses_fingerprints:
        weights = torch.where(view.known, uniform(view.seed[:, None], view.me[:, None], 0, view.contacts), 0.0)
        away = torch.arange(view.known.numel() * 2, dtype=torch.float64).view(*view.known.shape, 2).sin()
        memory = {"weights": weights, "family": torch.full_like(view.me, -1), "away": away}
    for round in range(1, rounds + 1):
        reached = view.known & (uniform(view.seed[:, None], view.me[:, None], round, view.contacts) < 0.6)
        shared = shared_tables(method, view, memory).about(view.contacts)
        now = RoundContext(replace(view, known=reached), round, dict(memory), shared)
        asked = method.meet(now)
        met = asked & reached & (uniform(view.seed[:, None], view.me[:, None], round + 100, view.contacts) < 0.8)
        alike = similarities(met, random_table(now.view, round)) if method.compares(now) else None
        yield now, asked, method.choose(now, met, alike) & ~met
        memory = now.memory


@pytest.mark.parametrize("name", PEER_METHODS)
@pytest.mark.parametrize("contacts", [None, 6])
def test_bundled_methods_choose_only_allowed_peers(name: str, contacts: int | None) -> None:
    """They are not checked while they run, so this test checks them."""
    view = view_of_all(14, 3, None, 1, contacts, torch.arange(14) % 2, torch.device("cpu"))
    for now, asked, never_met in decisions(methods.get(name)().in_rounds(24), view, 24):
        assert not bool((asked & ~now.known).any())
        assert not bool(never_met.any())
