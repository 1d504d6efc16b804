"""A comparison on several ranks of torchrun: each run is played by all of them, and the table is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import homophily
from tests.cluster.test_faults import said_after_kill
from tests.cluster.test_ranks import contents, tensors, torchrun

KEYS = ["engine=one-by-one", "peers=7", "data.train=20", "data.test=6", "training.epochs=1", "method.k=2"]
CONFIG = {
    "engine": "one-by-one",
    "peers": 7,
    "data": {"train": 20, "test": 6},
    "training": {"epochs": 1},
    "method": {"k": 2},
}


def timeless(table: dict[str, Any]) -> dict[str, Any]:
    return {method: {name: value for name, value in row.items() if name != "seconds"} for method, row in table.items()}


def assert_equal_runs(found: Path, expected: Path) -> None:
    folders = sorted(path.parent.name for path in expected.glob("*/summary.json"))
    assert sorted(path.parent.name for path in found.glob("*/summary.json")) == folders
    for name in folders:
        assert contents(found / name) == contents(expected / name), name
        there, here = tensors(expected / name), tensors(found / name)
        assert {key: table.tolist() for key, table in here.items()} == {k: t.tolist() for k, t in there.items()}


@pytest.mark.usefixtures("here")
def test_a_comparison_gives_the_same_table_on_any_number_of_ranks_and_grows_on_another() -> None:
    words = ["homophily", "compare", *KEYS, "rounds=3", "--device", "cpu", "--out", "ranks", "--json"]
    first = torchrun(3, *words, "methods=local,random", "seeds=0,1")
    assert first.returncode == 0, first.stderr
    homophily.compare({**CONFIG, "rounds": 3}, methods=["local", "random"], seeds=[0, 1], out="alone", device="cpu")
    assert_equal_runs(Path("ranks"), Path("alone"))
    begun = {path: path.stat().st_mtime_ns for path in Path("ranks").glob("*/run.json")}
    grown = torchrun(2, *words, "methods=local,random,kin", "seeds=0,1")
    assert grown.returncode == 0, grown.stderr
    alone = homophily.compare(
        {**CONFIG, "rounds": 3}, methods=["local", "random", "kin"], seeds=[0, 1], out="alone", device="cpu"
    )
    table = json.loads(grown.stdout.splitlines()[-1])["methods"]
    assert timeless(table) == timeless(json.loads(json.dumps(alone.table())))
    assert len(grown.stdout.splitlines()) == 1  # one rank prints
    assert_equal_runs(Path("ranks"), Path("alone"))
    assert begun == {path: path.stat().st_mtime_ns for path in begun}  # only what was missing was run


@pytest.mark.usefixtures("here")
def test_a_comparison_whose_rank_is_killed_goes_on_with_another_number_of_ranks() -> None:
    words = ["homophily", "compare", *KEYS, "rounds=60", "checkpoint=5", "methods=random,local", "--device", "cpu"]
    words += ["--out", "killed"]
    assert "rank 1 of 2 has ended" in said_after_kill(2, words, Path("killed/random-0"))
    done = torchrun(3, *words)
    assert done.returncode == 0, done.stderr
    homophily.compare({**CONFIG, "rounds": 60, "checkpoint": 5}, methods=["random", "local"], out="alone", device="cpu")
    assert_equal_runs(Path("killed"), Path("alone"))


@pytest.mark.usefixtures("here")
def test_workers_and_ranks_exclude_each_other() -> None:
    done = torchrun(2, "homophily", "compare", *KEYS, "methods=local,random", "--workers", "2", "--device", "cpu")
    assert done.returncode != 0
    assert done.stderr.count("workers = 2: the processes of torchrun play each run together") == 1
    assert not Path("runs").exists()
