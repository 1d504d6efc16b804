"""One run in one tracker. What was logged is stored in the run's folder, so that it is logged once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from homophily.atomic_io import plain, write_text
from homophily.config.overlay import flat
from homophily.config.schema import Config, TrackerTable
from homophily.errors import UserError
from homophily.plugins.parameters import checked
from homophily.runs.comparison import Contents
from homophily.runs.reader import Run
from homophily.trackers.base import TrackedRun, Tracker, numbers, trackers

Entry = dict[str, Any]  # a tracker, its keys, the identity of its run, and the last round that it keeps
FILE = "trackers.jsonl"  # a line per tracker and round; the last line of a tracker counts


class RunLog:
    """Logs a run in the tracker that a table of the config names."""

    def __init__(self, table: TrackerTable) -> None:
        """Raises UserError if a package is missing or a key is wrong."""
        self.name, self._keys = table.name, table.keys
        self.words = " ".join([self.name, *(f"{key}={value}" for key, value in self._keys.items())])
        """The tracker and its keys as on the command line, after ``--to``."""
        make = trackers.get(self.name)
        self._tracker = make(**checked("tracker", f"tracker {self.name!r}", make, self._keys))
        if not isinstance(self._tracker, Tracker):
            raise UserError(f"tracker = {self.name!r}: must be a homophily.Tracker, not {type(self._tracker).__name__}")

    def open(self, path: Path, config: Config) -> None:
        """Begin with the run in the folder ``path``, or continue after the last round that was logged."""
        self._path = path
        new: Entry = {"identity": None, "round": 0, "finished": False}
        before = next((entry for entry in self._all() if self._same(entry)), new)
        self._round, self._finished = int(before["round"]), bool(before["finished"])
        group = path.absolute().parent.name if Contents.read(path.absolute().parent) is not None else None
        parameters = {key: value for key, value in plain(flat(config.toml())).items() if key != "tracker"}
        run = TrackedRun(path, path.absolute().name, group, parameters, self._round)
        try:
            self._identity = self._tracker.open(run, before["identity"])
            self._round = self._tracker.kept(self._round)  # it may have more than was noted
        except ModuleNotFoundError as error:
            raise UserError(f"tracker {self.name!r} needs {error.name}, which is not installed") from error
        self._store()

    def log(self, lines: Iterable[Mapping[str, Any]]) -> int:
        """Log the metrics of rounds that were not logged before; returns how many."""
        new = [line for line in lines if line["round"] > self._round]
        for line in new:
            values = {name: value for name, value in numbers(line).items() if name != "round"}
            self._tracker.log(line["round"], values)
            self._round, self._finished = line["round"], False
            with (self._path / FILE).open("a", encoding="utf-8") as file:
                file.write(_line(self._entry))
        return len(new)

    def flush(self) -> None:
        """Let the tracker write what it held back and close, since no more rounds come."""
        self._tracker.flush()
        self._store()

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Log the results of the finished run, if they were not logged before."""
        if not self._finished:
            notes = summary.get("notes") or []
            headline = {"headline": summary["headline"]} if "headline" in summary else {}
            self._tracker.finish({**numbers(summary), **headline, **({"notes": "\n".join(notes)} if notes else {})})
            self._finished = True
            self._store()

    @property
    def _entry(self) -> Entry:
        return {
            "name": self.name,
            "keys": self._keys,
            "identity": self._identity,
            "round": self._tracker.kept(self._round),
            "finished": self._finished,
        }

    def _same(self, entry: Entry) -> bool:
        return bool(entry["name"] == self.name and entry["keys"] == self._keys)

    def _all(self) -> list[Entry]:
        """The last entry of each tracker of the run."""
        file = self._path / FILE
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        *lines, _ = text.split("\n")  # the last may be incomplete
        try:
            found = [json.loads(line) for line in lines]
            return list({json.dumps([entry["name"], entry["keys"]]): entry for entry in found}.values())
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{file} is damaged: {error}") from error

    def _store(self) -> None:
        others = [entry for entry in self._all() if not self._same(entry)]
        write_text(self._path / FILE, "".join(map(_line, [*others, self._entry])))


def _line(entry: Entry) -> str:
    return json.dumps(entry, ensure_ascii=False) + "\n"


def log_run(run: Run, table: TrackerTable) -> int:
    """Log a stored run, finished or not; returns how many rounds were not logged before."""
    log = RunLog(table)
    log.open(run.path, run.config)
    rounds = log.log(run.metrics())
    if run.finished:
        log.finish(run.summary)
    else:
        log.flush()
    return rounds
