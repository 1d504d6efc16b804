"""Several methods, by name or as objects, on the same federations."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import homophily
from homophily import Callback, Method, RoundContext, UserError
from homophily.experiments.callbacks import RunHandle
from homophily.methods.baselines import Random
from homophily.methods.server import FedAvg
from tests.callbacks import InterruptAt

# Methods as objects


@dataclass(frozen=True)
class Nearest(Method):
    """Meets all, merges with the most similar; of a user."""

    k: int = 1
    metric: str | None = "l2"

    def meet(self, now: RoundContext) -> Tensor:
        return now.known

    def choose(self, now: RoundContext, met: Tensor, similarity: Tensor | None) -> Tensor:
        assert similarity is not None
        return now.top(met, self.k, similarity)


class Needy(Method):
    """Cannot be made without arguments."""

    def __init__(self, k: int) -> None:
        self.k = k


SMALL: dict[str, Any] = {
    "peers": 4, "rounds": 3, "checkpoint": 1, "data": {"train": 6, "test": 10, "angles": [0, 180]},
}  # fmt: skip


def test_objects_classes_and_names_are_compared(tmp_path: Path) -> None:
    found = homophily.compare(SMALL, methods=["local", Random(k=2), Nearest, FedAvg()], out=tmp_path / "all")
    assert list(found.runs) == ["local", "random", "Nearest", "fedavg"]
    assert sorted(path.parent.name for path in found.path.glob("*/config.toml")) == [
        "Nearest-0", "fedavg-0", "local-0", "random-0",
    ]  # fmt: skip
    named = homophily.run({**SMALL, "method": {"name": "random", "k": 2}}, out=tmp_path / "named")
    assert found.runs["random"][0].scores == named.scores
    given = homophily.run(SMALL, method=Nearest(), out=tmp_path / "given")
    assert found.runs["Nearest"][0].scores == given.scores
    assert found.table()["Nearest"]["accuracy"]["mean"] == given.summary["accuracy"]
    assert json.loads((found.path / "compare.json").read_text()) == found.table()


def test_a_mapping_names_what_is_compared(tmp_path: Path) -> None:
    some = {"near": Nearest(), "nearer": Nearest(k=2), "all": Nearest(k=9), "random": "random"}
    found = homophily.compare(SMALL, methods=some, seeds=[0, 1], out=tmp_path / "all")
    assert list(found.runs) == list(some)
    assert [len(runs) for runs in found.runs.values()] == [2] * 4
    merges = {name: int(runs[1].merges().sum()) for name, runs in found.runs.items() if name != "random"}
    assert merges == {"near": 3 * 4 * 1, "nearer": 3 * 4 * 2, "all": 3 * 4 * 3}
    assert found.runs["nearer"][0].config.method.keys["k"] == 2


def test_one_object_is_a_comparison(tmp_path: Path) -> None:
    for number, method in enumerate((Nearest(), Nearest)):
        assert list(homophily.compare(SMALL, methods=method, out=tmp_path / str(number)).runs) == ["Nearest"]


@pytest.mark.parametrize(
    ("methods", "sentence"),
    [
        ([Nearest(k=1), Nearest(k=2)], "methods: two of them have one name; give each its own"),
        ([Nearest, Nearest()], "methods: two of them have one name; give each its own"),
        (["random", Random(k=2)], "methods: two of them have one name; give each its own"),
        (["random", "random"], "methods = random,random: each method once"),
        ({"mine": "random"}, "methods: 'mine' must be a Method object or class to be shown under another name"),
        ([Nearest(), 3], "methods: must be names, homophily.Method objects or classes, and one is 3"),
        ([dict], "methods: must be names, homophily.Method objects or classes, and one is <class 'dict'>"),
        ([Needy], "methods: Needy needs k; call it to make an object"),
        ([], "methods = []: must be names separated by commas"),
        ({}, "methods = []: must be names separated by commas"),
        ({3: Nearest()}, "methods = [3]: must be names separated by commas"),
    ],
)
def test_methods_that_cannot_be_compared_are_refused(methods: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        homophily.compare(SMALL, methods=methods, out=tmp_path / "all")
    assert str(refused.value).startswith(sentence)
    assert not (tmp_path / "all").exists()


def test_a_stopped_comparison_of_objects_goes_on(tmp_path: Path) -> None:
    some = {"near": Nearest(), "nearer": Nearest(k=2)}
    whole = homophily.compare(SMALL, methods=some, seeds=[0, 1], out=tmp_path / "whole")

    def stopping(method: str, seed: int) -> list[Callback]:
        return [InterruptAt(2)] if (method, seed) == ("nearer", 0) else []

    with pytest.raises(KeyboardInterrupt):
        homophily.compare(SMALL, methods=some, seeds=[0, 1], callbacks=stopping, out=tmp_path / "stopped")
    first = (tmp_path / "stopped" / "near-0" / "summary.json").read_bytes()
    assert not (tmp_path / "stopped" / "near-1").exists()
    rounds: list[tuple[str, int, int]] = []

    class Rounds(Callback):
        def __init__(self, method: str, seed: int) -> None:
            self.key = method, seed

        def on_round(self, run: RunHandle, metrics: dict[str, Any]) -> None:
            rounds.append((*self.key, metrics["round"]))

    found = homophily.compare(
        SMALL, methods=some, seeds=[0, 1], callbacks=lambda m, s: [Rounds(m, s)], out=tmp_path / "stopped"
    )
    assert rounds[:2] == [("nearer", 0, 2), ("nearer", 0, 3)]
    assert len(rounds) == 2 + 2 * 3
    assert (tmp_path / "stopped" / "near-0" / "summary.json").read_bytes() == first
    for name, runs in whole.runs.items():
        assert [run.scores for run in found.runs[name]] == [run.scores for run in runs]


def test_other_objects_are_another_comparison(tmp_path: Path) -> None:
    homophily.compare(SMALL, methods=[Nearest()], out=tmp_path / "all")
    homophily.compare(SMALL, methods=[Nearest()], out=tmp_path / "all")
    with pytest.raises(UserError, match=r"all holds another comparison: method\.k is 1 there and 2 here"):
        homophily.compare(SMALL, methods=[Nearest(k=2)], out=tmp_path / "all")


def test_keys_of_the_method_table_are_not_for_objects(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown key method\.k: there are no keys for the compared methods"):
        homophily.compare({**SMALL, "method": {"k": 2}}, methods=[Nearest()], out=tmp_path / "all")
    found = homophily.compare({**SMALL, "method": {"k": 2}}, methods=[Nearest(), "random"], out=tmp_path / "all")
    assert found.runs["random"][0].config.method.keys["k"] == 2
    assert found.runs["Nearest"][0].config.method.keys["k"] == 1


@pytest.mark.usefixtures("here")
def test_a_config_of_a_run_can_be_compared() -> None:
    run = homophily.run({"peers": 4, "rounds": 1, "data": {"angles": [0, 180]}, "method": "random"})
    found = homophily.compare(run.config, methods=["random", "local"])
    assert found.table()["random"]["accuracy"]["mean"] == run.summary["accuracy"]
