"""Accuracy and communication of kin and the other methods, with the PANM paper's training.

Every finished run is stored as a line of JSON in a folder (--store), so that a later call does not repeat it. On a GPU
the runs of a row are executed together, so --jobs 1 is best there. Means and standard deviations are over seeds; MB are
sent per peer and include kin's fingerprints.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kin_settings import SHIFTS, TRAINING, config
from kin_work import Row, Study

from homophily.experiments.queue import RunRequest, execute
from homophily.experiments.runner import chosen_device
from homophily.simulation.configuration import make
from homophily.simulation.user_objects import UserObjects

METHODS = ("random", "panm", "dac", "kin", "oracle")
FIRST = "kin, first edition"  # runs from before fingerprints came from a fixed embedding; only shown
KEYS: dict[str, dict[str, Any]] = {"panm": {"l": 10, "tau": 10}}  # all have k = 5, and the package's other defaults
HEAD = (
    "setting",
    *METHODS,
    FIRST,
    "kin - oracle",
    "models pulled, kin / panm",
    "MB sent, kin",
    "MB sent, panm",
    "seeds",
)
ALL_SHIFTS = SHIFTS | {f"Dirichlet {a}": {"shift": "dirichlet", "alpha": a} for a in (0.1, 0.3, 0.5)}
KEPT = ("accuracy", "models_sent_per_peer", "bytes_sent_per_peer", "neighbour_precision", "neighbour_recall", "seconds")


@dataclass(frozen=True)
class Setting:
    data: str
    network: str
    samples: int
    shift: str
    rounds: int = 150

    def __str__(self) -> str:
        return f"{self.data}, {self.network}, {self.samples} samples, {self.shift}"

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods to run: without oracle if there are no true clusters."""
        return tuple(m for m in METHODS if m != "oracle" or not self.shift.startswith("Dirichlet"))


SETS: dict[str, list[Setting]] = {
    "twelve": [
        Setting("fashion-mnist", "mlp", 200, "rotations, 4"),
        Setting("fashion-mnist", "mlp", 200, "rotations, 70/20/5/5"),
        Setting("fashion-mnist", "mlp", 200, "label pairs, 5"),
        Setting("fashion-mnist", "mlp", 200, "label swaps, 2"),
        Setting("fashion-mnist", "mlp", 50, "label swaps, 4"),
        Setting("fashion-mnist", "mlp", 50, "rotations, 4"),
        Setting("mnist", "mlp", 50, "label swaps, 4"),
        Setting("mnist", "mlp", 50, "rotations, 2"),
        Setting("mnist", "mlp", 200, "label pairs, 5"),
        Setting("fashion-mnist", "cnn", 200, "rotations, 4"),
        Setting("cifar-10", "cifar-cnn", 200, "rotations, 4", 60),
        Setting("cifar-10", "cifar-cnn", 200, "label swaps, 2", 60),
    ],
    "twenty": [
        Setting(data, "mlp", 20, shift)
        for data in ("mnist", "fashion-mnist")
        for shift in SHIFTS
        if shift != "one distribution"
    ],
    "none": [
        Setting("fashion-mnist", "mlp", 200, shift)
        for shift in ("one distribution", "Dirichlet 0.1", "Dirichlet 0.3", "Dirichlet 0.5")
    ],
}


def study(options: Any) -> Study:
    """Return the study, with one row per setting of the set."""
    rows = []
    for setting in SETS[options.set]:
        if options.data and setting.data not in options.data:
            continue
        rounds = options.rounds or setting.rounds
        jobs = [partial(_runs, options.store, setting, rounds, options.peers, options.seeds, options.device)]
        rows.append(Row((str(setting),), jobs))
    return Study(HEAD, rows, _cells)


def _runs(
    store: Path, setting: Setting, rounds: int, peers: int, seeds: Sequence[int], device: str
) -> list[dict[str, Any]]:
    """Return the results of a row's runs: stored results, and those of the missing runs, which are executed now."""
    words = f"{setting} {peers} peers {rounds} rounds".replace(",", "").replace("/", "-")
    path = store / f"{words.replace(' ', '-')}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = {(line["seed"], line["method"]): line for line in map(json.loads, lines)}
    asked = [(seed, method) for seed in seeds for method in setting.methods]
    missing = [key for key in asked if key not in found]
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        requests = [
            RunRequest(make(_config(setting, rounds, peers, seed, method)), Path(folder) / f"{method}-{seed}")
            for seed, method in missing
        ]
        for (seed, method), run in zip(missing, execute(requests, UserObjects(), chosen_device(device)), strict=True):
            found[seed, method] = {"seed": seed, "method": method, **{key: run.summary[key] for key in KEPT}}
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found[seed, method]) + "\n")
    return [found[key] for key in asked + [(seed, FIRST) for seed in seeds if (seed, FIRST) in found]]


def _config(setting: Setting, rounds: int, peers: int, seed: int, method: str) -> dict[str, Any]:
    shift = {**ALL_SHIFTS[setting.shift], "test": 100}
    asked = config(setting.data, setting.network, setting.samples, shift, seed, peers, training=TRAINING)
    asked |= {"method": {"name": method, "k": 5, **KEYS.get(method, {})}}
    return asked | {"rounds": rounds, "evaluate": rounds, "checkpoint": rounds}


def _cells(done: list[list[dict[str, Any]]]) -> list[Any]:
    (runs,) = done
    of = {method: [run for run in runs if run["method"] == method] for method in (*METHODS, FIRST)}
    accuracies = [_spread([run["accuracy"] for run in some]) for some in of.values()]
    kin, panm = of["kin"], of["panm"]
    pairs = zip(kin, of["oracle"], strict=False)  # there may be no oracle
    gap = _spread([mine["accuracy"] - best["accuracy"] for mine, best in pairs], sign="+")
    pulled = _mean(kin, "models_sent_per_peer") / _mean(panm, "models_sent_per_peer")
    sent = [f"{_mean(some, 'bytes_sent_per_peer') / 1e6:.0f}" for some in (kin, panm)]
    return [*accuracies, gap, f"{pulled:.2f}", *sent, len(kin)]


def _mean(runs: list[dict[str, Any]], key: str) -> float:
    return statistics.fmean(run[key] for run in runs)


def _spread(values: list[float], sign: str = "") -> str:
    if not values:
        return "-"
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):{sign}.2f}{deviation}"
