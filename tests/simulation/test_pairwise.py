"""Similarities are measured some pairs at a time, and how many does not matter."""

from dataclasses import replace

import pytest
import torch

from homophily.errors import UserError
from homophily.simulation.configuration import make
from homophily.simulation.exchange import PeerExchange
from homophily.simulation.pairwise import PairwiseEvaluator, similarity_table
from homophily.simulation.setup import prepare
from homophily.simulation.sources import LocalModels, Published
from homophily.simulation.user_objects import UserObjects

CPU = torch.device("cpu")


def evaluator(
    metric: str, chunk: int, hidden: int = 8, validation: int = 0, **method: str
) -> tuple[PairwiseEvaluator, LocalModels]:
    config = make({
        "peers": 6, "data": {"train": 5, "test": 5, "validation": validation},
        "model": {"name": "mlp", "hidden": [hidden]}, "method": {"name": "panm", "metric": metric, "k": 2, **method},
    })  # fmt: skip
    experiment, _, _ = prepare(config, UserObjects(), CPU)
    assert isinstance(experiment.exchange, PeerExchange)
    made, source = experiment.exchange.evaluator, experiment.exchange.source
    assert made is not None
    now, before = experiment.start.copy(), experiment.start.rows
    now.rows += torch.randn(before.shape, generator=torch.Generator().manual_seed(0))
    nobody, everyone = torch.zeros(6, dtype=torch.bool), torch.ones(6, dtype=torch.bool)
    source.publish(1, Published(now, before, nobody, everyone, {}))
    fetched = source.fetch(1, source.view(1).known, updates=True)
    models = replace(fetched, start=torch.zeros_like(before))
    return PairwiseEvaluator(made.metric, made.task, made.engine, chunk, made.cost), models


@pytest.mark.parametrize("metric", ["loss", "l2", "cosine-weights", "cosine-gradients", "panm"])
def test_the_size_of_a_chunk_changes_nothing(metric: str) -> None:
    me, you = (~torch.eye(6, dtype=torch.bool)).nonzero(as_tuple=True)
    apart, together = (
        one.similarities(models, me, you) for one, models in (evaluator(metric, 1), evaluator(metric, 99))
    )
    assert torch.equal(apart, together)
    assert together.shape == (30,)
    assert together.unique().numel() > 6


def test_a_cpu_compares_no_more_rows_at_a_time_than_its_cache_holds() -> None:
    assert evaluator("panm", chunk=1000)[0].chunk == 1000
    assert 1 <= evaluator("panm", chunk=1000, hidden=4000)[0].chunk < 20  # rows of 300,000 numbers
    assert evaluator("loss", chunk=1000, hidden=4000)[0].chunk == 1000  # whose engine sees to that itself


def test_an_undefined_similarity_is_minus_infinity_unless_all_of_a_peers_are_undefined() -> None:
    met = torch.tensor([[True, True, True], [True, False, True]])
    nan, inf = torch.nan, torch.inf
    found = torch.tensor([nan, -2.0, 1.0, nan, nan], dtype=torch.float64)
    diverged = torch.tensor([False, False, True, False, False])
    assert similarity_table(found, met, diverged).tolist() == [[-inf, -2.0, -inf], [0.0, -inf, 0.0]]


@pytest.mark.parametrize("name", ["panm", "pens", "dac", "dac-var", "dpg", "dpg-s"])
def test_losses_on_validation_samples_are_those_that_the_network_has_there(name: str) -> None:
    made, models = evaluator("loss", 99, validation=7, name=name, losses="validation")
    me, you, held = torch.tensor([0, 3]), torch.tensor([1, 2]), made.task.data.validation
    assert held is not None
    found = made.similarities(models, me, you).tolist()
    for mine, yours, similarity in zip(me, you, found, strict=True):
        index = held.samples(mine[None], 7)[0]
        outputs = made.engine.predict(models.rows[yours][None], {}, held.x[index][None])[0]
        assert similarity == pytest.approx(1 / float(made.task.loss(outputs, held.y[index]).double().mean()), rel=1e-5)


def test_losses_on_validation_samples_need_them() -> None:
    with pytest.raises(
        UserError, match=r"method\.losses = 'validation' needs validation samples: set data\.validation"
    ):
        evaluator("loss", 99, losses="validation")


def test_with_another_metric_the_key_has_no_effect() -> None:
    assert evaluator("panm", 99, losses="validation")[0].cost == evaluator("panm", 99)[0].cost
