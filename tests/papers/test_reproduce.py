"""The runs of a recipe are executed, results accumulate, and a table compares them with the paper's values."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from homophily.atomic_io import locked
from homophily.errors import UserError
from homophily.papers import pages, tables
from homophily.papers.recipe import Recipe, load
from homophily.papers.reproduce import Reproduction
from homophily.papers.verdicts import verdicts
from homophily.report import papers
from tests.callbacks import InterruptAt, Rounds

CPU = torch.device("cpu")
RECIPE: dict[str, Any] = {
    "title": "A small table",
    "paper": "panm",
    "kind": "table",
    "unit": "accuracy, %",
    "score": "accuracy",
    "seeds": 2,
    "choices": {"lr": "the default"},
    "base": {"peers": 6, "rounds": 2, "data": {"train": 10, "test": 5}, "training": {"epochs": 1}},
    "columns": {
        "mean": {"label": "mean"},
        "upright": {"label": "0°", "score": "accuracy_by_cluster.0°"},
        "more": {"label": "more data", "config": {"data": {"train": 12}}},
    },
    "rows": {
        "random": {"label": "Random", "config": {"method": {"name": "random"}}},
        "kin": {"label": "kin", "ours": True, "config": {"method": {"name": "kin", "k": 2}}},
    },
    "cells": {"kin": {"more": {"config": {"method": {"k": 1}}}}},
    "printed": {"random": {"mean": [50.0, 1.0], "more": 60.0}},
    "claims": [
        {"text": "Random gets something right", "check": "random.mean > 0", "quick": True},
        {"text": "Random is worse than nothing", "check": "random.upright < 0"},
        {"text": "kin is there", "check": "kin.mean >= 0"},
    ],
    "quick": {"rows": ["random"], "columns": ["mean"], "config": {"rounds": 1}},
}


def reproduction(folder: Path, quick: bool = False, seeds: int = 2) -> Reproduction:
    return Reproduction("small", Recipe.model_validate(RECIPE), folder, quick, seeds)


def test_columns_with_the_same_config_share_a_run(tmp_path: Path) -> None:
    found = reproduction(tmp_path)
    assert len(found.missing()) == 2 * 2 * 2  # rows, configs, seeds: two of the three columns are one config
    assert found.config("kin", "more", 0).method.keys["k"] == 1
    assert found.config("kin", "mean", 0).method.keys["k"] == 2


def test_runs_with_the_same_work_are_grouped(tmp_path: Path) -> None:
    rows = {**RECIPE["rows"], "local": {"label": "Local", "config": {"method": {"name": "local"}}}}
    rows["random"] = {**rows["random"], "config": {"method": {"name": "random"}, "training": {"lr": 0.5}}}
    order = {name: rows[name] for name in ("kin", "random", "local")}
    found = Reproduction("small", Recipe.model_validate({**RECIPE, "rows": order}), tmp_path, quick=False, seeds=2)
    played = [(config.seed, config.data.train, config.method.name) for config in found.missing()]
    assert played[:6] == [
        (0, 10, "kin"), (0, 10, "local"), (0, 10, "random"), (0, 12, "kin"), (0, 12, "local"), (0, 12, "random"),
    ]  # fmt: skip
    assert {seed for seed, _, _ in played[6:]} == {1}


def test_a_cell_that_is_not_in_the_paper_is_not_executed(tmp_path: Path) -> None:
    recipe = Recipe.model_validate({**RECIPE, "left_out": {"more": ["kin"]}})
    found = Reproduction("small", recipe, tmp_path / "small", quick=False, seeds=1)
    assert found.config("kin", "more", 0) not in found.missing()
    assert found.play(CPU, budget=1e9) == 0
    assert tables.cell_text(tables.numbers(found)["kin"]["more"]) == "-"
    assert len(tables.numbers(found)["random"]["more"].values) == 1


def test_results_accumulate_over_calls(tmp_path: Path) -> None:
    one = reproduction(tmp_path, seeds=1)
    assert one.play(CPU, budget=1e9) == 0
    both = reproduction(tmp_path)
    assert len(both.missing()) == 4
    assert both.play(CPU, budget=0.0) == 4  # no time: no run is started, and none is lost
    assert both.play(CPU, budget=1e9) == 0
    assert both.missing() == []
    assert not list((tmp_path / "running" / "small").iterdir())  # models are not kept
    cell = tables.numbers(both)["random"]["mean"]
    assert len(cell.values) == 2
    assert cell.printed == 50.0
    assert cell.difference == pytest.approx(sum(cell.known) / 2 - 50.0)


def test_a_stopped_run_is_continued(tmp_path: Path) -> None:
    recipe = Recipe.model_validate({**RECIPE, "base": {**RECIPE["base"], "checkpoint": 1}})
    found = Reproduction("small", recipe, tmp_path, quick=False, seeds=1)
    with pytest.raises(KeyboardInterrupt):
        found.play(CPU, 1e9, lambda: [InterruptAt(2)])
    rounds = Rounds()
    assert found.play(CPU, 1e9, lambda: [rounds]) == 0
    assert rounds.seen == [2, *[1, 2] * 3]


def test_a_run_stops_when_the_time_is_over_and_loses_no_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe.model_validate({**RECIPE, "base": {**RECIPE["base"], "rounds": 5}})
    found = Reproduction("small", recipe, tmp_path / "some", quick=False, seeds=1)
    rounds = Rounds()
    clock = SimpleNamespace(monotonic=lambda: float(len(rounds.seen)))  # a round takes a second
    monkeypatch.setattr("homophily.papers.reproduce.time", clock)
    assert found.play(CPU, 3.0, lambda: [rounds]) == 4
    assert rounds.seen == [1, 2, 3]
    assert found.play(CPU, 4.0, lambda: [rounds]) == 3
    assert found.play(CPU, 1e9, lambda: [rounds]) == 0
    assert rounds.seen == [1, 2, 3, 4, 5] * 4
    monkeypatch.undo()
    whole = Reproduction("small", recipe, tmp_path / "whole", quick=False, seeds=1)
    assert whole.play(CPU, 1e9) == 0
    assert _scores(found) == _scores(whole)


def test_a_run_that_stops_before_its_first_round_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, times = reproduction(tmp_path, seeds=1), iter([0.0, 0.0, 9.0])
    monkeypatch.setattr("homophily.papers.reproduce.time", SimpleNamespace(monotonic=lambda: next(times)))
    assert found.play(CPU, 1.0) == 4
    monkeypatch.undo()
    assert found.play(CPU, 1e9) == 0


def _scores(found: Reproduction) -> dict[str, list[float]]:
    """The main score of each run at its rounds."""
    return {name: [line["accuracy"] for line in run["curve"]] for name, run in found.results().items()}


def test_a_run_stopped_on_another_device_is_restarted(tmp_path: Path) -> None:
    found = reproduction(tmp_path, seeds=1)
    with pytest.raises(KeyboardInterrupt):
        found.play(CPU, 1e9, lambda: [InterruptAt(2)])
    about = next((tmp_path / "running" / "small").glob("*/run.json"))
    about.write_text(about.read_text().replace('"device": "cpu"', '"device": "cuda"'))
    assert found.play(CPU, 1e9) == 0


def test_a_recipe_is_executed_by_one_process_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path / "running" / "small"), pytest.raises(UserError, match="small is in use by another process"):
        reproduction(tmp_path).play(CPU, 1e9)


def test_recipes_share_the_runs_they_have_in_common(tmp_path: Path) -> None:
    reproduction(tmp_path, seeds=1).play(CPU, budget=1e9)
    alike = Recipe.model_validate(
        {**RECIPE, "title": "Another table", "rows": {"random": RECIPE["rows"]["random"]}, "cells": {}}
    )
    other = Reproduction("other", alike, tmp_path, quick=False, seeds=1)
    assert other.missing() == []
    assert tables.numbers(other)["random"]["mean"] == tables.numbers(reproduction(tmp_path, seeds=1))["random"]["mean"]


def test_the_time_of_a_shared_run_is_counted_once(tmp_path: Path) -> None:
    found = reproduction(tmp_path, seeds=1)
    found.play(CPU, budget=1e9)
    assert len(found.results()) == 4  # of six cells: two columns are one config
    seconds = sum(result["summary"]["seconds"] for result in found.results().values())
    made = tables.Result.of(found).made
    assert set(made) == set(found.runs())
    assert sum(one.seconds for one in made.values()) == pytest.approx(seconds)


def test_columns_that_do_not_fit_a_terminal_are_printed_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = reproduction(tmp_path, seeds=1)
    found.play(CPU, budget=1e9)
    with Console(width=45, force_terminal=True, color_system=None) as narrow, narrow.capture() as shown:
        monkeypatch.setattr("homophily.report.papers.Console", lambda: narrow)
        papers.reproduction(tables.Result.of(found), [], 0, [])
    heads = [line.split() for line in shown.get().splitlines() if "mean" in line or "more" in line]
    assert heads == [["mean", "0°"], ["more", "data"]]
    assert shown.get().count("kin *") == 2
    assert all(len(line) <= 45 for line in shown.get().split("* not the paper's")[0].splitlines())


def test_the_page_lists_which_claims_held(tmp_path: Path) -> None:
    found = reproduction(tmp_path, seeds=1)
    assert "No run finished yet" in pages.markdown(tables.Result.of(found))
    assert "- not computed: Random gets something right." in pages.markdown(tables.Result.of(found))
    found.play(CPU, budget=1e9)
    page = pages.markdown(tables.Result.of(found))
    assert "- held: Random gets something right." in page
    assert "- **does not hold**: Random is worse than nothing." in page
    assert "| kin (not the paper's) | " in page
    assert "(50.00 ± 1.00) " in page
    assert "| *mean absolute difference* | " in page
    assert "after subtracting Oracle" not in page  # it has no such row
    assert "lr: the default" in page
    paths = pages.write(tables.Result.of(found), tmp_path / "out")
    assert [path.name for path in paths] == ["small.md", "small.json"]
    assert tables.Result.of(found).empty == 0


def test_distances_between_our_columns_and_the_papers() -> None:
    cells = {
        "oracle": {
            "mean": tables.Number({0: 52.0}, False, 50.0, None),
            "more": tables.Number({0: 1.0}, False, None, None),
        },
        "random": {
            "mean": tables.Number({0: 41.0}, False, 40.0, None),
            "more": tables.Number({0: 2.0, 1: 4.0}, False, 4.0, None),
        },
        "local": {"mean": tables.Number({0: 27.0}, False, 30.0, None), "more": tables.Number({}, False, 9.0, None)},
    }
    assert tables.distances(cells) == {
        "mean absolute difference": {"mean": 2.0, "more": 1.0},
        "mean absolute difference after subtracting Oracle": {"mean": (1.0 + 5.0) / 2},
    }


def test_the_quick_version_is_marked_as_not_the_papers(tmp_path: Path) -> None:
    found = reproduction(tmp_path, quick=True, seeds=1)
    found.play(CPU, budget=1e9)
    assert "not the paper's: other peers" in pages.markdown(tables.Result.of(found))
    assert [one.text for one in verdicts(tables.Result.of(found))] == ["Random gets something right"]
    assert found.config("random", "mean", 0).rounds == 1


def test_an_unknown_recipe_is_named() -> None:
    with pytest.raises(UserError, match="there is no recipe 'panm-table-99'; there are"):
        load("panm-table-99")


def test_all_tables_and_options_are_checked_before_the_first_run(
    command: Callable[..., tuple[int, str, str]], here: Path
) -> None:
    for words in (("similarity-table-3", "foo"), ("similarity-table-3", "--budget", "nan")):
        code, _, err = command("reproduce", *words, "--quick")
        assert (code, err.count("\n")) == (2, 1)
    assert not any(here.iterdir())
