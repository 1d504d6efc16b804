"""How far a run or a real peer is, and whether it advances: read from the end of its metrics, without its history."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from homophily.atomic_io import in_use, read_json
from homophily.errors import UserError
from homophily.report.page.sources import is_comparison, is_peer, is_run
from homophily.runs.comparison import Comparison
from homophily.runs.reader import Run

_TAIL = 1 << 20  # bytes of metrics.jsonl that are read
_RECENT = 10  # rounds whose mean time is the recent round time
_PATIENCE = 10  # round times without a new round after which a run does not advance
_LEAST = 60.0  # seconds, at least
_FIRST = 600.0  # seconds for the first round of a process, which also loads data
UNREADABLE = (UserError, OSError, ValueError, KeyError)  # what reading a folder raises if it is damaged


@dataclass(frozen=True)
class Health:
    """Whether rounds advance, and the reason if they do not."""

    good: bool
    reason: str


class Vitals:
    """The present state of one run, or of one real peer."""

    def __init__(self, path: Path) -> None:
        self.path, self.run = path, Run(path)
        self.about = self.run.about  # a folder of another format raises UserError

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """The last lines of the metrics."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        with path.open("rb") as file:
            start = max(0, path.stat().st_size - _TAIL)
            file.seek(start)
            *whole, _ = file.read().split(b"\n")  # the last may be incomplete
        return [json.loads(line) for line in whole[1 if start else 0 :][-_RECENT - 1 :]]

    @property
    def last(self) -> dict[str, Any]:
        """The metrics of the last round; empty before the first has ended."""
        return self.lines[-1] if self.lines else {}

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Empty if the run has not finished."""
        return self.run.summary if self.run.finished else {}

    @cached_property
    def status(self) -> dict[str, Any]:
        """What a real peer wrote last; empty for a simulation."""
        if not is_peer(self.path):
            return {}
        found = read_json(self.path / "status.json")
        if not isinstance(found, dict):
            raise UserError(f"{self.path / 'status.json'} is damaged: it must hold a JSON object")
        return found

    @cached_property
    def rounds(self) -> int:
        return int(self.run.config.rounds)

    @property
    def round(self) -> int:
        """Rounds that are over."""
        return int(self.last.get("round", 0))

    @property
    def headline(self) -> str:
        return self.run.headline.name

    @property
    def score(self) -> float | None:
        """The last known score."""
        found: float | None = None
        for line in (*self.lines, self.summary):
            found = line.get(self.headline, found)
        return None if found is None else float(found)

    @property
    def round_seconds(self) -> float | None:
        """The mean time of the last rounds; None before the first has ended."""
        timed = [line for line in self.lines if line.get("seconds") is not None]
        if not timed:
            return None
        if len(timed) == 1:
            return float(timed[0]["seconds"] / max(1, timed[0]["round"]))
        first, last = timed[0], timed[-1]
        return float((last["seconds"] - first["seconds"]) / max(1, last["round"] - first["round"]))

    @property
    def seconds_left(self) -> float | None:
        """None: not known, or no process works on what is left, or its rounds do not end."""
        if self.run.finished or not self.working or self.round_seconds is None or self.late is not None:
            return None
        return float(self.rounds - self.round) * self.round_seconds

    @property
    def working(self) -> bool:
        """Whether a process works on this run, or on the comparison that it belongs to."""
        return in_use(self.path) or in_use(self.path.parent)

    @property
    def health(self) -> Health:
        if self.run.finished:
            return Health(True, "finished")
        at = f"round {self.round} of {self.rounds}"
        if not self.working:
            return Health(False, f"stopped at {at}: no process works on {self.path}")
        if self.status.get("waiting"):
            away = ", ".join(map(str, self.status.get("unreachable", []))) or "none"
            return Health(False, f"waits for other peers at {at}; unreachable: {away}")
        late = self.late
        return Health(late is None, late or at)

    @property
    def late(self) -> str | None:
        """What is wrong if rounds should advance, and do not."""
        if self.late_at is None or time.time() <= self.late_at:
            return None
        typical = self.round_seconds
        usual = "no round has ended yet" if typical is None else f"the last rounds took {typical:.3g} s each"
        age = time.time() - self._changed
        return f"round {self.round} of {self.rounds} does not end: no change for {age:.0f} s; {usual}"

    @property
    def late_at(self) -> float | None:
        """When the round that goes on has taken too long, in seconds since 1970; None: no round goes on."""
        if self.run.finished or not self.working or self.status.get("waiting"):
            return None
        typical = self.round_seconds
        limit = 0.0 if typical is None else max(_LEAST, _PATIENCE * typical)
        return self._changed + (max(_FIRST, limit) if self._first else limit)

    @cached_property
    def _changed(self) -> float:
        """When the last round ended, or when a peer that has waited or another process began its first one."""
        files = ["config.toml", "status.json"] if self._first else ["metrics.jsonl"]
        return max(_written(self.path / name) for name in files)

    @cached_property
    def _first(self) -> bool:
        """Whether no round has ended since the process began: a start and a resume write the config."""
        return not self.lines or _written(self.path / "metrics.jsonl") <= _written(self.path / "config.toml")


def _written(file: Path) -> float:
    """When a file was written last, in seconds since 1970; 0: there is none."""
    return file.stat().st_mtime if file.exists() else 0.0


def vitals_of(folder: Path) -> list[Vitals]:
    """The run or peer in a folder, or all runs of a comparison that have begun."""
    if is_run(folder):
        return [Vitals(folder)]
    if is_comparison(folder):
        return [Vitals(run.path) for row in Comparison(folder).begun for run in row.runs]
    raise UserError(f"{folder}: no run has begun in it")


@dataclass(frozen=True)
class ComparisonProgress:
    """How many runs of a comparison have finished, of how many, and the time that the rest takes."""

    finished: int
    runs: int
    seconds_left: float | None  # None: not known, or no process works on the rest

    @classmethod
    def of(cls, folder: Path, begun: Sequence[Vitals]) -> ComparisonProgress:
        """The progress of the comparison in a folder. begun: its runs that have begun."""
        open_runs = [one for one in begun if not one.run.finished]
        finished = len(begun) - len(open_runs)
        runs = finished + len(Comparison(folder).unfinished)
        paces = [one.last["seconds"] / one.round for one in begun if one.round and one.last.get("seconds") is not None]
        working = sum(one.working for one in open_runs) or int(in_use(folder))
        if runs == finished or not working or not paces:
            return cls(finished, runs, None)
        rounds = sum(one.rounds - one.round for one in open_runs)
        rounds += (runs - len(begun)) * begun[0].rounds
        return cls(finished, runs, rounds * sum(paces) / len(paces) / working)


def health_of(folder: Path) -> Health:
    """A comparison advances if one of its runs does."""
    try:
        begun = vitals_of(folder)
        found = [one.health for one in begun]
    except UNREADABLE as error:
        return Health(False, str(error))
    if is_run(folder):
        return found[0]
    open_runs = [
        Health(one.good, f"{run.path.name}: {one.reason}")
        for run, one in zip(begun, found, strict=True)
        if not run.run.finished
    ]
    if found and not open_runs and Comparison(folder).unfinished:
        return Health(False, f"stopped: {len(found)} runs have finished, and others have not begun")
    if not open_runs:
        return Health(bool(found), "finished" if found else f"{folder}: no run has begun in it")
    good = [one for one in open_runs if one.good]
    return good[0] if good else open_runs[0]
