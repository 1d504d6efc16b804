"""Plays the runs of a recipe, each once, and keeps what they gave: results of many calls add up in one folder."""

from __future__ import annotations

import hashlib
import json
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
_RECENT = 10  # rounds whose similarities are kept: in one alone a peer meets few


@dataclass(frozen=True)
class Reproduction:
    """A recipe and what its runs gave so far: one small file a run in a folder that all recipes share."""

    name: str
    recipe: Recipe
    store: Path
    quick: bool
    seeds: int

    @classmethod
    def of(cls, name: str, store: Path, quick: bool, seeds: int | None) -> Reproduction:
        """seeds: how many; None: as many as the paper, or the quick form, has."""
        recipe = load(name)
        if seeds is not None and seeds < 1:
            raise UserError(f"--seeds {seeds}: must be at least 1")
        own = recipe.quick.seeds if quick else recipe.seeds
        return cls(name, recipe, store, quick, seeds or own)

    @property
    def title(self) -> str:
        """What its pages and pictures are called: NAME, or NAME-quick."""
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
        """All runs by name, each once, seed by seed."""
        return {
            _name(config): config
            for seed in range(self.seeds)
            for column in self.columns
            for row in self.rows
            if row not in self.recipe.left_out.get(column, [])
            for config in [self.config(row, column, seed)]
        }

    def result(self, row: str, column: str, seed: int) -> dict[str, Any] | None:
        """What a cell's run gave; None: it has not been played."""
        path = self._path(_name(self.config(row, column, seed)))
        return read_json(path) if path.exists() else None

    def results(self) -> list[dict[str, Any]]:
        """What all runs played so far gave, each once."""
        return [read_json(path) for path in map(self._path, self.runs()) if path.exists()]

    def missing(self) -> list[Config]:
        """The runs that are to be played; those that do the same work follow one another, to go side by side."""
        missing = [config for name, config in self.runs().items() if not self._path(name).exists()]
        first: dict[tuple[int, str], int] = {}
        return sorted(missing, key=lambda config: first.setdefault((config.seed, work(config)), len(first)))

    def _path(self, run: str) -> Path:
        return self.store / f"{run}.json"

    def play(self, device: torch.device, budget: float, callbacks: Callable[[], Sequence[Callback]] = tuple) -> int:
        """Play what is missing, or go on with it, until ``budget`` seconds are over; returns how many runs are left.

        callbacks: makes, for each run that begins, what watches it.
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
                    shutil.rmtree(target, ignore_errors=True)  # no run yet, or on a device that need not be here
                yield RunRequest(config, target, callbacks)

        done = 0
        with locked(running):
            for run in execute(in_time(), UserObjects(), device):
                self._keep(run)
                done += 1
        return len(missing) - done

    def _keep(self, run: Run) -> None:
        """What the tables and figures need of a run; its models are many and large, and go."""
        about, lines = run.about, run.metrics()
        kept = {
            "config": run.config.toml(),
            "summary": run.summary,
            "curve": [{key: line[key] for key in _CURVES if key in line} for line in lines],
            **_drawn(run, lines),
            "machine": about["machine"],
            "versions": about["versions"],
            "engine": about["plan"]["engine"],
        }
        write_json(self._path(run.path.name), kept)
        shutil.rmtree(run.path)


def _name(config: Config) -> str:
    """The same for the same run, whichever cell it is of."""
    method = config.method.name.replace(":", ".")
    text = json.dumps(config.toml(), sort_keys=True)
    return f"{method}-{config.seed}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _drawn(run: Run, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """What only figures need."""
    clusters = run.scores["cluster"]
    return {
        "clusters": clusters,
        "merges": run.merges().tolist(),
        "neighbours": [mine.nonzero()[0].tolist() for mine in run.neighbours()],
        "similarities": _similarities(lines[-_RECENT:], clusters),
    }


def _similarities(lines: list[dict[str, Any]], clusters: list[str]) -> dict[str, list[float]]:
    """What the first watched peer last measured of peers of its own cluster (inside) and of others (outside)."""
    last: dict[str, float] = {}
    for line in lines:
        if line.get("similarities"):
            me, mine = next(iter(line["similarities"].items()))
            last |= {peer: value for peer, value in mine.items() if value is not None}
    found: dict[str, list[float]] = {"inside": [], "outside": []}
    for peer, value in last.items():
        found["inside" if clusters[int(peer)] == clusters[int(me)] else "outside"].append(value)
    return found
