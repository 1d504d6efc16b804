"""The report is one file that loads nothing, allows only its own script, and stays small."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homophily.report.page.arrangement import Arrangement, shown_rounds
from homophily.report.page.document import views_of, write_page
from homophily.report.page.figures import Tab, Table, View
from homophily.report.page.merges import merge_figures
from tests.report.page.folders import HOSTILE

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def page(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(views_of([folders / "panm", folders / "compare"]), path)
    return path.read_text(encoding="utf-8")


def data(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])  # type: ignore[no-any-return]


def test_the_policy_allows_exactly_the_script_and_the_style_of_the_file(page: str) -> None:
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)]
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', page)
    assert policy.replace("&#x27;", "'") == (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def test_the_file_names_nothing_that_could_be_loaded(page: str) -> None:
    assert set(re.findall(r"https?://[^\s\"'<>)]*", page)) == {"http://www.w3.org/2000/svg"}  # the name of a format
    markup = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    assert not re.search(r"\b(src|href|style|on\w+)=", markup)
    assert "innerHTML" not in page
    assert "eval(" not in page


def test_names_are_data_and_never_markup(page: str) -> None:
    assert "<img" not in page
    assert HOSTILE in data(page)["views"][0]["peers"]


def test_every_view_is_in_the_data(page: str) -> None:
    assert [view["state"] for view in data(page)["views"]] == ["finished", "finished"]


def test_a_name_that_looks_like_a_placeholder_is_kept(tmp_path: Path) -> None:
    table = Table("t", "@@SCRIPT@@", "</script>@@DATA@@", ["a"], [["@@"]])
    write_page([View("@@STYLE@@", "@@", "finished", [], [Tab("one", [table])])], tmp_path / "page.html")
    shown = data((tmp_path / "page.html").read_text(encoding="utf-8"))["views"][0]["tabs"][0]["figures"][0]
    assert (shown["title"], shown["text"]) == ("@@SCRIPT@@", "</script>@@DATA@@")


def merging(peers: int, rounds: int, k: int = 4) -> View:
    """A view of peers that merge with k random others in every round."""
    rng = np.random.default_rng(0)
    arranged = Arrangement.by([f"cluster {i % 4}" for i in range(peers)], peers)
    places = shown_rounds([peers * k] * rounds)
    pairs = [np.unique(np.arange(peers).repeat(k) * peers + rng.integers(0, peers, peers * k)) for _ in places]
    counts = [np.ones(len(found), dtype=np.int64) for found in pairs]
    shown = [place + 1 for place in places]
    frames, sampled = arranged.frames(shown, pairs, counts)
    figures = merge_figures(arranged, frames, sampled, "in the chosen round")
    return View("large", "large", "finished", [], [Tab("Merges", figures, shown)])


@pytest.mark.parametrize(("peers", "rounds"), [(1000, 300), (10_000, 100)])
def test_large_federations_stay_below_two_megabytes(peers: int, rounds: int, tmp_path: Path) -> None:
    write_page([merging(peers, rounds)], tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 1_500_000  # the other figures need less than the rest


def test_the_command_writes_the_page_and_all_figures(folders: Path, command: Command) -> None:
    code, out, err = command("report", str(folders / "panm"), "--out", "mine.html", "--figures", "figures")
    assert (code, out, err) == (0, "mine.html\n", "")
    names = {path.name for path in Path("figures").iterdir()}
    drawn = {"by-round", "by-cost", "spread", "matrix", "graph", "neighbours", "similarities"}
    assert {f"{name}.{ending}" for name in drawn for ending in ("png", "svg")} <= names
    assert {"by-cluster.md", "by-cluster.tex", "by-cluster.csv"} <= names


def test_the_command_refuses_other_folders_in_one_line(command: Command) -> None:
    code, out, err = command("report", "nowhere")
    assert (code, out) == (2, "")
    assert err == "error: nowhere: is not a folder\n"
