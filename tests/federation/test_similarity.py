"""The declared cost of a metric decides what is sent for it."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from torch import Tensor

import homophily
from homophily.errors import UserError
from homophily.federation.similarity import MetricCost, Pairs, cost_of, costs, metrics
from homophily.methods.baselines import Random

SMALL = {"peers": 6, "rounds": 1}


@costs(MetricCost())
def frugal(pairs: Pairs) -> Tensor:
    return pairs.mine.double().sum(1) - pairs.yours.double().sum(1)


@costs(MetricCost())
def undeclared(pairs: Pairs) -> Tensor:
    return pairs.my_update.double().sum(1)


def silent(pairs: Pairs) -> Tensor:
    return frugal(pairs)


@dataclass(frozen=True)
class Comparing(Random):
    metric: str = "frugal"


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        metrics, "_items", {**metrics._items, "frugal": frugal, "undeclared": undeclared, "silent": silent}
    )


def test_a_metric_that_declares_nothing_may_use_anything() -> None:
    assert cost_of(silent, {}) == MetricCost(updates=True, displacement=True)
    assert cost_of(frugal, {}) == MetricCost()
    assert cost_of(metrics.get("loss"), {"on": "peer"}) == MetricCost(models=2, losses="peer")


def test_a_declared_metric_sends_models_only(tmp_path: Path) -> None:
    sent = [
        homophily.run(SMALL, method=Comparing(metric=name), out=tmp_path / name).summary["bytes_sent_per_peer"]
        for name in ("frugal", "silent")
    ]
    assert sent[1] == 2 * sent[0]


def test_a_metric_that_uses_more_than_it_declares_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="metric: it uses more than its MetricCost declares: updates, or displacement"):
        homophily.run(SMALL, method=Comparing(metric="undeclared"), out=tmp_path / "run")
