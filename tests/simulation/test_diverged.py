"""A diverged model has no accuracy: not in a run, a comparison or a paper's table, and nobody can overlook it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

import homophily
from homophily.papers import tables
from homophily.papers.recipe import Recipe
from homophily.papers.reproduce import Reproduction
from homophily.papers.verdicts import verdicts
from tests.papers.test_reproduce import CPU, RECIPE

pytestmark = pytest.mark.usefixtures("here")

DIVERGING = {"training": {"lr": 1e30}, "rounds": 3, "peers": 6}
FEW = ("peers=6", "rounds=3", "data.test=10", "training.lr=1e30")


def mostly_zeros(peers: int = 4) -> list[homophily.PeerData]:
    """Imbalanced labels: always answering class 0 would be right for five of six samples."""
    rng = np.random.default_rng(0)
    return [homophily.PeerData(rng.normal(size=(60, 4)), np.arange(60) % 6 // 5) for _ in range(peers)]


def exploding(peers: int = 4) -> list[homophily.PeerData]:
    """The inputs of the last peer are so large that its training overflows."""
    data = mostly_zeros(peers)
    return [*data[:-1], homophily.PeerData(data[-1].x * 1e30, data[-1].y)]


def test_all_scores_of_a_diverged_run_are_null_and_it_warns() -> None:
    with pytest.warns(homophily.DivergedWarning, match="4 peers in runs"):
        found = homophily.run(DIVERGING | {"peers": None}, data=mostly_zeros())
    for name in ("accuracy", "accuracy_over_clusters", "loss"):
        assert found.summary[name] is None
    assert found.summary["accuracy_by_cluster"] == {"all": None}
    assert found.scores["accuracy"] == found.scores["loss"] == [None] * 4
    assert found.summary["diverged"] == [0, 1, 2, 3]
    assert found.metrics()[-1]["accuracy"] is None
    (note,) = [note for note in found.summary["notes"] if "diverged" in note]
    assert note.startswith("4 of 4 peers have diverged (peers 0, 1, 2, 3)")
    assert "training.lr" in note


def test_one_diverged_peer_has_no_scores_and_the_means_that_include_it_are_null() -> None:
    config = {"rounds": 2, "method": "local", "data": {"normalise": "unit"}}
    metrics = {"ones": lambda outputs, targets: 1.0}
    with pytest.warns(homophily.DivergedWarning):
        found = homophily.run(config, data=exploding(), extra_metrics=metrics)
    assert found.summary["diverged"] == [3]
    for name in ("accuracy", "loss", "ones"):
        assert found.summary[name] is None
        assert [value is None for value in found.scores[name]] == [False, False, False, True]


def test_a_metric_that_is_undefined_for_a_healthy_peer_is_left_out_of_its_mean_with_a_note() -> None:
    asked: list[int] = []

    def sometimes(outputs: Tensor, targets: Tensor) -> float:
        asked.append(1)
        return math.nan if len(asked) % 4 == 1 else 2.0

    config = {"rounds": 1, "method": "local", "evaluate": 1, "engine": "one-by-one"}
    found = homophily.run(config, data=mostly_zeros(), extra_metrics={"sometimes": sometimes})
    assert found.summary["sometimes"] == 2.0
    assert any("sometimes is undefined for 1 of 4 peers" in note for note in found.summary["notes"])


def test_a_run_without_diverged_peers_does_not_warn(recwarn: pytest.WarningsRecorder) -> None:
    homophily.run({"peers": 4, "rounds": 1})
    assert not [one for one in recwarn if issubclass(one.category, homophily.DivergedWarning)]


def test_peers_that_recovered_are_named_in_the_notes() -> None:
    config = {"rounds": 3, "method": {"name": "random", "k": 3}, "model": "linear", "data": {"normalise": "unit"}}
    data = exploding()
    test = mostly_zeros()[-1]
    data[-1] = homophily.PeerData(data[-1].x, data[-1].y, test_x=test.x, test_y=test.y)
    found = homophily.run(config, data=data)
    assert (found.summary["ever_diverged"], found.summary["diverged"]) == ([3], [])
    assert found.summary["accuracy"] is not None
    assert any("1 of 4 peers diverged (peer 3) and recovered" in note for note in found.summary["notes"])


def test_the_command_fails_and_suggests_the_learning_rate_if_every_peer_has_diverged(command: Any) -> None:
    code, out, err = command("run", *FEW)
    assert code == 1
    assert err == "error: every peer has diverged, so there are no scores: training.lr = 1e+30 may be too high\n"
    assert "6 of 6 peers have diverged" in " ".join(out.split())
    code, out, _ = command("run", *FEW, "--json")
    assert code == 1
    assert json.loads(out.splitlines()[-1])["accuracy"] is None


def test_compare_shows_diverged_runs_and_succeeds(command: Any) -> None:
    code, out, err = command("compare", "methods=local,random", "seeds=0,1", *FEW)
    assert (code, err) == (0, "")
    assert [line.split()[-3] for line in out.splitlines() if line.strip().startswith(("local", "random"))] == [
        "diverged"
    ] * 2
    code, out, _ = command("compare", "methods=local", "seeds=0,1", *FEW, "--json")
    assert json.loads(out.splitlines()[-1])["methods"]["local"]["accuracy"] is None


def test_a_comparison_warns_once_and_has_no_means_of_diverged_runs() -> None:
    with pytest.warns(homophily.DivergedWarning) as caught:
        found = homophily.compare(DIVERGING, methods=["local", "random"], seeds=[0, 1])
    assert len(caught) == 1
    assert found.table()["local"]["accuracy"] is None


def test_a_papers_table_shows_diverged_cells(tmp_path: Path) -> None:
    recipe = {**RECIPE, "base": {**RECIPE["base"], "training": {"lr": 1e30}}, "cells": {}}
    found = Reproduction("small", Recipe.model_validate(recipe), tmp_path, True, 1)
    assert found.play(CPU, math.inf) == 0
    cell = tables.numbers(found)["random"]["mean"]
    assert (cell.mean, cell.values, tables.cell_text(cell)) == (None, {0: None}, "diverged")
    assert [one.held for one in verdicts(tables.Result.of(found))] == [None]
