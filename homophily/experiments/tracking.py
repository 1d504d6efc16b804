"""The trackers of a config as a callback: a tracker that fails does not end the run."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from homophily.config.schema import Config
from homophily.errors import TrackerWarning, UserError
from homophily.experiments.callbacks import Callback, RunHandle
from homophily.runs.reader import Run
from homophily.trackers.run_log import RunLog


class Tracking(Callback):
    """Logs a run in the trackers of its config."""

    def __init__(self, config: Config) -> None:
        """Raises UserError if a package is missing."""
        self._logs = [RunLog(table) for table in config.tracker or []]

    def on_start(self, run: RunHandle) -> None:
        self._each(run, lambda log: log.open(run.path, run.config), UserError)
        if run.round and self._logs:  # resumed: rounds of a tracker that failed before
            lines = Run(run.path).metrics()
            self._each(run, lambda log: log.log(lines))

    def on_round(self, run: RunHandle, metrics: dict[str, Any]) -> None:
        self._each(run, lambda log: log.log([metrics]))

    def on_end(self, run: RunHandle, summary: dict[str, Any]) -> None:
        self._each(run, lambda log: log.finish(summary))

    def close(self, run: RunHandle) -> None:
        """Close the trackers before the end of the run; another object opens them again."""
        self._each(run, lambda log: log.flush())

    def _each(self, run: RunHandle, do: Callable[[RunLog], object], *fatal: type[Exception]) -> None:
        for log in list(self._logs):
            try:
                do(log)
            except fatal:
                raise
            except Exception as error:  # of a package, a disk or a network
                self._logs.remove(log)
                what = f"tracker {log.name!r} failed after round {run.round}: {type(error).__name__}: {error}"
                how = f"the run goes on; afterwards, homophily log {run.path} --to {log.words} logs the rest"
                warnings.warn(f"{what}; {how}", TrackerWarning, stacklevel=2)
