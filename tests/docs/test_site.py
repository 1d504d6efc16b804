"""The documentation site builds without a warning, loads nothing from a network, and has every page and public name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

import homophily
from tests.docs.pages import ROOT, STORIES

NOTEBOOKS = sorted((ROOT / "docs").glob("*.ipynb"))
LONGEST = 240  # seconds; a build takes about 30 on two cores


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it: a warning, or a notebook cell that fails, is an error."""
    folder = tmp_path_factory.mktemp("site")
    found = re.search(r"/(sphinx-build .*)\n", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert found is not None
    assert "--fail-on-warning" in found[1]
    words = [sys.executable, "-m", "sphinx", *found[1].replace("build/d", f"{folder}/d").split()[1:]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("MPLBACKEND", None)  # the kernel of a notebook has its own
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONGEST)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "docs"


def test_every_page_is_on_the_site_and_in_its_navigation(site: Path) -> None:
    index = (site / "docs/index.html").read_text(encoding="utf-8")
    navigation = index.partition('<div class="sidebar-tree">')[2].partition("</aside>")[0]
    linked = {os.path.normpath(f"docs/{target}") for target in re.findall(r'href="([^"#]+)"', navigation)}
    pages = [*STORIES, "CHANGELOG.md", *(f"docs/{path.name}" for path in NOTEBOOKS)]
    assert [page for page in pages if page.rpartition(".")[0] + ".html" not in linked] == []
    assert all((site / page).is_file() for page in linked)


def test_the_first_page_leads_to_the_documentation(site: Path) -> None:
    target = re.search(r'url=([^"]+)"', (site / "index.html").read_text(encoding="utf-8"))
    assert target is not None
    assert (site / target[1]).is_file()


def test_the_reference_has_every_public_name(site: Path) -> None:
    shown = set(re.findall(r'id="(homophily\.[\w.]+)"', (site / "docs/api.html").read_text(encoding="utf-8")))
    modules = {"data": "from_frame", "power": "samples_needed"}  # of a module, its functions are shown
    wanted = {
        f"homophily.{name}.{modules[name]}" if name in modules else f"homophily.{name}" for name in homophily.__all__
    }
    assert wanted <= shown, sorted(wanted - shown)
    assert {"homophily.peer.Peer", "homophily.Simulation.step", "homophily.Run.metrics"} <= shown


def test_the_reference_lists_the_arguments_of_a_function(site: Path) -> None:
    page = (site / "docs/api.html").read_text(encoding="utf-8")
    section = page.partition('id="homophily.run"')[2].partition('id="homophily.resume"')[0]
    plain = re.sub(r"<[^>]+>", "", section)
    assert "\nextra_metrics: scores by name" in plain
    assert "\nRaises UserError for bad input" in plain


def test_the_reference_shows_types_and_defaults_as_a_user_writes_them(site: Path) -> None:
    page = (site / "docs/api.html").read_text(encoding="utf-8")
    assert not re.search(r"FieldInfo|&lt;factory|&lt;function|ForwardRef|pydantic_core", page)


def test_long_messages_are_wrapped_and_code_is_not(site: Path) -> None:
    page = (site / "docs/troubleshooting.html").read_text(encoding="utf-8")
    blocks = re.findall(r'<div class="([^"]*highlight-[^"]*)">.*?<pre>(.*?)</pre>', page, re.DOTALL)
    wrapped = [text for kind, text in blocks if "wrapped" in kind.split()]
    assert any("unknown key methd" in text for text in wrapped)
    assert 0 < len(wrapped) < len(blocks)
    everywhere = "".join(one.read_text(encoding="utf-8") for one in site.rglob("*.html"))
    assert not re.search(r'class="wrapped highlight-python', everywhere)
    assert ".wrapped pre" in (site / "_static/wide.css").read_text(encoding="utf-8")


class Loaded(HTMLParser):
    """Collects what a browser loads to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "a":
            self.addresses += [value for name, value in attrs if name in ("src", "href", "data", "srcset") and value]


def loaded(site: Path) -> Iterator[tuple[str, str]]:
    """Each page or stylesheet, with each address that it loads."""
    for path in site.rglob("*.html"):
        page = Loaded()
        page.feed(path.read_text(encoding="utf-8"))
        yield from ((path.name, address) for address in page.addresses)
    for path in site.rglob("*.css"):
        for address in re.findall(r"(?:url\(|@import\s)\s*[\"']?([^\"')\s]+)", path.read_text(encoding="utf-8")):
            yield path.name, address


def test_no_page_loads_anything_from_a_network(site: Path) -> None:
    found = list(loaded(site))
    assert len(found) > 500
    assert [pair for pair in found if re.match(r"(https?:)?//", pair[1])] == []


def test_the_search_index_is_part_of_the_site(site: Path) -> None:
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    assert '"docs/threat-model"' in text
    assert '"byzantin"' in text.lower() or "byzantin:" in text.lower()
    assert 'src="searchindex.js"' in (site / "search.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_stored_without_outputs(path: Path) -> None:
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert cells
    assert [cell["source"] for cell in cells if cell["outputs"] or cell["execution_count"] is not None] == []


def test_the_build_executes_the_notebook_and_draws_its_figure(site: Path) -> None:
    page = (site / "docs/first-steps.html").read_text(encoding="utf-8")
    assert re.search(r"mean accuracy over peers: [89]\d\.\d%", page)
    picture = re.search(r'<img [^>]*src="\.\./(_images/[^"]+\.png)"', page)
    assert picture is not None
    assert (site / picture[1]).stat().st_size > 5000
