"""A round's exchange, step by step: who is asked, what is compared and merged, what it costs, what is remembered."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any

import networkx as nx
import pytest
import torch
from torch import Tensor

from homophily.errors import UserError
from homophily.federation.merging import merges
from homophily.federation.similarity import cost_of, metrics
from homophily.fingerprints.fingerprint import Fingerprints
from homophily.methods import Method, RoundContext, View
from homophily.simulation.exchange import PeerExchange, nominal_models
from homophily.simulation.observers import ClusterObserver
from homophily.simulation.pairwise import PairwiseEvaluator
from homophily.simulation.recording import RecordedPeers
from homophily.simulation.sources import InMemory
from homophily.training.one_by_one import OneByOne
from tests.simulation.tiny import CPU, MODEL, federation, fingerprints, flags, in_memory, tiny_task, view_of

INF = torch.inf
COUNTS = [1, 2, 3, 4]  # training samples of the four peers
ROWS = [[0.0, 0.0], [3.0, 4.0], [0.0, 2.0], [6.0, 8.0]]  # their models after training
NOBODY, EVERYONE = flags(4), flags(4, 0, 1, 2, 3)


class NextTwo(Method):
    """Asks the two peers that follow, merges with the most similar one, and keeps a diary."""

    def __init__(self, metric: str | None = "l2", shares: tuple[str, ...] = ()) -> None:
        self.metric, self.shares = metric, shares
        self.given: list[list[list[float]] | None] = []  # the similarities it got, round by round

    def meet(self, now: RoundContext) -> Tensor:
        peers = now.known.shape[1]
        step = (now.view.contacts - now.view.me[:, None]) % peers
        return (step == 1) | (step == 2)

    def choose(self, now: RoundContext, met: Tensor, similarity: Tensor | None) -> Tensor:
        self.given.append(None if similarity is None else similarity.tolist())
        table = torch.zeros(met.shape, dtype=torch.float64) if similarity is None else similarity
        entries = torch.where(met, table, torch.nan)
        before = now.recall("seen", torch.nan)
        now.memory["seen"] = torch.where(entries.isfinite(), entries, before)
        now.memory["rounds"] = now.memory.get("rounds", torch.zeros(len(met))) + 1
        return now.top(met, 1, table)


def exchange(
    method: Method, merge: str = "uniform", on: str | None = None, view: View | None = None, source: Any = None
) -> PeerExchange:
    """Of the four peers, whose models start at zero."""
    task = tiny_task(COUNTS)
    view = view_of(4) if view is None else view
    evaluator = None
    if method.metric is not None:
        metric, keys = metrics.get(method.metric), {} if on is None else {"on": on}
        evaluator = PairwiseEvaluator(partial(metric, **keys), task, OneByOne(task), 100, cost_of(metric, keys))
    source = in_memory(view, torch.zeros(4, 2), COUNTS) if source is None else source
    recorded = RecordedPeers(torch.arange(4), torch.arange(4), 4, None, {})
    observer = ClusterObserver(view, torch.arange(4) % 2, finds=True, notes=["by the observer"], recorded=recorded)
    return PeerExchange(method, merges.get(merge), evaluator, source, observer, 4, CPU)


def measured(of: PeerExchange) -> list[dict[int, float]]:
    """The recorded similarities of each peer in the last round, by the other's id."""
    entry = of.entries()["similarities"]
    pairs = iter(zip(entry["others"].tolist(), entry["values"].tolist(), strict=True))
    return [dict(islice(pairs, count)) for count in entry["counts"].tolist()]


def play(
    of: PeerExchange,
    rows: Sequence[Sequence[float]] = ROWS,
    round: int = 1,
    stopped: Tensor = NOBODY,
    before: Tensor | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """A whole exchange: the models after it, and its metrics."""
    models = federation(tiny_task(COUNTS), rows)
    assert torch.equal(of.before_training(models, round, ~stopped), ~stopped)
    request = of.meet(models, before, round, stopped, models.diverged)
    merging = of.choose(None if request is None else request.compute())
    return models.rows, dict(of.conclude(merging.compute()))


# Step by step


def test_the_steps_of_a_round() -> None:
    method = NextTwo()
    found = exchange(method)
    models = federation(tiny_task(COUNTS), ROWS)
    assert not found.wants_rows_before(1)  # the distance of weights needs no updates
    assert found.before_training(models, 1, EVERYONE) is EVERYONE

    request = found.meet(models, None, 1, NOBODY, NOBODY)
    assert request is not None
    asked = list(zip(request.me.tolist(), request.you.tolist(), strict=True))
    assert asked == [(0, 1), (0, 2), (1, 2), (1, 3), (2, 0), (2, 3), (3, 0), (3, 1)]
    assert request.models.rows is models.rows
    answer = request.compute()
    far = [5.0, 2.0, 13**0.5, 5.0, 2.0, 72**0.5, 10.0, 5.0]
    assert torch.allclose(answer, 1.0 / torch.tensor(far, dtype=torch.float64))

    merging = found.choose(answer)
    table = torch.full((4, 4), -INF, dtype=torch.float64)
    for (me, you), value in zip(asked, answer.tolist(), strict=True):
        table[me, you] = value
    assert method.given == [table.tolist()]
    assert torch.equal(merging.group.mask, torch.ones(4, 2, dtype=torch.bool))
    assert merging.group.ids.tolist() == [[0, 2], [1, 2], [0, 2], [1, 3]]
    assert merging.group.is_self.tolist() == [[True, False], [True, False], [False, True], [False, True]]
    assert merging.group.samples.tolist() == [[1, 3], [2, 3], [1, 3], [2, 4]]
    assert models.rows.tolist() == ROWS  # nothing is merged yet

    merged = merging.compute()
    assert torch.equal(merged, ~merging.group.is_self)
    assert models.rows.tolist() == [[0.0, 1.0], [1.5, 3.0], [0.0, 1.0], [4.5, 6.0]]

    line = found.conclude(merged)
    assert line["models_sent_per_peer"] == 2.0
    assert line["same_cluster_merges"] == 0.75
    assert line["neighbour_precision"] == 0.75
    assert measured(found)[0] == {1: pytest.approx(1 / 5), 2: pytest.approx(1 / 2)}
    merges = found.entries()["merges"]
    assert (merges["counts"].tolist(), merges["partners"].tolist()) == ([1, 1, 1, 1], [2, 2, 0, 1])
    assert found.memory["rounds"].tolist() == [1.0] * 4


def test_a_method_that_compares_nobody_gets_no_similarities() -> None:
    method = NextTwo(metric=None)
    found = exchange(method)
    models = federation(tiny_task(COUNTS), ROWS)
    found.before_training(models, 1, EVERYONE)
    assert found.meet(models, None, 1, NOBODY, NOBODY) is None
    line = found.conclude(found.choose(None).compute())
    assert method.given == [None]
    assert "similarities" not in found.entries()
    assert "similarities" not in line


def test_a_merge_by_similarity_measures_although_the_method_does_not_compare() -> None:
    class Silent(NextTwo):
        def compares(self, now: RoundContext) -> bool:
            return False

        def choose(self, now: RoundContext, met: Tensor, similarity: Tensor | None) -> Tensor:
            assert similarity is None  # what only the merge needs is not the method's
            return met

    found = exchange(Silent(), merge="fedsim")
    rows, _ = play(found)
    assert [set(mine) for mine in measured(found)] == [{1, 2}, {2, 3}, {0, 3}, {0, 1}]
    weights = torch.tensor([1 / 2, 1 / 5, 1 / 2])  # peer 0: itself like its most similar partner, then peers 1 and 2
    assert torch.allclose(rows[0], weights / weights.sum() @ torch.tensor([ROWS[0], ROWS[1], ROWS[2]]))


def test_similarities_that_are_all_undefined_are_refused() -> None:
    method = NextTwo(metric="tests.simulation.test_exchange:undefined")
    with pytest.raises(UserError, match="must return numbers, and gives NaN for every pair"):
        play(exchange(method))


def undefined(pairs: Any) -> Tensor:
    return pairs.mine.sum(1) * torch.nan


# What travels


def test_each_model_asked_for_is_billed_once() -> None:
    found = exchange(NextTwo())
    play(found)
    play(found, round=2)
    assert found.traffic.received.tolist() == [4, 4, 4, 4]
    summary = found.summary(2)
    assert summary["models_sent_per_peer"] == 4.0
    assert summary["bytes_sent_per_peer"] == 4 * MODEL
    assert summary["peak_models_per_peer_round"] == 2
    assert summary["models_per_peer_round_by_hops"] == {"1": 2.0}
    assert summary["nominal_models_per_peer"] is None
    assert summary["notes"] == ["by the observer"]


def test_a_loss_on_the_others_data_takes_two_models() -> None:
    found = exchange(NextTwo("loss"), on="peer")
    play(found)
    assert found.traffic.received.tolist() == [4, 4, 4, 4]
    assert found.traffic.bytes == 4 * 4 * MODEL


def test_updates_travel_with_the_models_of_peers_that_trained() -> None:
    found = exchange(NextTwo("panm"))
    assert found.wants_rows_before(1)
    play(found, before=torch.zeros(4, 2))
    assert found.traffic.received.tolist() == [2, 2, 2, 2]
    assert found.traffic.bytes == 4 * (2 + 2) * MODEL
    play(found, round=2, before=torch.zeros(4, 2), stopped=flags(4, 3))  # peer 3 did not train, and asks nobody
    assert found.traffic.received.tolist() == [4, 4, 4, 2]
    untrained = 2  # peers 1 and 2 ask peer 3, whose update does not exist
    assert found.traffic.bytes == 4 * (2 + 2) * MODEL + (3 * (2 + 2) - untrained) * MODEL


def test_shared_tables_are_billed_with_the_models_as_they_stood_a_round_before() -> None:
    found = exchange(NextTwo(shares=("seen",)))
    play(found)
    assert found.traffic.bytes == 4 * 2 * MODEL  # nobody remembers anything yet
    play(found, round=2)
    assert found.traffic.bytes == 2 * 4 * 2 * MODEL + 4 * 2 * (2 * 16)  # two entries, an id and a number each


def test_friends_tables_are_those_of_the_last_round() -> None:
    class Listening(NextTwo):
        heard: list[Tensor]

        def choose(self, now: RoundContext, met: Tensor, similarity: Tensor | None) -> Tensor:
            following = (now.view.me[:, None] + 1) % 4
            self.heard.append(now.shared("seen", following))
            return super().choose(now, met, similarity)

    method = Listening(shares=("seen",))
    method.heard = []
    found = exchange(method)
    play(found)
    assert bool(method.heard[0].isnan().all())
    before = found.memory["seen"].clone()
    play(found, rows=[[1.0, 0.0], [5.0, 4.0], [0.0, 9.0], [6.0, 1.0]], round=2)
    assert torch.equal(method.heard[1].nan_to_num(nan=-1.0), before.roll(-1, 0).nan_to_num(nan=-1.0))
    assert not torch.equal(found.memory["seen"], before)


def test_models_cost_their_hops() -> None:
    view = view_of(4, graph=nx.path_graph(4), hops=3)

    class Everyone(NextTwo):
        def meet(self, now: RoundContext) -> Tensor:
            return now.known

        def nominal(self, rounds: int) -> float:
            return 3.0 * rounds

    found = exchange(Everyone(), view=view)
    play(found)
    assert found.traffic.received.tolist() == [6, 4, 4, 6]
    assert found.summary(1)["models_per_peer_round_by_hops"] == {"1": 6 / 4, "2": 4 / 4, "3": 2 / 4}
    assert found.summary(1)["nominal_models_per_peer"] is None
    assert nominal_models(found.method, found.merge, found.evaluator, True, 1) is None
    assert nominal_models(found.method, found.merge, found.evaluator, False, 1) == 3.0


# Peers that have stopped or diverged


def test_a_peer_that_has_stopped_asks_nobody_and_keeps_its_memory_and_model() -> None:
    found = exchange(NextTwo())
    play(found)
    before = {name: table.clone() for name, table in found.memory.items()}
    rows, _ = play(found, rows=[[1.0, 1.0], [2.0, 2.0], [9.0, 9.0], [4.0, 4.0]], round=2, stopped=flags(4, 1))
    assert rows[1].tolist() == [2.0, 2.0]
    assert found.traffic.received.tolist() == [4, 2, 4, 4]
    assert found.memory["rounds"].tolist() == [2.0, 1.0, 2.0, 2.0]
    assert torch.equal(found.memory["seen"][1].nan_to_num(), before["seen"][1].nan_to_num())
    assert not torch.equal(found.memory["seen"][0].nan_to_num(), before["seen"][0].nan_to_num())
    assert rows[0].tolist() == [1.5, 1.5]  # its model can still be asked for: it is nearest to peer 0


def test_a_diverged_model_is_like_nobody_is_not_merged_and_does_not_travel() -> None:
    method = NextTwo()
    found = exchange(method)
    rows, _ = play(found, rows=[ROWS[0], [torch.nan, 4.0], ROWS[2], ROWS[3]])
    assert method.given[0] is not None
    assert method.given[0][0] == [-INF, -INF, 0.5, -INF]  # peer 0 asked peers 1 and 2
    assert method.given[0][1] == [-INF, -INF, 0.0, 0.0]  # its own model has diverged: a constant, so that it merges
    assert found.traffic.received.tolist() == [1, 2, 2, 1]
    assert found.traffic.bytes == 6 * MODEL
    assert bool(rows.isfinite().all())
    assert rows[1].tolist() in (ROWS[2], ROWS[3])  # it takes a partner's model as it is
    assert measured(found)[0] == {1: pytest.approx(torch.nan, nan_ok=True), 2: 0.5}


def test_a_diverged_peer_keeps_what_it_remembered() -> None:
    found = exchange(NextTwo())
    play(found)
    before = found.memory["seen"].clone()
    play(found, rows=[[1.0, 1.0], [torch.inf, 0.0], [9.0, 9.0], [4.0, 4.0]], round=2)
    assert found.memory["rounds"].tolist() == [2.0, 1.0, 2.0, 2.0]
    assert torch.equal(found.memory["seen"][1].nan_to_num(), before[1].nan_to_num())


def test_a_diverged_peer_still_measures_the_losses_of_others_on_its_own_data() -> None:
    found = exchange(NextTwo("loss"))
    play(found)
    play(found, rows=[[1.0, 1.0], [torch.inf, 0.0], [9.0, 9.0], [4.0, 4.0]], round=2)
    assert found.memory["rounds"].tolist() == [2.0, 2.0, 2.0, 2.0]


def test_the_tables_of_a_diverged_peer_travel_without_its_model() -> None:
    found = exchange(NextTwo(shares=("seen",)))
    play(found)
    first = found.traffic.bytes
    play(found, rows=[ROWS[0], [torch.nan, 4.0], ROWS[2], ROWS[3]], round=2)
    assert found.traffic.bytes - first == 6 * MODEL + 4 * 2 * (2 * 16)


def test_memory_must_keep_its_shape_if_a_peer_keeps_what_it_remembered() -> None:
    class Growing(NextTwo):
        def choose(self, now: RoundContext, met: Tensor, similarity: Tensor | None) -> Tensor:
            now.memory["past"] = torch.zeros(len(met), now.round)
            return met

    found = exchange(Growing())
    play(found)
    with pytest.raises(
        UserError, match=r"memory\['past'\] must keep its shape from round to round, \[4, 1\], not \[4, 2\]"
    ):
        play(found, round=2, stopped=flags(4, 0))


# Fingerprints and checkpoints


class Introduced(NextTwo):
    """Remembers whose fingerprints it knows."""

    uses_fingerprints = True
    renew = 2

    def on_fingerprints(self, view: View, prints: Fingerprints, ids: Tensor, limited: bool) -> dict[str, Tensor]:
        return {"sizes": prints.bytes.clone() + torch.zeros(len(view.me), dtype=torch.int64)}


def test_fingerprints_come_before_the_first_round_and_are_billed() -> None:
    view = view_of(4)
    source = InMemory(
        view, torch.zeros(4, 2), torch.tensor(COUNTS), lambda _: fingerprints([1, 10, 100, 1000]), None, limited=False
    )
    found = exchange(Introduced(metric=None), source=source)
    models = federation(tiny_task(COUNTS), ROWS)
    for round, times in ((1, 1), (2, 1), (3, 2)):  # made anew every second round
        found.before_training(models, round, EVERYONE)
        assert found.traffic.bytes == times * 3 * 1111
    assert found.memory["sizes"].tolist() == [1, 10, 100, 1000]


def test_a_restored_exchange_goes_on_as_if_it_had_never_stopped() -> None:
    whole = exchange(NextTwo(shares=("seen",)))
    play(whole)
    tensors = {name: tensor.clone() for name, tensor in whole.tensors().items()}
    numbers = whole.numbers()
    again = exchange(NextTwo(shares=("seen",)))
    again.restore(tensors, numbers)
    other = [[1.0, 1.0], [2.0, 2.0], [9.0, 9.0], [4.0, 4.0]]
    assert play(whole, rows=other, round=2)[1] == play(again, rows=other, round=2)[1]
    assert whole.summary(2) == again.summary(2)
    assert {name: t.tolist() for name, t in whole.final().items()} == {n: t.tolist() for n, t in again.final().items()}
    for name, table in whole.memory.items():
        assert torch.equal(table.nan_to_num(), again.memory[name].nan_to_num())


def test_what_a_method_says_in_words_and_numbers_is_checked() -> None:
    class Wordy(NextTwo):
        def notes(self, view: View, memory: dict[str, Tensor]) -> list[str]:
            return "hello"  # type: ignore[return-value]

    class Costly(NextTwo):
        def nominal(self, rounds: int) -> float | None:
            return "much"  # type: ignore[return-value]

    for method, sentence in ((Wordy(), "notes must return a list"), (Costly(), "nominal must return a number")):
        found = exchange(method)
        play(found)
        with pytest.raises(UserError, match=sentence):
            found.summary(1)
