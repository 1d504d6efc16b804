"""Every kind of figure is drawn, from the same data as the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from homophily.report.page.document import views_of
from homophily.report.page.drawing import draw_all
from homophily.report.page.figures import (
    Absent,
    Bars,
    Figure,
    Histogram,
    Lines,
    Measured,
    Points,
    Series,
    Tab,
    Table,
    Timeline,
    View,
)

pytest.importorskip("matplotlib")


def drawn(folder: Path, *figures: Figure) -> list[str]:
    view = View("folder", "title", "finished", [], [Tab("tab", figures)])
    return sorted(path.name for path in draw_all([view], folder))


def test_each_kind_of_figure(tmp_path: Path) -> None:
    ids = np.arange(4)
    groups = [("similar", 0.8, 0.1, 2), ("others", 0.2, 0.0, 2)]
    names = drawn(
        tmp_path,
        Lines("lines", "$ <b>", "", "x", "y", [Series("one $", [1, 2], [1.0, None], [0.5, None], [1.5, None], 9)]),
        Bars("bars", "Bars", "", "direction", "value", [3.0, 1.0], 2.0, "noise edge"),
        Points(
            "points", "Points", "", "x", "y", ids, ids, ids, ids % 2, ["a", "b"], ids // 2, ["c", "d"], [(0, 1, "r")]
        ),
        Histogram("histogram", "Histogram", "", "similarity", {"p": [Measured(1, np.array([0.1, 0.3, 0.8]), groups)]}),
        Timeline("timeline", "Timeline", "", ["a"], [1, 2], np.array([[0, 2]]), ["no", "met", "merged", "away"]),
    )
    assert names == sorted(
        f"{k}.{e}" for k in ("lines", "bars", "points", "histogram", "timeline") for e in ("png", "svg")
    )
    assert all((tmp_path / name).stat().st_size > 3000 for name in names)


def test_absent_figures_are_not_drawn_and_tables_are_written_as_text(tmp_path: Path) -> None:
    table = Table("table", "Table", "", ["name", "value"], [["a", "1"]])
    hidden = Table("hidden", "Table", "", ["name"], [["a"]], copied=False)
    assert drawn(tmp_path, Absent("absent", "Absent", "why"), table, hidden) == ["table.csv", "table.md", "table.tex"]
    assert (tmp_path / "table.csv").read_text() == "name,value\na,1\n"


def test_several_folders_have_files_of_their_own(folders: Path, tmp_path: Path) -> None:
    views = views_of([folders / "compare/random-0", folders / "compare/oracle-0"])
    names = [path.name for path in draw_all(views[1:], tmp_path)]
    assert len(names) == len(set(names))
    assert any(name.startswith("1-") and name.endswith("random-0-by-round.png") for name in names)
