"""The report in a real browser: it opens without an error, its controls work, and it shows the folder's numbers."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from homophily import Run
from homophily.report.page.document import views_of, write_page
from homophily.report.page.figures import Lines, Series, Tab, View
from tests.report.page.folders import HOSTILE
from tests.report.page.test_document import merging

WIDTHS = [1280, 390]


@contextmanager
def opened(browser: Any, path: Path, width: int = 1280, scheme: str = "light") -> Iterator[Any]:
    """The page in a new window; any error, any warning on the console and any request fails the test."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page, problems = context.new_page(), []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith("file:") else problems.append(request.url))
    page.goto(path.as_uri())
    yield page
    assert problems == []
    context.close()


def written(folder: Path, views: list[View]) -> Path:
    path = folder / "report.html"
    write_page(views, path)
    return path


@pytest.fixture(scope="module")
def panm(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("panm"), views_of([folders / "panm"]))


@pytest.fixture(scope="module")
def comparison(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("compare"), views_of([folders / "compare"]))


def tab(page: Any, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_tab_opens_and_fits_the_width(
    browser: Any, panm: Path, comparison: Path, width: int, scheme: str
) -> None:
    for path in (panm, comparison):
        with opened(browser, path, width, scheme) as page:
            for name in page.get_by_role("tab").all_inner_texts():
                tab(page, name)
                assert page.locator("section.card").count() > 0
                assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_shown_numbers_are_those_of_the_folder(browser: Any, panm: Path, folders: Path) -> None:
    run = Run(folders / "panm")
    with opened(browser, panm) as page:
        facts = dict(zip(page.locator("dt").all_inner_texts(), page.locator("dd").all_inner_texts(), strict=True))
        assert facts["accuracy, %"] == f"{run.summary['accuracy']:.1f}"
        assert facts["progress"] == "6 rounds"
        card = page.locator('[data-figure="by-round"]')
        card.get_by_text("Numbers").click()
        card.locator("tbody tr").first.wait_for()
        cells = [row.split("\t") for row in card.locator("tbody tr").all_inner_texts()]
        shown = [(int(row[0]), float(row[1])) for row in cells]
        assert shown == [(line["round"], pytest.approx(line["accuracy"], rel=1e-3)) for line in run.metrics()]


def test_a_hostile_name_is_text(browser: Any, panm: Path) -> None:
    with opened(browser, panm) as page:
        tab(page, "Similarities")
        assert page.get_by_label("Peer").locator("option").first.inner_text() == HOSTILE
        tab(page, "Merges")
        page.locator('[data-figure="graph"] canvas').focus()
        page.keyboard.press("ArrowRight")
        assert HOSTILE in page.locator('[data-figure="graph"] .tip').inner_text()
        assert page.locator("img").count() == 0
        assert page.title().endswith("homophily report")  # the name would have changed it


def picture(page: Any, figure: str) -> str:
    found: str = page.locator(f'[data-figure="{figure}"] canvas').evaluate("node => node.toDataURL()")
    return found


def test_the_slider_moves_the_matrix_and_the_graph_and_nothing_else(browser: Any, tmp_path: Path) -> None:
    with opened(browser, written(tmp_path, [merging(40, 12)])) as page:
        slider = page.get_by_role("slider")
        assert slider.get_attribute("aria-valuetext") in (None, "round 12")
        before = [picture(page, name) for name in ("matrix", "graph")]
        places = page.locator("section.card").evaluate_all(
            "nodes => nodes.map(n => JSON.stringify(n.getBoundingClientRect()))"
        )
        slider.focus()
        page.keyboard.press("Home")
        page.wait_for_function("document.querySelector('output').textContent === 'round 1'")
        page.wait_for_timeout(50)
        after = [picture(page, name) for name in ("matrix", "graph")]
        assert all(old != new for old, new in zip(before, after, strict=True))
        assert places == page.locator("section.card").evaluate_all(
            "nodes => nodes.map(n => JSON.stringify(n.getBoundingClientRect()))"
        )
        count = page.locator('[data-figure="matrix"] .said').inner_text()
        slider.focus()
        page.keyboard.press("End")
        page.get_by_label("add up all").check()
        page.wait_for_timeout(50)
        assert int(page.locator('[data-figure="matrix"] .said').inner_text().split()[0]) > 10 * int(count.split()[0])


def test_the_graph_counts_two_peers_that_merged_each_other_once(browser: Any, panm: Path, folders: Path) -> None:
    merges = Run(folders / "panm").history.merges(6).tolist()
    pairs = {frozenset(pair) for pair in merges}
    assert len(pairs) < len(merges)
    with opened(browser, panm) as page:
        tab(page, "Merges")
        said = page.locator('[data-figure="graph"] .said').inner_text()
        assert said == f"Pairs of peers that merged: {len(pairs)}."


def test_ticks_of_values_that_are_close_together_are_exact(browser: Any, tmp_path: Path) -> None:
    series = [Series("one", [1, 2, 3], [1.0005, 1.0011, 1.0008])]
    figure = Lines("close", "Close", "", "round", "loss", series)
    page_of = View("close", "close", "finished", [], [Tab("Scores", [figure])])
    with opened(browser, written(tmp_path, [page_of])) as page:
        texts = page.locator('[data-figure="close"] text.tick[text-anchor="end"]').all_text_contents()
    levels = [float(text) for text in texts]
    steps = [after - before for before, after in itertools.pairwise(levels)]
    assert len(steps) > 1
    assert steps == pytest.approx([steps[0]] * len(steps), rel=1e-6)
    assert steps[0] > 0


def test_tabs_follow_the_keyboard(browser: Any, comparison: Path) -> None:
    with opened(browser, comparison) as page:
        page.get_by_role("tab").first.focus()
        page.keyboard.press("ArrowRight")
        assert page.get_by_role("tab", selected=True).inner_text() == "Tests"
        page.keyboard.press("End")
        assert page.get_by_role("tab", selected=True).inner_text() == "Settings"
        page.keyboard.press("ArrowRight")
        assert page.get_by_role("tab", selected=True).inner_text() == "Result"


def test_lines_can_be_hidden_and_read_with_the_keyboard(browser: Any, comparison: Path) -> None:
    with opened(browser, comparison) as page:
        card = page.locator('[data-figure="by-round"]')
        curves = card.locator("path.curve")
        assert curves.count() == 3
        card.get_by_role("button", name="random").press("Enter")
        assert curves.count() == 2
        card.locator(".plot svg").focus()
        page.keyboard.press("ArrowLeft")
        assert card.locator(".tip").inner_text().startswith("round 2")


def test_tables_are_copied_as_text(browser: Any, comparison: Path, folders: Path) -> None:
    table = next(one for t in views_of([folders / "compare"])[0].tabs for one in t.figures if one.id == "methods")
    with opened(browser, comparison) as page:
        card = page.locator('[data-figure="methods"]')
        for name, text in table.texts().items():  # type: ignore[attr-defined]
            card.get_by_role("button", name=name).click()
            assert card.locator("textarea").input_value() == text


def test_a_real_peer_with_a_hostile_partner(browser: Any, state: Path, tmp_path: Path) -> None:
    shutil.copytree(state, tmp_path / "state")
    for name in ("metrics.jsonl", "status.json"):
        text = (state / name).read_text(encoding="utf-8")
        (tmp_path / "state" / name).write_text(text.replace('"peer-2"', json.dumps(HOSTILE)), encoding="utf-8")
    with opened(browser, written(tmp_path, views_of([tmp_path / "state"])), 390) as page:
        tab(page, "Other peers")
        assert HOSTILE in page.locator(".events tbody th").all_inner_texts()
        assert HOSTILE in page.locator('[data-figure="reachable"] tbody th').all_inner_texts()
        assert page.locator("img").count() == 0
        tab(page, "Refusals")
        assert "Not shown: this peer has refused" in page.locator("section.card").first.inner_text()


@pytest.mark.parametrize(("peers", "rounds"), [(1000, 300), (10_000, 60)])
def test_thousands_of_peers_do_not_freeze_the_page(browser: Any, tmp_path: Path, peers: int, rounds: int) -> None:
    with opened(browser, written(tmp_path, [merging(peers, rounds)])) as page:
        slider = page.get_by_role("slider")
        seconds = page.evaluate(
            """async () => {
                const slider = document.querySelector("input[type=range]");
                const frame = () => new Promise(requestAnimationFrame);
                const began = performance.now();
                for (let i = 0; i < 5; i++) {
                    slider.value = i;
                    slider.dispatchEvent(new Event("input"));
                    await frame();
                    await frame();
                }
                return (performance.now() - began) / 5000;
            }"""
        )
        assert slider.count() == 1
        assert seconds < 1.0, f"one step of the slider takes {seconds:.2f} s"


def test_marks_have_the_shape_of_their_cluster(browser: Any, panm: Path) -> None:
    record = """() => {
        const fill = CanvasRenderingContext2D.prototype.fill, begin = CanvasRenderingContext2D.prototype.beginPath;
        const line = CanvasRenderingContext2D.prototype.lineTo;
        window.corners = [];
        let count = 0;
        CanvasRenderingContext2D.prototype.beginPath = function () { count = 0; return begin.call(this); };
        CanvasRenderingContext2D.prototype.lineTo = function (x, y) { count += 1; return line.call(this, x, y); };
        CanvasRenderingContext2D.prototype.fill = function () {
            window.corners.push([this.fillStyle, count]);
            return fill.call(this);
        };
    }"""
    with opened(browser, panm) as page:
        page.evaluate(record)
        tab(page, "Settings")
        tab(page, "Scores")
        found = page.evaluate("window.corners")
        assert len({tuple(one) for one in found}) == len({colour for colour, _ in found}) > 1
        assert {corners for _, corners in found} == {0, 4}  # two clusters: discs and squares
