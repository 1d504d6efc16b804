"""Executes the runs of a recipe and stores their results in one folder, so that later calls continue."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch

from homophily.atomic_io import locked, read_json, write_json
from homophily.config.schema import Config
from homophily.errors import UserError
from homophily.experiments.callbacks import Callback
from homophily.experiments.queue import Paused, RunRequest, execute, work
from homophily.papers.editions import edition_of
from homophily.papers.recipe import PAPERS, Recipe, load
from homophily.runs.reader import Run
from homophily.runs.writer import RunWriter
from homophily.simulation.user_objects import UserObjects

_CURVES = (
    "round", "accuracy", "accuracy_over_clusters", "accuracy_by_cluster", "mse", "mse_over_clusters", "mse_by_cluster",
    "loss", "neighbour_precision", "neighbour_recall", "models_sent_per_peer",
)  # fmt: skip
_RECENT = 10  # last rounds whose similarities are kept, because a peer meets few others in one round


@dataclass(frozen=True)
class Made:
    """When and where a run was executed, and the seconds of its rounds."""

    date: str
    machine: str
    seconds: float


@dataclass(frozen=True)
class Known:
    """What stored results hold of runs: scores by the run's name and the score's key, and where runs were executed.

    A score is a value (None: unknown, as after divergence) and whether peers have diverged.
    """

    scores: Mapping[tuple[str, str], tuple[float | None, bool]] = field(default_factory=dict)
    made: Mapping[str, Made] = field(default_factory=dict)


@dataclass(frozen=True)
class Reproduction:
    """A recipe and the results of its runs so far: one small file per run, in a folder that all recipes share.

    variant: the variant of the paper, None: the recipe as it is; only_rows, only_columns: what to execute, empty: all;
    known: what stored results hold, so that it need not be executed again.
    """

    name: str
    recipe: Recipe
    store: Path
    quick: bool
    seeds: int
    variant: str | None = None
    only_rows: tuple[str, ...] = ()
    only_columns: tuple[str, ...] = ()
    known: Known = field(default_factory=Known)

    @classmethod
    def of(
        cls,
        name: str,
        store: Path,
        quick: bool,
        seeds: int | None,
        variant: str | None = None,
        only_rows: Sequence[str] = (),
        only_columns: Sequence[str] = (),
        known: Known | None = None,
    ) -> Reproduction:
        """Return the reproduction of a recipe. seeds: how many; None: as many as the recipe has."""
        recipe = load(name)
        if seeds is not None and seeds < 1:
            raise UserError(f"--seeds {seeds}: must be at least 1")
        if variant is not None and variant not in recipe.variants:
            there = ", ".join(recipe.variants) or "none"
            raise UserError(f"--variant {variant}: {PAPERS[recipe.paper]} has no such variant; there are {there}")
        for what, asked, defined in (
            ("row", only_rows, list(recipe.rows)),
            ("column", only_columns, list(recipe.columns)),
        ):
            if unknown := [one for one in asked if one not in defined]:
                raise UserError(f"--{what}s: {name} has no {what} {unknown[0]!r}; there are {', '.join(defined)}")
        own = recipe.quick.seeds if quick else recipe.seeds
        only = (tuple(only_rows), tuple(only_columns))
        return cls(name, recipe, store, quick, seeds or own, variant, *only, known or Known())

    @property
    def title(self) -> str:
        """The file name of its tables and figures."""
        return file_name(self.name, self.variant, self.quick)

    @property
    def rows(self) -> list[str]:
        return self.recipe.quick.rows if self.quick else list(self.recipe.rows)

    @property
    def columns(self) -> list[str]:
        return self.recipe.quick.columns if self.quick else list(self.recipe.columns)

    def config(self, row: str, column: str, seed: int) -> Config:
        return self.recipe.config(row, column, seed, self.quick, self.variant)

    def runs(self) -> dict[str, Config]:
        """Return the configs of all runs by name, each once, ordered by seed."""
        return {run_name(config): config for _, config in self._cells()}

    def whole(self) -> Reproduction:
        """The same with all rows and columns."""
        return replace(self, only_rows=(), only_columns=())

    def _cells(self) -> Iterator[tuple[str, Config]]:
        """Yield the score of each cell and the config of its run, ordered by seed."""
        rows = [row for row in self.rows if not self.only_rows or row in self.only_rows]
        columns = [column for column in self.columns if not self.only_columns or column in self.only_columns]
        cells = [
            (self.recipe.score_of(column), self.config(row, column, seed=0))
            for column in columns
            for row in rows
            if row not in self.recipe.left_out.get(column, [])
        ]
        for seed in range(self.seeds):
            yield from ((score, config.model_copy(update={"seed": seed})) for score, config in cells)

    def result(self, row: str, column: str, seed: int) -> dict[str, Any] | None:
        """Return the result of a cell's run; None if it has not been executed."""
        path = self._path(run_name(self.config(row, column, seed)))
        return read_json(path) if path.exists() else None

    def results(self) -> dict[str, dict[str, Any]]:
        """Return the results of all runs executed so far, by name."""
        return {name: read_json(self._path(name)) for name in self.runs() if self._path(name).exists()}

    def unknown(self) -> set[str]:
        """Return the names of the runs of which stored results lack a score."""
        return {name for score, config in self._cells() if ((name := run_name(config)), score) not in self.known.scores}

    def missing(self) -> list[Config]:
        """Return the configs of the runs without a result, grouped so that similar runs can be executed together.

        A run whose scores are all known is missing only if a figure needs more of it.
        """
        figure = self.recipe.figure
        scores_do = figure is None or figure.of_scores
        missing = {
            name: config
            for score, config in self._cells()
            if not self._path(name := run_name(config)).exists()
            and not (scores_do and (name, score) in self.known.scores)
        }
        first: dict[tuple[int, str], int] = {}
        return sorted(missing.values(), key=lambda config: first.setdefault((config.seed, work(config)), len(first)))

    def _path(self, run: str) -> Path:
        return self.store / f"{run}.json"

    def play(self, device: torch.device, budget: float, callbacks: Callable[[], Sequence[Callback]] = tuple) -> int:
        """Execute or continue the missing runs for ``budget`` seconds; return how many runs are left.

        A run in progress stops after the round in which the time is over, with a checkpoint to continue from.
        callbacks: called at the start of each run, returns the callbacks of that run.
        """
        if not (missing := self.missing()):
            return 0
        until = time.monotonic() + budget
        running = self.store / "running" / self.title

        def in_time() -> Iterator[RunRequest]:
            for config in missing:
                if time.monotonic() >= until:
                    return
                target = running / run_name(config)
                if not RunWriter(target).begun or Run(target).device != device.type:
                    shutil.rmtree(target, ignore_errors=True)  # not started, or started on another device
                yield RunRequest(config, target, callbacks)

        def check_time() -> None:
            if time.monotonic() >= until:
                raise Paused

        done = 0
        with locked(running):
            for run in execute(in_time(), UserObjects(), device, before_round=check_time):
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
            "date": str(date.today()),
            "machine": about["machine"],
            "versions": about["versions"],
            "engine": about["plan"]["engine"],
        }
        write_json(self._path(run.path.name), kept)
        shutil.rmtree(run.path)


def file_name(name: str, variant: str | None, quick: bool) -> str:
    """What the files of a result are called: NAME, NAME-VARIANT, or either with -quick."""
    return "-".join(part for part in (name, variant, "quick" if quick else None) if part)


def run_name(config: Config, edition: int | None = None) -> str:
    """Return a name that depends only on the config and the method's edition, so that equal cells share a run.

    edition: of the method; None: the present one.
    """
    method = config.method.name.replace(":", ".")
    edition = edition_of(config.method.name) if edition is None else edition
    text = json.dumps(config.toml() | ({"edition": edition} if edition > 1 else {}), sort_keys=True)
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
