"""Executes the runs of a recipe and stores their results in one folder, so that later calls continue."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from homophily.atomic_io import locked, read_json, write_json
from homophily.config.schema import Config
from homophily.errors import UserError
from homophily.experiments.callbacks import Callback
from homophily.experiments.queue import RunRequest, execute, work
from homophily.papers.recipe import Recipe, load
from homophily.runs.reader import Run
from homophily.runs.writer import RunWriter
from homophily.simulation.user_objects import UserObjects

_CURVES = (
    "round", "accuracy", "accuracy_over_clusters", "accuracy_by_cluster", "mse", "mse_over_clusters", "mse_by_cluster",
    "loss", "neighbour_precision", "neighbour_recall", "models_sent_per_peer",
)  # fmt: skip
_RECENT = 10  # last rounds whose similarities are kept, because a peer meets few others in one round


@dataclass(frozen=True)
class Reproduction:
    """A recipe and the results of its runs so far: one small file per run, in a folder that all recipes share."""

    name: str
    recipe: Recipe
    store: Path
    quick: bool
    seeds: int

    @classmethod
    def of(cls, name: str, store: Path, quick: bool, seeds: int | None) -> Reproduction:
        """Return the reproduction of a recipe. seeds: how many; None: as many as the recipe has."""
        recipe = load(name)
        if seeds is not None and seeds < 1:
            raise UserError(f"--seeds {seeds}: must be at least 1")
        own = recipe.quick.seeds if quick else recipe.seeds
        return cls(name, recipe, store, quick, seeds or own)

    @property
    def title(self) -> str:
        """The file name of its tables and figures: NAME, or NAME-quick."""
        return f"{self.name}-quick" if self.quick else self.name

    @property
    def rows(self) -> list[str]:
        return self.recipe.quick.rows if self.quick else list(self.recipe.rows)

    @property
    def columns(self) -> list[str]:
        return self.recipe.quick.columns if self.quick else list(self.recipe.columns)

    def config(self, row: str, column: str, seed: int) -> Config:
        return self.recipe.config(row, column, seed, self.quick)

    def runs(self) -> dict[str, Config]:
        """Return the configs of all runs by name, each once, ordered by seed."""
        return {
            _name(config): config
            for seed in range(self.seeds)
            for column in self.columns
            for row in self.rows
            if row not in self.recipe.left_out.get(column, [])
            for config in [self.config(row, column, seed)]
        }

    def result(self, row: str, column: str, seed: int) -> dict[str, Any] | None:
        """Return the result of a cell's run; None if it has not been executed."""
        path = self._path(_name(self.config(row, column, seed)))
        return read_json(path) if path.exists() else None

    def results(self) -> list[dict[str, Any]]:
        """Return the results of all runs executed so far, each once."""
        return [read_json(path) for path in map(self._path, self.runs()) if path.exists()]

    def missing(self) -> list[Config]:
        """Return the configs of the runs without a result, grouped so that similar runs can be executed together."""
        missing = [config for name, config in self.runs().items() if not self._path(name).exists()]
        first: dict[tuple[int, str], int] = {}
        return sorted(missing, key=lambda config: first.setdefault((config.seed, work(config)), len(first)))

    def _path(self, run: str) -> Path:
        return self.store / f"{run}.json"

    def play(self, device: torch.device, budget: float, callbacks: Callable[[], Sequence[Callback]] = tuple) -> int:
        """Execute or continue the missing runs for at most ``budget`` seconds; return how many runs are left.

        callbacks: called at the start of each run, returns the callbacks of that run.
        """
        if not (missing := self.missing()):
            return 0
        until = time.monotonic() + budget
        running = self.store / "running" / self.title

        def in_time() -> Iterator[RunRequest]:
            for config in missing:
                if time.monotonic() > until:
                    return
                target = running / _name(config)
                if not RunWriter(target).begun or Run(target).device != device.type:
                    shutil.rmtree(target, ignore_errors=True)  # not started, or started on another device
                yield RunRequest(config, target, callbacks)

        done = 0
        with locked(running):
            for run in execute(in_time(), UserObjects(), device):
                self._keep(run)
                done += 1
        return len(missing) - done

    def _keep(self, run: Run) -> None:
        """Store what the tables and figures need of a run, then delete its folder with the large model files."""
        about, lines = run.about, run.metrics()
        kept = {
            "config": run.config.toml(),
            "summary": run.summary,
            "curve": [{key: line[key] for key in _CURVES if key in line} for line in lines],
            **_figure_data(run),
            "machine": about["machine"],
            "versions": about["versions"],
            "engine": about["plan"]["engine"],
        }
        write_json(self._path(run.path.name), kept)
        shutil.rmtree(run.path)


def _name(config: Config) -> str:
    """Return a name that depends only on the config, so that cells with equal configs share a run."""
    method = config.method.name.replace(":", ".")
    text = json.dumps(config.toml(), sort_keys=True)
    return f"{method}-{config.seed}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _figure_data(run: Run) -> dict[str, Any]:
    """Return the data of a run that only figures need."""
    clusters = run.scores["cluster"]
    return {
        "clusters": clusters,
        "merges": run.merges().tolist(),
        "neighbours": [mine.nonzero()[0].tolist() for mine in run.neighbours()],
        "similarities": _similarities(run, clusters),
    }


def _similarities(run: Run, clusters: list[str]) -> dict[str, list[float]]:
    """Return the first watched peer's latest similarities to its own cluster (inside) and to others (outside)."""
    history = run.history
    me = int(history.watched[0])
    last: dict[int, float] = {}
    for measured in history.similarities(me):
        if measured.round > run.summary["rounds"] - _RECENT:
            last |= {
                id: value
                for id, value in zip(measured.ids.tolist(), measured.values.tolist(), strict=True)
                if not math.isnan(value)
            }
    found: dict[str, list[float]] = {"inside": [], "outside": []}
    for peer, value in last.items():
        found["inside" if clusters[peer] == clusters[me] else "outside"].append(value)
    return found
