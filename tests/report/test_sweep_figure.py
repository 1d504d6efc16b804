"""The score against a swept key, as plain data and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import homophily
from homophily import Comparison, UserError
from homophily.report.plots import sweep as draw
from homophily.report.sweep_figure import panels

SMALL: dict[str, Any] = {"peers": 6, "rounds": 1, "data": {"train": 6, "test": 10, "angles": [0, 180]}}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    sweep = {"method.k": [4, 1, 2], "topology": ["full", "ring"]}
    return homophily.compare(
        SMALL, methods=["local", "random"], seeds=[0, 1], sweep=sweep, out=tmp_path_factory.mktemp("sweep") / "study"
    )


def test_a_panel_for_each_key_and_a_curve_for_each_method_and_value_of_the_others(swept: Comparison) -> None:
    by_k, by_graph = panels(swept)
    assert (by_k.key, by_k.values, by_k.scale, by_k.score, by_k.higher_is_better) == (
        "method.k", [1, 2, 4], "linear", "accuracy", True,
    )  # fmt: skip
    assert [(curve.name, curve.values) for curve in by_k.curves] == [
        ("local topology=full", []),
        ("local topology=ring", []),
        ("random topology=full", [1, 2, 4]),
        ("random topology=ring", [1, 2, 4]),
    ]
    table = swept.table()["random k=2 topology=ring"]["accuracy"]
    assert (by_k.curves[3].mean[1], by_k.curves[3].std[1]) == (table["mean"], table["std"])
    assert (by_graph.key, by_graph.values, by_graph.scale) == ("topology.name", ["full", "ring"], "names")
    assert [curve.name for curve in by_graph.curves] == ["local", "random k=4", "random k=1", "random k=2"]


def test_values_that_differ_by_orders_of_magnitude_are_on_a_logarithmic_axis(tmp_path: Path) -> None:
    found = homophily.compare(
        SMALL, methods=["local"], sweep={"training.lr": [0.001, 0.01, 0.1]}, out=tmp_path / "study"
    )
    (panel,) = panels(found)
    assert panel.scale == "log"
    assert panel.curves[0].std == [None] * 3


def test_the_picture_is_drawn_in_the_folder(swept: Comparison, tmp_path: Path) -> None:
    draw(swept, tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_without_a_sweep_there_is_no_picture(tmp_path: Path) -> None:
    found = homophily.compare(SMALL, methods=["local"], out=tmp_path / "study")
    assert panels(found) == []
    with pytest.raises(UserError, match="has no finished runs with several values of a swept key"):
        draw(found, tmp_path / "sweep.png")
