"""The time that recording takes, and the size of a run's history.

    python benchmarks/recording.py [--device cpu] [--settings demo panm large] [--repeats 7]

Runs with and without recording alternate. The time is that of all rounds with their metrics, checkpoints and final
files, without the preparation of the data. A setting's overhead is the median over the pairs of runs of the ratio of
their times. On a busy machine it is noisy; on a CPU, the time inside the functions that record is measured too.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

import homophily
from homophily.experiments.runner import chosen_device, machine
from homophily.methods import dispatch
from homophily.runs.history import HistoryWriter
from homophily.simulation.observers import ClusterObserver
from homophily.simulation.recording import RecordedPeers

LINEAR: dict[str, Any] = {"model": "linear", "training": {"epochs": 1, "batch": 20}}
SETTINGS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "demo-kin": ("the demo with kin: 60 peers, 60 rounds", 0, {"method": "kin"}),
    "demo-panm": ("the demo with PANM: 60 peers, 60 rounds", 0, {"method": "panm"}),
    "demo-dac": ("the demo with DAC: 60 peers, 60 rounds", 0, {"method": "dac"}),
    "panm": ("PANM, 100 peers, 300 rounds, a linear model", 100, {"rounds": 300, "method": "panm", **LINEAR}),
    "large": ("PANM, 1,000 peers, 30 rounds, a linear model", 1000, {"rounds": 30, "method": "panm", **LINEAR}),
    "long": ("random, 1,000 peers, 300 rounds, a linear model", 1000, {"rounds": 300, "method": "random", **LINEAR}),
}


class Clock:
    """Adds up the seconds inside functions; a call inside another one counts once."""

    def __init__(self) -> None:
        self.seconds, self._inside = 0.0, False

    def watch(self, owner: Any, name: str) -> None:
        called: Callable[..., Any] = getattr(owner, name)

        def timed_call(*arguments: Any) -> Any:
            if self._inside:
                return called(*arguments)
            self._inside, began = True, time.perf_counter()
            try:
                return called(*arguments)
            finally:
                self._inside = False
                self.seconds += time.perf_counter() - began

        setattr(owner, name, timed_call)


CLOCK = Clock()
RECORDING = (
    (ClusterObserver, "_entries"), (RecordedPeers, "scores"), (RecordedPeers, "found"), (RecordedPeers, "reported"),
    (dispatch, "diagnostics"), (HistoryWriter, "add"), (HistoryWriter, "flush"),
)  # fmt: skip


def images(peers: int) -> list[homophily.PeerData] | None:
    """Random images of 64 pixels in 10 classes; None: the digits of the demo."""
    rng = np.random.default_rng(0)
    y = np.arange(20) % 10
    return [
        homophily.PeerData(rng.normal(size=(20, 64)).astype(np.float32), y, test_x=rng.normal(size=(20, 64)), test_y=y)
        for _ in range(peers)
    ] or None


def timed(
    keys: dict[str, Any], data: list[homophily.PeerData] | None, device: str
) -> tuple[float, float, dict[str, int]]:
    """Seconds of a run, the seconds of them in recording, and the bytes of the files of its history."""
    with tempfile.TemporaryDirectory() as folder:
        simulation = homophily.Simulation(keys, data=data, out=Path(folder) / "run", device=device)
        gc.collect()
        if device == "cuda":
            torch.cuda.synchronize()
        CLOCK.seconds = 0.0
        began = time.perf_counter()
        run = simulation.result()
        took = time.perf_counter() - began
        return took, CLOCK.seconds, {path.stem: path.stat().st_size for path in (run.path / "history").glob("*")}


def rows(options: argparse.Namespace) -> Iterator[str]:
    yield "| setting | s without | s with | overhead | recording | scores | merges | similarities | diagnostics | all |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for name in options.settings:
        words, peers, keys = SETTINGS[name]
        data = images(peers)
        timed({**keys, "rounds": 3}, data, options.device)  # compiles and reads what the others find ready
        pairs, shares = [], []
        for number in range(options.repeats):
            order = (False, True) if number % 2 else (True, False)
            both = {record: timed({**keys, "record": record}, data, options.device) for record in order}
            pairs.append((both[False][0], both[True][0]))
            shares.append(both[True][1] / both[True][0])
            sizes = both[True][2]
        without, recorded = (statistics.median(column) for column in zip(*pairs, strict=True))
        overhead = statistics.median(b / a - 1 for a, b in pairs)
        each = [f"{sizes.get(kind, 0):,}" for kind in ("scores", "merges", "similarities", "diagnostics")]
        inside = "-" if options.device == "cuda" else f"{statistics.median(shares):.1%}"
        cells = [
            words,
            f"{without:.2f}",
            f"{recorded:.2f}",
            f"{overhead:+.1%}",
            inside,
            *each,
            f"{sum(sizes.values()):,}",
        ]
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    print(f"{machine(chosen_device(options.device))}, torch {torch.__version__}, {date.today()}\n")
    for owner, name in RECORDING:
        CLOCK.watch(owner, name)
    for row in rows(options):
        print(row, flush=True)


if __name__ == "__main__":
    main()
