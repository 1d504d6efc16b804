"""docs/papers.md agrees with the files in results/."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
PAPERS = {"PANM": "panm", "DPG": "dpg", "DAC": "dac", "similarity metrics": "similarity"}


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


def claims(files: list[Path]) -> str:
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    held, not_held = (sum(line.startswith(f"- {verdict}: ") for line in lines) for verdict in ("held", "**not held**"))
    return f"{held} of {held + not_held}"


@pytest.mark.parametrize("paper", PAPERS)
def test_claims_are_counted(paper: str) -> None:
    tables, figures = (list((ROOT / "results").glob(f"{PAPERS[paper]}-{kind}-*.md")) for kind in ("table", "figure"))
    counted = f"{len(tables)} | {claims(tables)} | {len(figures)} | {claims(figures)}"
    assert f"| {paper} | {counted} |" in PAGE


@pytest.mark.parametrize("file", sorted((ROOT / "results").glob("*-figure-*.md")), ids=lambda file: file.stem)
def test_figures_are_drawn_and_listed(file: Path) -> None:
    assert file.with_suffix(".png").is_file()
    (line,) = re.findall(rf"^\| \[.*\]\(\.\./results/{file.name}\) .*$", PAGE, re.M)
    assert line.endswith(f" | {claims([file])} |")


def test_tables_in_the_page_have_the_numbers_of_the_results() -> None:
    """Each of our values in a table of the page equals the result's, for rows with the same name."""
    checked = 0
    for file, section in re.findall(r"\]\(\.\./results/([\w-]+\.md)\);([^*]*)", PAGE):
        stored = (ROOT / "results" / file).read_text(encoding="utf-8")
        for line in re.findall(
            r"^\| (Local|FixTopology|Random|Oracle|PENS|PANMLoss|PANMGrad|DAC|DPG) \| (.*) \|$", section, re.M
        ):
            for ours, theirs in re.findall(r"(\d+\.\d\d) \((\d+\.\d\d)\)", line[1]):
                assert re.search(rf"\| {ours} (± [\d.]+ )?\({theirs}[ )]", stored), (file, line[0], ours)
                checked += 1
    assert checked > 50
