"""A page can be written again from the stored numbers, and has the notes of its folder."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from homophily.cli.app import app
from homophily.errors import UserError
from homophily.papers import pages, summary
from homophily.papers.recipe import load
from homophily.papers.reproduce import Made
from homophily.papers.tables import Number, Result
from homophily.papers.verdicts import Kind, Verdict, tally

NAME = "panm-table-2"
NOTES = """
[notes.panm-table-2]
date = "2026-11-16"
text = "PENS is good here."
"""


def result(difference: float = 1.0, seeds: int = 2, diverged: bool = False) -> Result:
    """Of PANM's Table 2: all cells are as far from the printed ones."""
    recipe = load(NAME)
    cells = {
        row: {column: number(recipe.printed.get(row, {}).get(column), difference, seeds) for column in recipe.columns}
        for row in recipe.rows
    }
    if diverged:
        cells["kin"]["mnist"] = Number(dict.fromkeys(range(seeds)), True, None, None, edition=2)
    return Result(NAME, recipe, False, cells, {"a-run": Made("2026-01-02", "a machine", 30.0)})


def number(printed: object, difference: float, seeds: int) -> Number:
    mean, deviation = printed if isinstance(printed, tuple) else (None, None)
    return Number(dict.fromkeys(range(seeds), (mean or 50.0) + difference), False, mean, deviation)


def test_a_stored_result_is_read_as_it_was(tmp_path: Path) -> None:
    first = result(diverged=True)
    page, stored = pages.write(first, tmp_path)
    assert Result.read(stored) == first
    text = page.read_text(encoding="utf-8")
    page.unlink()
    done = CliRunner().invoke(app, ["reproduce", "--rewrite", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert page.read_text(encoding="utf-8") == text
    assert "| PANM | 1 of 5 | 0 of 8 |" in done.output
    assert "| kin (not the paper's) | diverged |" in text
    assert "2026-01-02: a machine; 30 s in rounds." in text


def test_a_page_begins_with_what_a_reader_would_quote() -> None:
    lines = pages.markdown(result()).splitlines()
    assert lines[2] == "**8 of 8 claims of the paper hold, and 0 of 1 of our own.**"  # its kin is far below Oracle
    assert lines[3] == "Mean distance to the 21 printed accuracies: 1.0 points; after subtracting Oracle, 0.0."
    assert lines[5] == "`homophily reproduce panm-table-2 --seeds 2`; the full recipe has 3 seeds."


def test_notes_of_the_folder_are_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "notes.toml").write_text(NOTES, encoding="utf-8")
    page, _ = pages.write(result(), tmp_path)
    text = page.read_text(encoding="utf-8")
    assert "## Notes on the runs of 2026-11-16\n\nPENS is good here.\n" in text
    (tmp_path / "notes.toml").write_text("[other]", encoding="utf-8")
    with pytest.raises(UserError, match=r"cannot read .*notes\.toml"):
        pages.write(result(), tmp_path)


def test_a_row_of_an_older_edition_is_named() -> None:
    assert "**Older than the code.** Rows kin: these runs are older than a change: kin computes" in pages.markdown(
        result()
    )
    assert [one["edition"] for one in pages.as_json(result())["cells"]["kin"].values()] == [1, 1, 1]
    cells = {row: {c: replace(one, edition=2) for c, one in mine.items()} for row, mine in result().cells.items()}
    assert "Older than the code" not in pages.markdown(replace(result(), cells=cells))
    cells["kin"]["mnist"] = result().cells["kin"]["mnist"]
    assert "**Older than the code.** Rows kin, columns MNIST: these runs" in pages.markdown(
        replace(result(), cells=cells)
    )


def test_a_page_of_a_variant_without_the_cells_of_any_claim_says_so() -> None:
    cells = {row: {c: replace(one, values={}) for c, one in mine.items()} for row, mine in result().cells.items()}
    text = pages.markdown(replace(result(), cells=cells, variant="held_out"))
    assert "**No claim can be checked yet: cells are missing.**" in text
    assert "The recipe's choices and the reasons for them, which hold but for the variant:" in text


def test_what_is_not_a_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no result 'panm-table-2' in .*; there are none"):
        pages.stored(tmp_path, [NAME])
    (tmp_path / "a-b.json").write_text(json.dumps({"name": NAME}), encoding="utf-8")
    with pytest.raises(UserError, match=r"a-b\.json is not a result of homophily reproduce: 'quick'"):
        pages.stored(tmp_path)


def test_a_cell_that_stands_twice_counts_once_with_the_most_seeds() -> None:
    far = summary.distance([result(3.0, seeds=2), result(1.0, seeds=1)])
    assert far.cells == 21
    assert far.mean == pytest.approx(3.0)
    assert far.to_oracle == pytest.approx(0.0)


def test_claims_that_were_not_computed_are_not_counted() -> None:
    kinds = [Kind.HELD, Kind.FAILED, Kind.SPREAD, Kind.OPEN]
    assert tally([Verdict("a", kind, False) for kind in kinds]) == "1 of 3"
    assert tally([Verdict("c", Kind.OPEN, False)]) == "-"
