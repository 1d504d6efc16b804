"""Run folders of every kind that a report shows, made once; and a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import homophily
from tests.report.page.folders import network, peers

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run",
]  # fmt: skip


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """compare: four methods with five seeds; panm: a run with similarities, and a peer with a hostile name."""
    root = tmp_path_factory.mktemp("folders")
    small: dict[str, Any] = {"peers": 8, "rounds": 3, "data": {"test": 20}}
    homophily.compare(small, methods=["local", "random", "oracle"], seeds=range(5), out=root / "compare", device="cpu")
    panm = {"rounds": 6, "method": {"name": "panm", "k": 2, "l": 4, "tau": 2}}
    homophily.run(panm, model=network(), data=peers(), out=root / "panm", device="cpu")
    return root


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    found = next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("there is no Chromium: install the package chromium to test the report in a browser")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, headless=True, args=_ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state folder of one of four real peers that have finished."""
    pytest.importorskip("zenoh", reason="real peers need the peer extra")
    from homophily.peer import deploy
    from homophily.simulation.configuration import make

    config = make({"rounds": 3, "data": {"test": 20}, "method": {"name": "panm", "l": 2, "k": 1}})
    folder = tmp_path_factory.mktemp("deployed")
    deploy.deploy(config, 4, folder, "lockstep", lambda text: None)
    return folder / "peer-1"
