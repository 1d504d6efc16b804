"""Makes the pictures of docs/live.md and docs/report.md in Chromium, from the commands below.

python benchmarks/page_pictures.py docs                  # all; or name some: ... docs live.png report-phone.png
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from homophily.errors import UserError

LIVE = "run method=panm rounds=30 --out runs/mine"
FOLLOW = "live runs/mine"
RUN = "run method=panm rounds=30 --out runs/panm"
COMPARE = "compare methods=local,random,panm,dac,kin,oracle seeds=0,1,2,3,4 rounds=20 --out runs/compared"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run",
]  # fmt: skip
_WIDE, _PHONE = {"width": 1280, "height": 1000}, {"width": 390, "height": 900}
_SECONDS = 120.0  # for a run to reach the round of its picture


@contextmanager
def chromium() -> Iterator[Any]:
    """A headless Chromium. Raises UserError if there is none."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        raise UserError("there is no Chromium: install the package chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, headless=True, args=ARGUMENTS)
        yield started
        started.close()


def homophily(words: str, folder: Path) -> None:
    """Run a command to its end in a folder."""
    subprocess.run([sys.executable, "-m", "homophily", *words.split()], cwd=folder, check=True, capture_output=True)


@contextmanager
def started(words: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A command that goes on; killed at the end."""
    command = [sys.executable, "-m", "homophily", *words.split()]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def opened(browser: Any, address: str, size: dict[str, int], scheme: str = "light") -> Iterator[Any]:
    context = browser.new_context(viewport=size, color_scheme=scheme)
    page = context.new_page()
    page.goto(address)
    yield page
    context.close()


def live(browser: Any, folder: Path, picture: Path, words: str = LIVE, round: int = 10) -> None:
    """The page of a run that goes on: it is held in a round of which there is a checkpoint, with its history."""
    checkpoints = folder / words.split()[-1] / "checkpoints"
    with started(words, folder) as run, started(FOLLOW, folder) as server:
        until = time.monotonic() + _SECONDS
        while not any(int(path.name[-6:]) >= round for path in checkpoints.glob("round-??????")):
            if run.poll() is not None or time.monotonic() > until:
                raise UserError(f"homophily {words}: it did not stop after round {round}")
            time.sleep(0.001)
        run.send_signal(signal.SIGSTOP)
        assert server.stderr is not None
        address = next(line for line in server.stderr if line.startswith("live page: "))
        with opened(browser, address.removeprefix("live page: ").strip(), _WIDE) as page:
            page.get_by_text("running", exact=True).wait_for()
            page.get_by_role("tab", name="Merges", exact=True).click()
            page.wait_for_timeout(200)  # for the graph to be drawn
            page.screenshot(path=picture)


def merges(browser: Any, folder: Path, picture: Path, round: int = 4) -> None:
    with opened(browser, _report(folder, RUN), _WIDE) as page:
        page.get_by_role("tab", name="Merges", exact=True).click()
        slider = page.get_by_role("slider")
        slider.focus()
        page.keyboard.press("Home")
        for _ in range(round - 1):
            page.keyboard.press("ArrowRight")
        page.wait_for_function(f"document.querySelector('output').textContent === 'round {round}'")
        slider.blur()
        page.wait_for_timeout(200)
        page.screenshot(path=picture)


def phone(browser: Any, folder: Path, picture: Path) -> None:
    with opened(browser, _report(folder, RUN), _PHONE, "dark") as page:
        page.screenshot(path=picture)


def comparison(browser: Any, folder: Path, picture: Path, words: str = COMPARE) -> None:
    with opened(browser, _report(folder, words), _WIDE) as page:
        page.get_by_text("Methods side by side", exact=True).wait_for()
        page.screenshot(path=picture)


def _report(folder: Path, words: str) -> str:
    """The address of the report of a run or a comparison, which is made if it is not there yet."""
    made = folder / words.split()[-1]
    if not made.exists():
        homophily(words, folder)
    homophily(f"report {words.split()[-1]} --out {made.name}.html", folder)
    return (folder / f"{made.name}.html").as_uri()


PICTURES: dict[str, Callable[[Any, Path, Path], None]] = {
    "live.png": live,
    "report-comparison.png": comparison,
    "report-merges.png": merges,
    "report-phone.png": phone,
}


def shrink(picture: Path) -> None:
    """Store a picture with 128 colours, which makes its file three times as small."""
    with Image.open(picture) as found:
        small = found.convert("RGB").quantize(128)
    small.save(picture, optimize=True)


def main(out: Path, names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        for name in names or PICTURES:
            PICTURES[name](browser, Path(folder), out / name)
            shrink(out / name)
            print(out / name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
