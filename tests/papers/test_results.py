"""docs/papers.md and the pages in results/ say what the stored numbers say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from homophily.atomic_io import read_json
from homophily.papers import pages, summary
from homophily.papers.pages import Notes
from homophily.papers.tables import Result
from homophily.papers.verdicts import tally, verdicts

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "results"
PAGE = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
RESULTS = pages.stored(FOLDER)
NOTES = Notes.read(FOLDER)
KINDS = ("table", "figure")


def settings(result: Result) -> list[dict[str, str]]:
    """The means of all rows, one dictionary per column: over the seeds that both kin and Oracle have."""
    cells, found = result.cells, []
    for column in result.columns:
        both = set(cells["kin"][column].values) & set(cells["oracle"][column].values)
        means = {row: mine[column].of_seeds(both).mean for row, mine in cells.items()}
        found.append({row: f"{mean:.2f}" for row, mean in means.items() if mean is not None})
    return found


def test_kin_and_oracle_are_those_of_the_results() -> None:
    link, number = r"\[[^]]*\]\(\.\./results/([^)]*)\.md\)", r"([\d.]+)"
    lines = re.findall(rf"^\| {link} \| [^|]* \| {number} \| {number} \| {number} ", PAGE, re.M)
    assert len(lines) == 23
    gaps = []
    for name, kin, oracle, other in lines:
        (result,) = [one for one in RESULTS if one.title == name]
        found = [(means["kin"], means["oracle"]) for means in settings(result) if other in means.values()]
        assert (kin, oracle) in found, name
        gaps.append((float(kin) - float(oracle), float(kin) >= float(other)))
    assert all(abs(gap) < 0.7 for gap, _ in gaps)
    assert sum(first for _, first in gaps) == 16


def test_the_report_has_the_computed_tables() -> None:
    assert sum(result.variant is None for result in RESULTS) == 33
    assert not any(result.quick for result in RESULTS)
    of_all = (summary.by_paper, summary.by_kind, summary.by_variant, summary.older, summary.left)
    lists = (summary.contradictions(), summary.not_held(RESULTS, "../results"))
    for table in (
        *lists,
        *(of(RESULTS) for of in of_all),
        *(summary.by_result(RESULTS, kind, "../results") for kind in KINDS),
    ):
        assert f"\n\n{table}\n\n" in PAGE, f"homophily reproduce --rewrite prints:\n{table}"


def test_the_sentences_of_the_report_have_the_computed_numbers() -> None:
    far = summary.distance(one for one in RESULTS if one.recipe.kind == "table" and one.variant is None)
    claims = tally([one for result in RESULTS for one in verdicts(result) if result.variant is None and not one.ours])
    said = " ".join(PAGE.split())
    assert f"{claims} claims hold, while accuracies are {far.mean:.1f} points from the printed ones" in said
    assert f"and {far.to_oracle:.1f} points after subtracting Oracle." in said


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: result.title)
def test_a_page_is_what_its_numbers_the_recipe_and_the_notes_give(result: Result) -> None:
    path = FOLDER / f"{result.title}.md"
    picture = f"{result.title}.png" if result.recipe.kind == "figure" else None
    variants = pages.variants_of(result, FOLDER)
    assert path.read_text(encoding="utf-8") == pages.markdown(result, NOTES, picture, variants), (
        "homophily reproduce --rewrite"
    )
    assert read_json(path.with_suffix(".json")) == pages.as_json(result, variants)
    assert picture is None or (FOLDER / picture).is_file()


def test_notes_speak_of_results_that_are_stored() -> None:
    stored = {result.name: result for result in RESULTS}
    assert set(NOTES.notes) <= set(stored)


def test_links_of_the_pages_lead_somewhere() -> None:
    for result in RESULTS:
        text = (FOLDER / f"{result.name}.md").read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([^)#\s]+)#?([^)\s]*)\)", text):
            path = FOLDER / target
            assert path.is_file(), f"{result.name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.M)
                assert anchor in [re.sub(r"[^\w\- ]", "", one).lower().replace(" ", "-") for one in headings], anchor
