"""The time that the live page and each tracker add to a run.

    python benchmarks/live.py [--rounds 600] [--repeats 5] [--variants live page csv parquet tensorboard mlflow wandb]

Each repeat runs all variants and a plain run, each time in another order. A variant's overhead is the median over the
repeats of the ratio of its time to that of the plain run in the same repeat. The time is that of all rounds with their
metrics, checkpoints and final files, without the preparation of the data. For trackers, the time inside their calls is
measured too: once per run (begin and end), and per round.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import homophily
from homophily.experiments.runner import chosen_device, machine
from homophily.experiments.tracking import Tracking
from homophily.report.live.access import Access, bound
from homophily.report.live.server import LiveRun, LiveServer

VARIANTS = {
    "live": "`--live`, no page open",
    "page": "`--live`, one page open",
    "csv": '`tracker = "csv"`',
    "parquet": '`tracker = "parquet"`',
    "tensorboard": '`tracker = "tensorboard"`',
    "mlflow": '`tracker = "mlflow"`, a local folder',
    "wandb": '`tracker = "wandb"`, offline',
}
PACKAGES = ("starlette", "uvicorn", "pyarrow", "tensorboardX", "mlflow-skinny", "wandb")
CLIENT = Path(__file__).with_name("live_client.py")
SECONDS: dict[str, float] = {}  # inside the calls of a tracker


def watch(name: str) -> None:
    """Add up the seconds inside a method of the trackers' callback."""
    called: Callable[..., Any] = getattr(Tracking, name)

    def timed_call(*arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return called(*arguments)
        finally:
            SECONDS[name] = SECONDS.get(name, 0.0) + time.perf_counter() - began

    setattr(Tracking, name, timed_call)


def _ended(client: subprocess.Popen[bytes]) -> None:
    if client.wait() != 0:
        raise SystemExit("the client that follows the page has failed")


@contextmanager
def served(with_page: bool) -> Iterator[LiveRun]:
    """The callback that serves a run, as ``--live`` does; with_page: another process follows it."""
    access, listening = Access("127.0.0.1"), bound("127.0.0.1", 0)
    with ExitStack() as stack:

        def serve(folder: Path) -> None:
            if with_page:
                words = [sys.executable, "-I", str(CLIENT), *map(str, listening.getsockname()[:2])]
                client = subprocess.Popen(words)
                stack.callback(lambda: _ended(client))  # after the server has announced its end
            stack.enter_context(LiveServer(folder, access, listening).in_background())

        yield LiveRun(serve)


def timed(variant: str, rounds: int) -> dict[str, float]:
    """Seconds of a run, and the seconds of them inside a tracker's calls."""
    tracked = {} if variant in ("plain", "live", "page") else {"tracker": variant}
    keys = {"method": "kin", "rounds": rounds, **tracked}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        callbacks = [stack.enter_context(served(variant == "page"))] if variant in ("live", "page") else []
        SECONDS.clear()
        simulation = homophily.Simulation(keys, out=Path(folder) / "run", device="cpu", callbacks=callbacks)
        gc.collect()
        began = time.perf_counter()
        simulation.result()
        return {"all": time.perf_counter() - began, **SECONDS}


def rows(options: argparse.Namespace) -> Iterator[str]:
    yield "| variant | s | overhead | ms per round | once, s |"
    yield "| --- | --- | --- | --- | --- |"
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ("plain", *options.variants)}
    for name in found:
        timed(name, 3)  # imports and reads what the others find ready
    order = list(found)
    for number in range(options.repeats):
        random.Random(number).shuffle(order)
        for name in order:
            found[name].append(timed(name, options.rounds))
    plain = [one["all"] for one in found["plain"]]
    yield f"| plain | {statistics.median(plain):.2f} | | | |"
    for name in options.variants:
        seconds = [one["all"] for one in found[name]]
        ratio = statistics.median(took / alone for took, alone in zip(seconds, plain, strict=True))
        cells = [VARIANTS[name], f"{statistics.median(seconds):.2f}", f"{ratio - 1:+.1%}", "-", "-"]
        if name not in ("live", "page"):
            cells[3] = f"{statistics.median(one['on_round'] for one in found[name]) / options.rounds * 1000:.2f}"
            cells[4] = f"{statistics.median(one['on_start'] + one['on_end'] for one in found[name]):.2f}"
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    os.environ["WANDB_MODE"] = "offline"
    versions = json.dumps({"torch": torch.__version__, **{name: version(name) for name in PACKAGES}})
    print(f"{machine(chosen_device('cpu'))}, {date.today()}, {versions}\n")
    for name in ("on_start", "on_round", "on_end"):
        watch(name)
    for row in rows(options):
        print(row, flush=True)


if __name__ == "__main__":
    main()
