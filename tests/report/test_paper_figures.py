"""Every kind of figure can be drawn from the stored results of runs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from homophily.papers.recipe import Recipe
from homophily.papers.reproduce import Reproduction
from homophily.papers.tables import Result, known_scores
from homophily.report.paper_figures import stays, written
from tests.papers.test_reproduce import RECIPE

pytest.importorskip("matplotlib")


def recipe(draw: str) -> Recipe:
    values: dict[str, Any] = {**RECIPE, "kind": "figure", "figure": {"draw": draw, "x": "tau"}}
    values["base"] = {**RECIPE["base"], "peers": 9, "topology": {"name": "torus"}}
    values["rows"] = {"panm": {"label": "PANM", "config": {"method": {"name": "panm", "k": 2, "l": 3}}}}
    values |= {"cells": {}, "printed": {"panm": {"mean": 50.0}}, "claims": []}
    values["quick"] = {"rows": ["panm"], "columns": ["mean"]}
    return Recipe.model_validate(values)


@pytest.mark.parametrize("draw", ["curves", "heatmap", "dots", "sensitivity", "topology", "histogram"])
def test_figures(tmp_path: Path, draw: str) -> None:
    found = Reproduction("small", recipe(draw), tmp_path, quick=False, seeds=1)
    assert written(found, tmp_path) == []  # no run has finished
    found.play(torch.device("cpu"), budget=1e9)
    (path,) = written(found, tmp_path)
    assert path.stat().st_size > 5000


@pytest.mark.parametrize("draw", ["curves", "dots"])
def test_a_figure_stays_as_it_is_if_some_columns_are_executed_in_a_store_without_the_others(
    tmp_path: Path, draw: str
) -> None:
    found = Reproduction("small", recipe(draw), tmp_path / "first", quick=False, seeds=1)
    found.play(torch.device("cpu"), budget=1e9)
    assert len(written(found, tmp_path)) == 1
    part = replace(found, store=tmp_path / "second", only_columns=("more",))
    part.play(torch.device("cpu"), budget=1e9)
    assert stays(part, tmp_path)
    assert written(part, tmp_path) == []


@pytest.mark.usefixtures("here")
def test_the_page_of_a_figure_stays_with_its_picture(command: Callable[..., tuple[int, str, str]]) -> None:
    words = ("reproduce", "panm-figure-4", "--quick", "--device", "cpu")
    code, _, err = command(*words, "--store", "first")
    assert code == 0, err
    page, numbers = Path("results/panm-figure-4-quick.md"), Path("results/panm-figure-4-quick.json")
    before = page.read_bytes(), numbers.read_bytes()
    code, out, err = command(*words, "--store", "second", "--budget", "0", "--add")
    assert code == 0, err
    assert "panm-figure-4-quick and its picture stay as they are until all runs of the figure have finished" in out
    assert (page.read_bytes(), numbers.read_bytes()) == before


def test_a_figure_of_scores_is_drawn_with_those_of_stored_results(tmp_path: Path) -> None:
    found = Reproduction("small", recipe("dots"), tmp_path / "first", quick=False, seeds=1)
    found.play(torch.device("cpu"), budget=1e9)
    part = replace(found, store=tmp_path / "second", only_columns=("more",))
    part.play(torch.device("cpu"), budget=1e9)
    written(part, tmp_path)
    assert written(replace(part, known=known_scores([Result.of(found)])), tmp_path) == [tmp_path / "small.png"]


def test_a_table_has_no_figure(tmp_path: Path) -> None:
    found = Reproduction("small", Recipe.model_validate(RECIPE), tmp_path, quick=True, seeds=1)
    found.play(torch.device("cpu"), budget=1e9)
    assert written(found, tmp_path) == []
