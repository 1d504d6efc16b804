"""Every field that a run writes is declared in one list, and the docs have a line about each."""

import ast
import re
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any

import pytest

import homophily
from homophily.runs import fields
from homophily.runs.fields import RESERVED, PeerScores, RoundMetrics, Summary, names

PAGE = Path(__file__).resolve().parents[2] / "docs" / "run-folder.md"
SMALL: dict[str, Any] = {"peers": 4, "rounds": 2, "data": {"train": 6, "test": 5, "angles": [0, 180]}}


def documented(heading: str) -> list[str]:
    """The names in the first column of the first table below a heading."""
    below = PAGE.read_text(encoding="utf-8").partition(f"{heading}\n")[2].splitlines()
    lines = takewhile(lambda line: line.startswith("|"), dropwhile(lambda line: not line.startswith("|"), below))
    return [name for line in list(lines)[2:] for name in re.findall(r"`(\w+)`", line.split(" | ")[0])]


@pytest.mark.parametrize(
    ("heading", "declared"),
    [
        ("## The result: `summary.json` and `--json`", Summary),
        ("### `metrics.jsonl`", RoundMetrics),
        ("### `scores.json`", PeerScores),
    ],
)
def test_the_docs_have_a_line_about_each_field(heading: str, declared: Any) -> None:
    assert sorted(documented(heading)) == sorted(names(declared))


@pytest.mark.parametrize(
    "keys",
    [
        {"method": "local"},
        {"method": "dac"},
        {"method": "kin", "topology": "ring"},
        {"method": "ifca"},
        {"method": "random", "data": {"name": "linear", "train": 6, "test": 5}, "training": {"lr": 1e-3}},
        {"method": "random", "evaluate": 2, "training": {"patience": 1}, "data": {**SMALL["data"], "validation": 2}},
        {"method": "random", "merge_guard": 2, "data": {**SMALL["data"], "validation": 2}},
    ],
)
def test_a_run_writes_declared_fields_only(keys: dict[str, Any], tmp_path: Path) -> None:
    found = homophily.run({**SMALL, **keys}, out=tmp_path / "run")
    other = "accuracy" if "mse" in found.summary else "mse"  # classification or regression, never both
    absent = {name for name in RESERVED if name.startswith(other)}
    if "merge_guard" not in keys:
        absent.add("models_left_out")
    assert set(found.summary) == names(Summary) - absent
    assert set(found.scores) == names(PeerScores) - absent
    assert set().union(*found.metrics()) <= names(RoundMetrics) - absent
    # Of some methods, of a real peer, with [privacy].
    some = {"similarities", "clients_of_model", "met", "merged", "unreachable", "left_out", "epsilon_spent"}
    assert set(found.metrics()[-1]) >= names(RoundMetrics) - absent - some


def test_no_metric_of_a_user_has_a_name_of_the_list(tmp_path: Path) -> None:
    for name in [*RESERVED, "value"]:
        with pytest.raises(homophily.UserError, match=f"extra_metrics: '{name}' is a score that every run has"):
            homophily.run(SMALL, extra_metrics={name: lambda outputs, targets: 0.0}, out=tmp_path / name)


def test_every_field_has_a_docstring() -> None:
    tree = ast.parse(Path(fields.__file__).read_text(encoding="utf-8"))
    for table in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        body = table.body[1:]
        for field, text in zip(body[::2], body[1::2], strict=True):
            assert isinstance(field, ast.AnnAssign)
            assert isinstance(text, ast.Expr)
            assert isinstance(text.value, ast.Constant)
            assert str(text.value.value).endswith(".")
