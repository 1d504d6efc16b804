"""From a config to an experiment: what is built, what several runs share, and which objects are refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from homophily import Method, PeerData, RoundContext
from homophily.errors import UserError
from homophily.plugins.registry import GIVEN
from homophily.simulation import training_setup
from homophily.simulation.configuration import make
from homophily.simulation.exchange import PeerExchange
from homophily.simulation.server_exchange import ServerExchange
from homophily.simulation.setup import prepare
from homophily.simulation.training_setup import SetupCache
from homophily.simulation.user_objects import UserObjects
from homophily.training.losses import cross_entropy
from homophily.training.resources import ExecutionPlan

CPU = torch.device("cpu")
NOTHING = UserObjects()
SMALL: dict[str, Any] = {
    "peers": 6,
    "rounds": 9,
    "data": {"train": 8, "test": 5, "angles": [0, 180]},
    "model": {"name": "mlp", "hidden": [4]},
}


@dataclass(frozen=True)
class Everyone(Method):
    """Merges with all."""

    k: int = 3
    share: float | None = None

    def meet(self, now: RoundContext) -> Tensor:
        return now.known

    def in_rounds(self, rounds: int) -> Method:
        return self if self.share is not None else replace(self, share=1 / rounds)


def peers(count: int = 3) -> list[PeerData]:
    rng = np.random.default_rng(0)
    return [PeerData(rng.normal(size=(8, 4)), np.arange(8) % 2) for _ in range(count)]


# What is built


def test_everything_a_run_needs_is_built() -> None:
    config = make({**SMALL, "score": "after-training", "evaluate": 3, "method": {"name": "panm", "k": 2}})
    experiment, complete, plan = prepare(config, NOTHING, CPU)
    task = experiment.task
    assert (task.data.peers, task.data.inputs, task.data.outputs, task.data.classes) == (6, (1, 8, 8), 10, 10)
    assert task.data.cluster is not None
    assert task.data.cluster.tolist() == [0, 0, 0, 1, 1, 1]
    assert task.ids.tolist() == [0, 1, 2, 3, 4, 5]
    assert task.layout.width == 64 * 4 + 4 + 4 * 10 + 10
    assert experiment.start.rows.shape == (6, task.layout.width)
    assert bool((experiment.start.rows == experiment.start.rows[0]).all())
    assert (experiment.rounds, experiment.after_training, experiment.evaluate, experiment.patience) == (9, True, 3, 0)
    assert experiment.engine.name == plan.engine
    exchange = experiment.exchange
    assert isinstance(exchange, PeerExchange)
    assert exchange.evaluator is not None
    assert exchange.source.view(1).known.sum(1).tolist() == [5] * 6
    assert (complete.method.keys["k"], complete.method.keys["t1"]) == (2, 3)  # a third of the rounds, written out
    assert complete.peers == 6
    assert complete.data.validation is not None
    assert complete.data.keys["angles"] == [0.0, 180.0]


def test_defaults_that_are_too_large_for_few_peers_are_cut() -> None:
    _, complete, _ = prepare(make({**SMALL, "method": {"name": "panm"}}), NOTHING, CPU)
    assert (complete.method.keys["k"], complete.method.keys["l"]) == (4, 5)
    with pytest.raises(UserError, match=r"method\.l = 6: must be from 1 to peers - 1, which is 5"):
        prepare(make({**SMALL, "method": {"name": "panm", "l": 6}}), NOTHING, CPU)


def test_contacts_and_topology_bound_the_view() -> None:
    for keys, known in (({"contacts": 2}, [2] * 6), ({"topology": "ring"}, [2] * 6), ({"contacts": 5}, [5] * 6)):
        experiment, _, _ = prepare(make({**SMALL, "method": "random", **keys}), NOTHING, CPU)
        assert isinstance(experiment.exchange, PeerExchange)
        assert experiment.exchange.source.view(1).known.sum(1).tolist() == known


def test_peers_may_start_from_models_of_their_own() -> None:
    experiment, _, _ = prepare(make({**SMALL, "init": "independent"}), NOTHING, CPU)
    rows = experiment.start.rows
    assert len({tuple(row.tolist()) for row in rows}) == 6


def test_a_server_has_its_models_and_notes_what_it_ignores() -> None:
    keys = {**SMALL, "method": {"name": "ifca", "models": 3}, "topology": "ring", "merge": "median"}
    experiment, complete, _ = prepare(make(keys), NOTHING, CPU)
    exchange = experiment.exchange
    assert isinstance(exchange, ServerExchange)
    assert exchange.models.shape == (3, experiment.task.layout.width)
    assert torch.equal(exchange.models[0], experiment.start.rows[0])  # the common one, and two others
    assert not torch.equal(exchange.models[1], exchange.models[2])
    (note,) = exchange.notes
    assert "topology, merge" in note
    assert complete.method.keys == {"fraction": 1.0, "models": 3}


def test_a_plan_that_is_given_is_used() -> None:
    _, _, plan = prepare(make(SMALL), NOTHING, CPU)
    asked = replace(plan, engine="one-by-one", chunk=2)
    experiment, _, found = prepare(make(SMALL), NOTHING, CPU, asked)
    assert found is asked
    assert experiment.engine.name == "one-by-one"


def test_objects_take_the_place_of_names() -> None:
    net, data = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), peers()
    objects = UserObjects(net, data, cross_entropy, Everyone(), {"ones": lambda outputs, targets: 1.0})
    experiment, complete, _ = prepare(make({"rounds": 4}), objects, CPU)
    assert experiment.task.data.peers == complete.peers == 3
    assert experiment.task.loss is cross_entropy
    assert set(experiment.scorer.extra) == {"ones"}
    assert isinstance(experiment.exchange, PeerExchange)
    assert experiment.exchange.method == Everyone(share=0.25)  # with what follows from the rounds
    given = (complete.data.name, complete.model.name, complete.training.loss, complete.method.name)
    assert given == (GIVEN,) * 4
    assert complete.method.keys == {"k": 3, "share": 0.25}
    row, _ = experiment.task.layout.read(net)
    assert torch.equal(experiment.start.rows[0], row)
    # Asked for again with more rounds, the method keeps what followed from the first.
    again, _, _ = prepare(complete.model_copy(update={"rounds": 10}), objects, CPU)
    assert isinstance(again.exchange, PeerExchange)
    assert again.exchange.method == Everyone(share=0.25)


def test_objects_that_a_stored_config_needs_must_be_given_again() -> None:
    objects = UserObjects(data=peers(), loss=cross_entropy, method=Everyone())
    _, complete, _ = prepare(make({"rounds": 4}), objects, CPU)
    for missing in ("loss", "method"):
        with pytest.raises(UserError, match=f"hand it over again as {missing}="):
            prepare(complete, replace(objects, **{missing: None}), CPU)


# What several runs share


def test_runs_on_the_same_federation_share_its_data_and_what_is_known_of_the_network() -> None:
    cache = SetupCache()
    made = [prepare(make({**SMALL, "method": name}), NOTHING, CPU, cache=cache)[0] for name in ("random", "kin", "dac")]
    assert made[0].task.data is made[1].task.data is made[2].task.data
    assert made[0].task.layout is made[1].task.layout is made[2].task.layout
    assert (len(cache.data), len(cache.networks)) == (1, 1)
    assert made[0].start.rows is not made[1].start.rows  # what runs change is their own


def test_another_seed_has_other_data_and_the_same_network() -> None:
    cache = SetupCache()
    first, second = (prepare(make({**SMALL, "seed": seed}), NOTHING, CPU, cache=cache)[0] for seed in (0, 1))
    assert (len(cache.data), len(cache.networks)) == (2, 1)
    assert not torch.equal(first.task.data.train.x, second.task.data.train.x)
    assert first.task.layout is second.task.layout
    assert not torch.equal(first.start.rows, second.start.rows)
    last = list(cache.data)[-1]
    cache.forget()
    assert list(cache.data) == [last]
    assert prepare(make({**SMALL, "seed": 1}), NOTHING, CPU, cache=cache)[0].task.data is second.task.data


def test_what_is_prepared_with_a_cache_equals_what_is_prepared_without() -> None:
    cache = SetupCache()
    prepare(make({**SMALL, "model": {"name": "mlp", "hidden": [9]}}), NOTHING, CPU, cache=cache)
    prepare(make({**SMALL, "seed": 3}), NOTHING, CPU, cache=cache)
    cached, alone = (prepare(make(SMALL), NOTHING, CPU, cache=one)[0] for one in (cache, None))
    assert torch.equal(cached.task.data.train.x, alone.task.data.train.x)
    assert torch.equal(cached.start.rows, alone.start.rows)
    assert cached.task.layout == alone.task.layout
    assert len(cache.networks) == 2


def test_the_kind_of_step_is_measured_once_for_runs_that_do_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def measure(plan: ExecutionPlan, *others: object) -> ExecutionPlan:
        measured.append(plan.engine)
        return replace(plan, step="plain")

    monkeypatch.setattr(training_setup, "with_fastest_step", measure)
    cache = SetupCache()
    for keys in ({"method": "kin"}, {"method": "random", "seed": 1}, {"method": "kin", "training": {"batch": 5}}):
        prepare(make({"peers": 8, "data": {"train": 20}, **keys}), UserObjects(), torch.device("cpu"), cache=cache)
    assert len(measured) == 2


# Objects of a caller


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"model": "mlp"}, "model=: must be one nn.Module, from which every peer starts, not 'mlp'; a name goes into"),
        ({"model": nn.Linear}, "model=: must be one nn.Module, from which every peer starts, not the class Linear"),
        ({"model": [nn.Linear(1, 1)]}, "model=: must be one nn.Module, from which every peer starts, not list"),
        ({"loss": "mse"}, "loss=: must be a function of (outputs, targets), not 'mse'; a name goes into the config as"),
        ({"method": "kin"}, "method=: must be a homophily.Method object, not 'kin'; a name goes into the config as"),
        ({"method": Everyone}, "method=: must be a homophily.Method object, not the class Everyone; call it to make"),
        ({"extra_metrics": [len]}, "extra_metrics=: must be functions by name"),
    ],
)
def test_objects_of_another_kind_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        UserObjects(**given)
    assert str(refused.value).startswith(sentence)


def test_extra_metrics_have_names_of_their_own() -> None:
    both = {**SMALL, "extra_metrics": ["math:fsum"]}
    with pytest.raises(UserError, match="extra_metrics: two of them have the same name"):
        prepare(make(both), UserObjects(extra_metrics={"fsum": lambda outputs, targets: 0.0}), CPU)
    experiment, _, _ = prepare(make(both), UserObjects(extra_metrics={"mine": lambda outputs, targets: 0.0}), CPU)
    assert set(experiment.scorer.extra) == {"fsum", "mine"}
    with pytest.raises(UserError, match="extra_metrics: 'accuracy' is a score that every run has"):
        prepare(make(SMALL), UserObjects(extra_metrics={"accuracy": lambda outputs, targets: 0.0}), CPU)


def test_early_stopping_needs_validation_samples() -> None:
    keys = {**SMALL, "training": {"patience": 2}}
    with pytest.raises(UserError, match=r"training\.patience needs validation samples"):
        prepare(make(keys), NOTHING, CPU)
    experiment, _, _ = prepare(make({**keys, "data": {**SMALL["data"], "validation": 2}}), NOTHING, CPU)
    assert experiment.patience == 2
