"""Every kind of figure can be drawn from the stored results of runs."""

from pathlib import Path
from typing import Any

import pytest
import torch

from homophily.papers.recipe import Recipe
from homophily.papers.reproduce import Reproduction
from homophily.report.paper_figures import written
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


def test_a_table_has_no_figure(tmp_path: Path) -> None:
    found = Reproduction("small", Recipe.model_validate(RECIPE), tmp_path, quick=True, seeds=1)
    found.play(torch.device("cpu"), budget=1e9)
    assert written(found, tmp_path) == []
