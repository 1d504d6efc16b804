"""The pages work: their commands and Python blocks run, print what is shown, and links lead to existing headings."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

from homophily.methods import methods
from tests.docs.pages import CLOSE, NOT_RUN, ROOT, STORIES, Reader, blocks, follow, needs_files


@pytest.mark.parametrize("page", STORIES)
def test_a_page_works_from_top_to_bottom(page: str, reader: Reader) -> None:
    for block in blocks(page):
        # Commands that set up the machine are not run; the demo's table has a test of its own.
        if not (block.language == "sh" and set(block.commands) <= NOT_RUN.keys()):
            follow(reader, block)
    reader.finish()


COMMANDS = [
    (block.where, command)
    for page in STORIES
    for block in blocks(page)
    if block.language == "sh"
    for command in block.commands
]
WITH_FILES = [pytest.param(command, id=f"{where} {command}") for where, command in COMMANDS if needs_files(command)]


@pytest.mark.parametrize("command", WITH_FILES)
def test_a_command_that_needs_files(command: str, reader: Reader) -> None:
    code, printed = reader.homophily(command)
    if code == 2 and "could not be downloaded" in printed:
        warnings.warn(f"NOT TESTED, its files are missing (set HOMOPHILY_DATA): {command}", stacklevel=1)
        pytest.skip(" ".join(printed.split()))
    assert code == 0, printed


def test_the_readme_shows_what_the_demo_prints(reader: Reader) -> None:
    """Only one of the three seeds and the first and last method, to keep the test quick."""
    makefile, readme = ((ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", "README.md"))
    demo = re.search(r"/(homophily compare methods=(\S+) seeds=\S+)\n", makefile)
    assert demo is not None
    assert f"`{demo[1]}`" in readme
    page = next(block.text for block in blocks("README.md") if block.language == "text")
    shown = accuracies(page)
    assert list(shown) == demo[2].split(",")
    first, *_, last = shown
    code, printed = reader.homophily(f"homophily compare methods={first},{last} seeds=0")
    assert code == 0, printed
    assert header(page) == header(printed)
    for method, values in accuracies(printed).items():
        assert shown[method] == pytest.approx(values, abs=CLOSE), f"{method} in the README"


def header(table: str) -> list[str]:
    """The words of a comparison's column names."""
    return next(line.split() for line in table.splitlines() if line.split()[:1] == ["method"])


def accuracies(table: str) -> dict[str, list[float]]:
    """Each method's accuracy per cluster and its mean, from the table of a comparison."""
    rows = [line.split() for line in table.splitlines()]
    return {row[0]: [float(cell) for cell in row[1:6]] for row in rows if row and row[0] in methods}


@pytest.mark.parametrize("page", ["docs/tutorial.md", "docs/deploy.md"])
def test_prediction_with_an_exported_model_takes_ten_lines(page: str) -> None:
    (block,) = (block for block in blocks(page) if "safe_open(" in block.text)
    assert "hese ten lines predict" in (ROOT / page).read_text(encoding="utf-8")
    assert len([line for line in block.text.splitlines() if line]) == 10


def test_commands_that_are_not_run_exist() -> None:
    """Each is shown by a page, and its make target, marker and paths exist."""
    makefile, project = ((ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", "pyproject.toml"))
    assert {command for _, command in COMMANDS} >= NOT_RUN.keys()
    for command in NOT_RUN:
        program, *words = command.split()
        if program == "make":
            assert re.search(rf"^{words[0]}:", makefile, re.MULTILINE), command
        if "-m" in words:
            assert f'"{words[words.index("-m") + 1]}: ' in project, command
        assert all((ROOT / word).exists() for word in words if word.startswith(("tests/", "benchmarks/"))), command


def headings(page: Path) -> list[str]:
    """The anchors of a page's headings."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in found]


def test_links_lead_to_existing_pages_and_headings() -> None:
    wrong = []
    for page in [*STORIES, "CHANGELOG.md"]:
        text = (ROOT / page).read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            target, _, anchor = link.partition("#")
            if target.startswith("http"):
                continue
            path = (ROOT / page).parent / target if target else ROOT / page
            if not path.is_file() or (anchor and path.suffix == ".md" and anchor not in headings(path)):
                wrong.append(f"{page}: {link}")
    assert not wrong, "these links lead nowhere:\n" + "\n".join(wrong)
