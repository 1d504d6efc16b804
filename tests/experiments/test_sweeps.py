"""Lists of values for config keys, and all combinations of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import homophily
from homophily import UserError
from homophily.config.overlay import nested
from homophily.experiments.sweeps import combinations

Command = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("sweep.method.k=1,2,4", [{"method.k": 1}, {"method.k": 2}, {"method.k": 4}]),
        ("sweep.method.k=[1, 2]", [{"method.k": 1}, {"method.k": 2}]),
        ("sweep.training.lr=0.1", [{"training.lr": 0.1}]),
        ("sweep.topology=torus, full", [{"topology.name": "torus"}, {"topology.name": "full"}]),
        ("sweep.data.angles=[0,90],[0,180]", [{"data.angles": [0, 90]}, {"data.angles": [0, 180]}]),
        ("sweep.rounds=1,2", [{"rounds": 1}, {"rounds": 2}]),
    ],
)
def test_values_of_the_command_line(word: str, values: list[dict[str, Any]]) -> None:
    assert combinations(nested([word])["sweep"]) == values


def test_several_keys_make_all_combinations() -> None:
    expected = [{"a": 1, "b.c": 3}, {"a": 1, "b.c": 4}, {"a": 2, "b.c": 3}, {"a": 2, "b.c": 4}]
    assert combinations({"a": [1, 2], "b.c": [3, 4]}) == expected
    assert combinations({"a": [1, 2], "b": {"c": (3, 4)}}) == expected
    assert combinations({}) == [{}]


@pytest.mark.parametrize(
    ("sweep", "sentence"),
    [
        ({"seed": [0, 1]}, "sweep.seed: a comparison takes seeds=0,1,2 instead"),
        ({"method": ["kin"]}, "sweep.method: a comparison takes methods=panm,kin instead"),
        ({"method.kin.k": [1]}, "sweep.method.kin.k: sweep method.k, which goes to the methods that have this key"),
        ({"method.k": [1, 1]}, "sweep.method.k = [1, 1]: must be different values separated by commas"),
        ({"method.k": []}, "sweep.method.k = []: must be different values separated by commas"),
        ([1], "sweep = [1]: must be keys, each with a list of values, as sweep.method.k=1,2,4"),
        ({"method.kk": [1]}, "unknown key method.kk (did you mean k?)"),
        ({"training.lrr": [1]}, "unknown key training.lrr (did you mean lr?)"),
        ({"method.k": [2, 99]}, "method.k = 99: must be from 1 to peers - 1, which is 3"),
        ({"rounds": [1, "x"]}, 'rounds = "x": must be a whole number'),
    ],
)
def test_mistakes_are_reported_before_any_run_begins(sweep: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        homophily.compare({"peers": 4, "rounds": 1}, methods=["local", "random"], sweep=sweep, out=tmp_path / "s")
    assert str(refused.value).startswith(sentence)
    assert not (tmp_path / "s").exists()


def test_a_key_that_is_swept_and_set_for_one_method_is_refused(tmp_path: Path) -> None:
    keys = {"peers": 4, "method": {"random": {"k": 1}}}
    with pytest.raises(UserError, match=r"method\.random\.k: leave it out, or leave out sweep\.method\.k"):
        homophily.compare(keys, methods=["random"], sweep={"method.k": [1, 2]}, out=tmp_path / "s")


def test_a_sweep_stands_in_a_file_and_the_command_line_replaces_it(command: Command) -> None:
    Path("study.toml").write_text(
        'peers = 4\nrounds = 1\nmethods = ["local", "random"]\n[data]\ntrain = 5\n[sweep]\nmethod.k = [1, 2]\n'
    )
    code, out, _ = command("compare", "study.toml", "--out", "study")
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert [line[:2] for line in lines if line[:1] in (["local"], ["random"])] == [
        ["local", "-"], ["random", "1"], ["random", "2"],
    ]  # fmt: skip
    assert lines[2][:2] == ["method", "k"]
    assert command("compare", "study.toml", "sweep.method.k=3", "--out", "study")[0] == 0
    assert list(homophily.Comparison("study").runs) == ["local", "random k=1", "random k=2", "random k=3"]


@pytest.mark.usefixtures("here")
def test_an_objective_is_swept_by_its_name() -> None:
    config = {"peers": 8, "rounds": 1, "data": {"test": 20}}
    found = homophily.compare(config, methods="local", sweep={"training.objective": ["loss", "fedprox"]})
    assert [row.swept for row in found.rows] == [
        {"training.objective.name": "loss"},
        {"training.objective.name": "fedprox"},
    ]
    names = [run.config.training.objective.name for row in found.rows for run in row.runs]
    assert names == ["loss", "fedprox"]


def test_headlines_cannot_be_swept() -> None:
    with pytest.raises(UserError, match=r"sweep\.headline: runs with different headline metrics have no score"):
        homophily.compare({"peers": 8, "rounds": 1}, methods="local", sweep={"headline": ["f1", "accuracy"]})


@pytest.mark.usefixtures("here")
def test_a_method_without_the_swept_key_can_be_shown_alone_and_added_later() -> None:
    config = {"peers": 8, "rounds": 1, "data": {"test": 20}}
    homophily.compare(config, methods=["local", "random"], sweep={"method.k": [1, 2]}, out="both")
    alone = homophily.compare("both", methods=["local"])
    assert [(row.method, row.swept) for row in alone.rows] == [("local", {})]
    assert [row.method for row in homophily.compare("both", methods=["fedavg"]).rows] == ["fedavg"]
