"""docs/papers.md and the pages in results/ say what the stored numbers say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from homophily.atomic_io import read_json
from homophily.papers import pages, summary
from homophily.papers.pages import Notes
from homophily.papers.tables import Result, as_json, tally, verdicts

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "results"
PAGE = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
RESULTS = pages.stored(FOLDER)
NOTES = Notes.read(FOLDER)
KINDS = ("table", "figure")


def row(table: Path, name: str) -> list[str]:
    """Our values in a row of a result's table."""
    line = next(line for line in table.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {name}"))
    return [cell.strip().split(" ")[0] for cell in line.strip("|").split("|")[1:]]


def test_kin_and_oracle_are_those_of_the_results() -> None:
    link, number = r"\[[^]]*\]\(\.\./(results/[^)]*)\)", r"([\d.]+)"
    lines = re.findall(rf"^\| {link} \| [^|]* \| {number} \| {number} \| {number} ", PAGE, re.M)
    assert len(lines) == 23
    gaps = []
    for file, kin, oracle, other in lines:
        pairs = list(zip(row(ROOT / file, "kin"), row(ROOT / file, "Oracle"), strict=True))
        assert (kin, oracle) in pairs, file
        assert f"| {other} " in (ROOT / file).read_text(encoding="utf-8"), file
        gaps.append((float(kin) - float(oracle), float(kin) >= float(other)))
    assert sum(abs(gap) < 0.9 for gap, _ in gaps) == 22
    assert sum(first for _, first in gaps) == 19


def test_the_report_has_the_computed_tables() -> None:
    assert len(RESULTS) == 33
    assert not any(result.quick for result in RESULTS)
    for table in (summary.by_paper(RESULTS), *(summary.by_result(RESULTS, kind, "../results") for kind in KINDS)):
        assert f"\n\n{table}\n\n" in PAGE, f"homophily reproduce --rewrite prints:\n{table}"


def test_the_sentences_of_the_report_have_the_computed_numbers() -> None:
    far = summary.distance(result for result in RESULTS if result.recipe.kind == "table")
    claims = tally([one for result in RESULTS for one in verdicts(result) if not one.ours])
    said = " ".join(PAGE.split())
    assert f"{claims} claims hold, while accuracies are {far.mean:.1f} points from the printed ones" in said
    assert f"and {far.to_oracle:.1f} points in distances to Oracle." in said


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: result.name)
def test_a_page_is_what_its_numbers_the_recipe_and_the_notes_give(result: Result) -> None:
    path = FOLDER / f"{result.name}.md"
    picture = f"{result.name}.png" if result.recipe.kind == "figure" else None
    assert path.read_text(encoding="utf-8") == pages.markdown(result, NOTES, picture), "homophily reproduce --rewrite"
    assert read_json(path.with_suffix(".json")) == as_json(result)
    assert picture is None or (FOLDER / picture).is_file()


def test_notes_speak_of_results_that_are_stored() -> None:
    stored = {result.name: result for result in RESULTS}
    assert set(NOTES.notes) <= set(stored)
    for change in NOTES.changes:
        for name in change.results:
            methods = [row.config.get("method", {}).get("name") for row in stored[name].recipe.rows.values()]
            assert change.method in methods, name


def test_links_of_the_pages_lead_somewhere() -> None:
    for result in RESULTS:
        text = (FOLDER / f"{result.name}.md").read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([^)#\s]+)#?([^)\s]*)\)", text):
            path = FOLDER / target
            assert path.is_file(), f"{result.name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.M)
                assert anchor in [re.sub(r"[^\w\- ]", "", one).lower().replace(" ", "-") for one in headings], anchor
