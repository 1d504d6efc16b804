"""Runs with [privacy]: what they promise and spend, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

import homophily
from homophily.errors import UserError
from homophily.privacy.accountant import epsilon_of
from homophily.privacy.loss_distribution import Release

SMALL = {
    "peers": 4, "rounds": 3, "data": {"train": 40, "test": 20}, "method": "random",
    "training": {"batch": 10, "epochs": 2}, "model": {"hidden": [8]},
}  # fmt: skip
pytestmark = pytest.mark.usefixtures("here")


def _run(privacy: dict[str, Any], out: str = "run", model: Any = None, **keys: Any) -> homophily.Run:
    config = {**SMALL, "privacy": {"epsilon": 8.0, **privacy}, **keys}
    if model is not None:
        config.pop("model")
    return homophily.run(config, out=out, model=model)


def test_a_run_spends_what_it_promises(here: Path) -> None:
    told = _run({}).summary["privacy"]
    assert (told["epsilon_promised"], told["delta"], told["unit"]) == (8.0, 1e-5, "sample")
    assert 7.9 < told["epsilon_spent"] <= 8.0
    steps = 3 * 2 * 4  # rounds, epochs, 1 / rate
    assert epsilon_of([Release(told["noise"], 0.25, steps)], 1e-5) == pytest.approx(8.0, rel=0.01)


def test_less_epsilon_needs_more_noise_and_persons_more_than_samples() -> None:
    noise = [
        _run(keys, out=str(number)).summary["privacy"]["noise"]
        for number, keys in enumerate([{}, {"epsilon": 2.0}, {"unit": "person", "samples_per_person": 3}])
    ]
    assert noise[0] < noise[2] < 3.5 * noise[0]
    assert noise[0] < noise[1]


def test_engines_give_the_same_private_models() -> None:
    losses = [_run({}, out=name, engine=name).summary["loss"] for name in ("one-by-one", "vectorised", "auto")]
    assert losses == pytest.approx(losses[:1] * 3, rel=1e-4)


def test_the_stacked_engine_is_refused() -> None:
    with pytest.raises(UserError, match="gradient of every sample"):
        _run({}, engine="stacked")


def test_a_stopped_run_is_resumed_with_the_same_draws_and_not_extended() -> None:
    whole = _run({}, out="whole")
    simulation = homophily.Simulation({**SMALL, "privacy": {"epsilon": 8.0}}, out="part")
    simulation.step()
    simulation.save()
    again = homophily.resume("part")
    assert again.summary["loss"] == whole.summary["loss"]
    assert again.summary["privacy"] == whole.summary["privacy"]
    with pytest.raises(UserError, match="another number of rounds needs a new run"):
        homophily.resume("whole", {"rounds": 5})


NORM = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"method": "pens"}, "losses on private data"),
        ({"method": "kin"}, "no noise yet"),
        ({"method": "fedavg"}, "exact sample counts"),
        ({"merge": "fedavg"}, "exact sample counts"),
        ({"training": {"patience": 2}, "data": {"validation": 10, "train": 40}}, "patience"),
        ({"training": {"optimizer": "RMSprop"}}, "sgd, adam, adamw"),
        ({"model": NORM}, "BatchNorm"),
        ({"privacy": {"delta": 0.05}}, "below 1 / 40"),
        (
            {"privacy": {"epsilon": 0.05}},
            "max_noise = 30; what would do: epsilon = .* samples per peer or fewer",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_the_account_does_not_cover_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        _run(keys.pop("privacy", {}), **keys)
