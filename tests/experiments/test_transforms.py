"""Transforms in a run: named or given, resumed, in comparisons, and without effect on kin's fingerprints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import homophily
from homophily.data.transforms import Draws

KEYS: dict[str, Any] = {"peers": 6, "rounds": 4, "checkpoint": 1, "method": "local", "data": {"test": 20}}


def dimmed(x: Tensor, draws: Draws) -> Tensor:
    return x * draws.uniform(1, 1, 1)


def models(path: Path) -> bytes:
    return (path / "models.safetensors").read_bytes()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("engine", ["stacked", "vectorised", "one-by-one"])
def test_a_resumed_run_equals_one_that_was_not_stopped(here: Path, engine: str) -> None:
    keys = {**KEYS, "engine": engine, "data": {"test": 20, "transform": ["flip", "crop"]}}
    homophily.run(keys, out=here / "whole")
    homophily.run({**keys, "rounds": 2}, out=here / "parts")
    homophily.resume(here / "parts", {"rounds": 4})
    homophily.run({**KEYS, "engine": engine}, out=here / "plain")
    assert models(here / "whole") == models(here / "parts")
    assert models(here / "whole") != models(here / "plain")
    assert homophily.Run(here / "whole").config.data.transform == ["flip", "crop"]


@pytest.mark.usefixtures("here")
def test_a_given_transform_must_be_given_again(here: Path) -> None:
    homophily.run({**KEYS, "rounds": 2}, transform=dimmed, out=here / "run")
    with pytest.raises(homophily.UserError, match=r"data\.transform: this run's transform was given in Python"):
        homophily.resume(here / "run", {"rounds": 4})
    homophily.resume(here / "run", {"rounds": 4}, transform=dimmed)
    homophily.run(KEYS, transform=[dimmed], out=here / "whole")
    assert models(here / "run") == models(here / "whole")


@pytest.mark.usefixtures("here")
def test_fingerprints_do_not_change_and_comparisons_take_a_transform() -> None:
    plain = homophily.kin({"peers": 8}).prints
    turned = homophily.kin({"peers": 8, "data": {"transform": "flip"}}).prints
    assert torch.equal(plain.mean, turned.mean)
    assert torch.equal(plain.factor, turned.factor)
    found = homophily.compare({"peers": 6, "rounds": 1}, methods=["local", "random"], transform=dimmed)
    assert {run.config.data.transform for runs in found.runs.values() for run in runs} == {"(given in Python)"}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"config": {"data": {"transform": "flop"}}}, "unknown transform 'flop' (did you mean 'flip'?)"),
        ({"config": {"data": {"name": "linear", "transform": "flip"}}}, "data.transform = 'flip': needs images"),
        ({"transform": 3}, "transform=: must be a function of (x, draws), not int"),
        (
            {"transform": "flip"},
            "transform=: must be a function of (x, draws), not 'flip'; a name goes into",
        ),
        ({"transform": [dimmed, 3]}, "transform=: must be a function of (x, draws), not int"),
        ({"transform": lambda x: x}, "data.transform = '<lambda>' must take (x, draws), not (x)"),
    ],
)
def test_mistakes_are_reported_before_the_first_round(given: dict[str, Any], message: str) -> None:
    with pytest.raises(homophily.UserError) as error:
        homophily.run(**given)
    assert str(error.value).startswith(message)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("engine", ["stacked", "vectorised", "one-by-one"])
def test_an_error_in_a_transform_names_it_and_the_peer(engine: str) -> None:
    def careful(x: Tensor, draws: Draws) -> Tensor:
        if bool((x > 5).any()):
            raise ArithmeticError("too bright")
        return x

    def peer(brightest: float) -> homophily.PeerData:
        x = torch.linspace(0, 1, 36).view(12, 3)
        x[-2:] *= brightest  # not among the samples on which the transform is tried
        return homophily.PeerData(x, [0, 1] * 6, test_x=x, test_y=[0, 1] * 6)

    data = {"north": peer(1), "south": peer(9), "west": peer(1)}
    config = {"rounds": 1, "engine": engine, "method": "local"}
    with pytest.raises(homophily.UserError) as error:
        homophily.run(config, model=torch.nn.Sequential(torch.nn.Linear(3, 2)), data=data, transform=careful)
    said = "peer 'south': data.transform: 'careful' fails on inputs torch.float32 "
    assert str(error.value).startswith(said)
    assert str(error.value).endswith(": ArithmeticError: too bright")
    assert isinstance(error.value.__cause__, ArithmeticError)
