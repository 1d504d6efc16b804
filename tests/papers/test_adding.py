"""Runs are added to stored results: what is known is not executed again, and editions of a method never mix."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from homophily.papers import editions
from homophily.papers.editions import Edition
from homophily.papers.reproduce import Reproduction, run_name
from homophily.papers.tables import Result, known_scores
from tests.papers.test_reproduce import reproduction

CPU = torch.device("cpu")


@pytest.fixture
def stored(tmp_path: Path) -> Result:
    """The result of seed 0."""
    found = reproduction(tmp_path / "first", seeds=1)
    found.play(CPU, budget=1e9)
    return Result.of(found)


def adding(folder: Path, stored: Result, seeds: int = 2) -> Reproduction:
    return replace(reproduction(folder, seeds=seeds), known=known_scores([stored]))


def test_only_what_stored_results_lack_is_executed(tmp_path: Path, stored: Result) -> None:
    second = adding(tmp_path / "second", stored)
    assert [config.seed for config in second.missing()] == [1] * 4
    second.play(CPU, budget=1e9)
    both = Result.of(second, stored)
    assert both.seeds == (2, 2)
    assert both.cells["random"]["mean"].of_seeds([0]) == stored.cells["random"]["mean"]
    assert set(both.made) == set(second.runs())


def test_a_stored_cell_without_new_runs_stays(tmp_path: Path, stored: Result) -> None:
    assert Result.of(adding(tmp_path / "second", stored), stored).cells == stored.cells
    assert Result.of(reproduction(tmp_path / "second"), stored).cells == stored.cells


def test_a_new_edition_of_a_method_replaces_the_old_numbers(
    tmp_path: Path, stored: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(editions.EDITIONS, "random", Edition(2, "2026-11-18", "random draws differ"))
    second = adding(tmp_path / "second", stored, seeds=1)
    assert {config.method.name for config in second.missing()} == {"random"}
    assert stored.older() == {"random": [("random", column) for column in stored.columns]}
    second.play(CPU, budget=1e9)
    added = Result.of(second, stored)
    assert added.older() == {}
    assert added.cells["random"]["mean"].edition == 2
    assert added.cells["kin"] == stored.cells["kin"]


def test_the_name_of_a_run_depends_on_the_edition_of_its_method(tmp_path: Path) -> None:
    config = reproduction(tmp_path).config("kin", "mean", 0)
    assert run_name(config) == run_name(config, 2) != run_name(config, 1)


def test_some_rows_and_columns_can_be_executed_alone(tmp_path: Path) -> None:
    some = replace(reproduction(tmp_path), only_rows=("random",), only_columns=("more",))
    assert [(config.method.name, config.data.train) for config in some.missing()] == [("random", 12)] * 2
    some.play(CPU, budget=1e9)
    assert Result.of(some).empty == 5  # of six cells


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rows", "fedavg"), "--rows: panm-table-2 has no row 'fedavg'; there are local, "),
        (("--columns", "svhn"), "--columns: panm-table-2 has no column 'svhn'; there are mnist, "),
        (("--variant", "better"), "--variant better: PANM has no such variant; there are "),
    ],
)
def test_an_unknown_row_column_or_variant_is_named(
    words: tuple[str, ...], message: str, command: Callable[..., tuple[int, str, str]]
) -> None:
    code, _, err = command("reproduce", "panm-table-2", *words)
    assert code == 2
    assert message in " ".join(err.split())


@pytest.mark.usefixtures("here")
def test_the_command_adds_to_the_stored_numbers(command: Callable[..., tuple[int, str, str]]) -> None:
    words = ("reproduce", "similarity-table-3", "--quick", "--device", "cpu", "--add")
    code, _, err = command(*words, "--rows", "random", "--store", "first")
    assert code == 0, err
    code, _, err = command(*words, "--rows", "local", "--store", "second")
    assert code == 0, err
    cells = Result.read(Path("results/similarity-table-3-quick.json")).cells
    assert all(cell.values for row in ("random", "local") for cell in cells[row].values())
