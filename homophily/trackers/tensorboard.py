"""TensorBoard: event files."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from homophily.plugins.optional import imported
from homophily.trackers.base import (
    Identity,
    TrackedRun,
    Tracker,
    Values,
    ascii_name,
    numbers,
    own_folder,
    trackers,
)

_SELF = "tracker 'tensorboard'"


@trackers("tensorboard")
class TensorBoard(Tracker):
    """TensorBoard: scalars by round, and the config as hyperparameters."""

    stays = True

    def __init__(
        self,
        folder: Annotated[
            str | None,
            Field(description="where each run gets a folder of its own. Left out: `tensorboard` in the run's folder"),
        ] = None,
    ) -> None:
        self._folder = folder
        self._files = imported("tensorboardX.event_file_writer", "trackers", _SELF)
        self._events = imported("tensorboardX.proto.event_pb2", "trackers", _SELF)
        self._summary = imported("tensorboardX.summary", "trackers", _SELF)

    def open(self, run: TrackedRun, identity: Identity | None) -> Identity:
        folder = own_folder(run, "tensorboard", self._folder, identity)
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names: a resumed run adds a file.
        self._writer = self._files.EventsWriter(str(folder / "events"), f".{run.logged:09d}")
        if identity is not None:  # hide rounds that a process wrote, and was killed before it noted them
            start = self._events.SessionLog(status=self._events.SessionLog.START)
            self._writer.write_event(self._events.Event(wall_time=time.time(), step=run.logged + 1, session_log=start))
        self._parameters, self._round = run.parameters, run.logged
        return {"folder": str(folder)}

    def log(self, round: int, values: Mapping[str, float]) -> None:
        self._round = round
        for name, value in values.items():
            self._write(self._summary.scalar(ascii_name(name), value))
        self._writer.flush()

    def flush(self) -> None:
        self._writer.close()

    def finish(self, summary: Values) -> None:
        found = {f"summary/{ascii_name(name)}": value for name, value in numbers(summary).items()}
        parameters = {key: _parameter(value) for key, value in self._parameters.items()}
        for part in self._summary.hparams(parameters, found):
            self._write(part)
        for name, value in found.items():
            self._write(self._summary.scalar(name, value))
        for name, text in summary.items():
            if isinstance(text, str):
                self._write(self._summary.text(name, text))
        self._writer.close()

    def _write(self, summary: Any) -> None:
        event = self._events.Event(wall_time=time.time(), step=self._round, summary=summary)
        self._writer.write_event(event)


def _parameter(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else str(value)
