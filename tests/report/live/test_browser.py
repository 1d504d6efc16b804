"""The live page in a real browser: it follows a run, keeps the reader's choices, and survives a lost server."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import homophily
from tests.report.live.serving import served
from tests.report.page.folders import HOSTILE, network, peers

WAIT = 15_000  # ms


def begun(out: Path, rounds: int = 8) -> homophily.Simulation:
    config = {"rounds": rounds, "method": {"name": "panm", "k": 2, "l": 4, "tau": 2}}
    run = homophily.Simulation(config, model=network(), data=peers(), out=out, device="cpu")
    for _ in range(3):
        advance(run)
    return run


def advance(run: homophily.Simulation) -> None:
    """One round, with its history on disk."""
    run.step()
    run.save()


@contextmanager
def opened(browser: Any, address: str, width: int = 1280) -> Iterator[Any]:
    """The page in a new window; an error, a refused policy or a request to another server fails the test."""
    context = browser.new_context(viewport={"width": width, "height": 900})
    page, problems = context.new_page(), []
    page.set_default_timeout(WAIT)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if "Security" in message.text else None)
    page.on("request", lambda one: None if one.url.startswith("http://127.0.0.1:") else problems.append(one.url))
    page.goto(address)
    yield page
    assert problems == []
    context.close()


def wait_for_fact(page: Any, text: str) -> None:
    page.locator("dd", has_text=re.compile(f"^{re.escape(text)}$")).first.wait_for()


def tab(page: Any, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()


def test_curves_grow_while_the_run_advances(browser: Any, tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    with served(run.path) as (port, _), opened(browser, f"http://127.0.0.1:{port}/") as page:
        wait_for_fact(page, "3 of 8")
        page.get_by_text("following this folder").wait_for()
        assert page.get_by_text("running", exact=True).count() + page.get_by_text("stopped before").count() == 1
        card = page.locator('[data-figure="by-round"]')
        card.get_by_text("Numbers").click()
        card.locator("tbody tr").nth(2).wait_for()
        card.get_by_role("button", name="cluster <1>").click()  # hides a line
        curves = card.locator("path.curve").count()
        advance(run)
        wait_for_fact(page, "4 of 8")
        card.locator("tbody tr").nth(3).wait_for()  # the table is still open
        assert card.locator("path.curve").count() == curves
        assert card.get_by_role("button", name="cluster <1>").get_attribute("aria-pressed") == "false"
        run.result()
        page.get_by_text("finished", exact=True).wait_for()
        wait_for_fact(page, "8 rounds")
    # The server has announced its end, so the page does not try to reach it.


def test_tab_slider_scroll_and_focus_survive_an_update(browser: Any, tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    with served(run.path) as (port, _), opened(browser, f"http://127.0.0.1:{port}/", 390) as page:
        tab(page, "Merges")
        slider = page.get_by_role("slider")
        slider.focus()
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        page.locator("output", has_text="round 2").wait_for()
        page.evaluate("scrollTo(0, 250)")
        where = "nodes => nodes.map(n => JSON.stringify(n.getBoundingClientRect()))"
        places = page.locator("section.card").evaluate_all(where)
        advance(run)
        page.locator('input[type=range][max="3"]').wait_for()
        assert page.get_by_role("tab", selected=True).inner_text() == "Merges"
        assert page.locator("output").inner_text() == "round 2"
        assert page.evaluate("document.activeElement.type") == "range"
        assert page.evaluate("scrollY") == 250
        assert page.locator("section.card").evaluate_all(where) == places
        page.keyboard.press("End")
        page.locator("output", has_text="round 4").wait_for()
        advance(run)
        page.locator("output", has_text="round 5").wait_for()  # follows the last round
        assert page.locator("img").count() == 0
        page.locator('[data-figure="graph"] canvas').focus()
        page.keyboard.press("ArrowRight")
        assert HOSTILE in page.locator('[data-figure="graph"] .tip').inner_text()


def test_a_real_peer_in_a_narrow_window(browser: Any, state: Path) -> None:
    with served(state) as (port, _), opened(browser, f"http://127.0.0.1:{port}/", 390) as page:
        wait_for_fact(page, "3 rounds")
        tab(page, "Other peers")
        assert page.locator('[data-figure="reachable"] tbody tr').count() == 3
        assert page.locator('[data-figure="failing"]').count() == 1
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_the_last_exchanges_are_in_view_and_stay_so(browser: Any, state: Path, tmp_path: Path) -> None:
    folder = tmp_path / "peer"
    shutil.copytree(state, folder)
    path = folder / "metrics.jsonl"
    line = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])

    def write(rounds: int) -> None:
        lines = [json.dumps(line | {"round": i, "merged": ["peer-1"]}) for i in range(1, rounds + 1)]
        path.write_text("\n".join([*lines, ""]), encoding="utf-8")

    write(50)
    with served(folder) as (port, _), opened(browser, f"http://127.0.0.1:{port}/", 390) as page:
        tab(page, "Other peers")
        table = page.locator('[data-figure="partners"] .scroll')
        left = "node => Math.round(node.scrollWidth - node.clientWidth - node.scrollLeft)"
        assert table.evaluate(left) <= 1
        name, first, last = (
            page.locator(f'[data-figure="partners"] tbody {cell}').bounding_box()
            for cell in ("tr:first-child th", "tr:first-child td:nth-child(2)", "tr:first-child td:last-child")
        )
        assert name["x"] >= 0 > first["x"]  # the names stay
        assert last["x"] < 390
        write(60)
        page.locator('[data-figure="partners"] td[title^="peer-1, round 60:"]').wait_for()
        assert table.evaluate(left) <= 1
        table.evaluate("node => { node.scrollLeft = 40 }")
        write(62)
        page.locator('[data-figure="partners"] td[title^="peer-1, round 62:"]').wait_for()
        assert table.evaluate("node => node.scrollLeft") == 40
        table.evaluate("node => { node.scrollLeft = 0 }")
        page.set_viewport_size({"width": 400, "height": 800})
        write(63)
        page.locator('[data-figure="partners"] td[title^="peer-1, round 63:"]').wait_for()
        assert table.evaluate("node => node.scrollLeft") == 0


def test_a_page_that_waits_shows_the_run_when_it_begins(browser: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with served(out) as (port, _), opened(browser, f"http://127.0.0.1:{port}/") as page:
        page.get_by_text("not begun", exact=True).wait_for()
        page.get_by_text(f"no run has begun in {out}").wait_for()
        run = begun(out)
        wait_for_fact(page, "3 of 8")
        tab(page, "Merges")
        advance(run)
        wait_for_fact(page, "4 of 8")
        assert page.get_by_role("tab", selected=True).inner_text() == "Merges"


def test_a_server_that_goes_away_and_comes_back(browser: Any, tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def started() -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "homophily", "live", str(run.path), "--port", str(port)]
        server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        assert server.stderr is not None
        assert server.stderr.readline() == f"live page: http://127.0.0.1:{port}/\n"
        return server

    server = started()
    try:
        with opened(browser, f"http://127.0.0.1:{port}/") as page:
            page.get_by_text("following this folder").wait_for()
            tab(page, "Settings")
            server.kill()
            server.communicate()
            page.get_by_text("connection lost at").wait_for()
            advance(run)
            server = started()
            page.get_by_text("following this folder").wait_for()
            wait_for_fact(page, "4 of 8")
            assert page.get_by_role("tab", selected=True).inner_text() == "Settings"
    finally:
        server.kill()
        server.communicate()
