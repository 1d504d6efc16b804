"""MLflow: a server, a database or a local folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from homophily.plugins.optional import imported
from homophily.trackers.base import Identity, TrackedRun, Tracker, Values, ascii_name, numbers, trackers

_SELF = "tracker 'mlflow'"
_BATCH, _LONGEST = 100, 500  # parameters in one request; characters of a parameter's value
_TAG = 5000  # characters of a tag's value


@trackers("mlflow")
class Mlflow(Tracker):
    """MLflow: metrics by round, the config as parameters."""

    def __init__(
        self,
        uri: Annotated[
            str | None,
            Field(
                description="the tracking server or store. Left out: `MLFLOW_TRACKING_URI`, else `mlflow` in the "
                "folder of the run or of its comparison"
            ),
        ] = None,
        experiment: Annotated[
            str | None, Field(description="the experiment. Left out: the comparison's name, else `homophily`")
        ] = None,
    ) -> None:
        self._uri, self._experiment = uri, experiment
        self._mlflow = imported("mlflow", "trackers", _SELF)
        self._entities = imported("mlflow.entities", "trackers", _SELF)

    def open(self, run: TrackedRun, identity: Identity | None) -> Identity:
        above = run.path.parent if run.group else run.path
        uri = self._uri or os.environ.get("MLFLOW_TRACKING_URI") or (above / "mlflow").absolute().as_uri()
        if "://" not in uri:
            uri = Path(uri).absolute().as_uri()
        if uri.startswith("file:"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # without it, MLflow 3 refuses a folder
        self._client = self._mlflow.MlflowClient(uri)
        self._last: dict[str, int] = {}  # the last round of each metric that an earlier process has logged
        if identity is not None:
            self._run = identity["run"]
            self._client.update_run(self._run, "RUNNING")
            for name in self._client.get_run(self._run).data.metrics:
                self._last[name] = max(one.step for one in self._client.get_metric_history(self._run, name))
        else:
            tags = {"homophily.folder": str(run.path), **({"homophily.comparison": run.group} if run.group else {})}
            experiment = self._experiment_id(self._experiment or run.group or "homophily")
            self._run = self._client.create_run(experiment, run_name=run.name, tags=tags).info.run_id
            parameters = [
                self._entities.Param(ascii_name(key), str(value)[:_LONGEST]) for key, value in run.parameters.items()
            ]
            for some in _batches(parameters):
                self._client.log_batch(self._run, params=some)
        self._round = run.logged
        return {"run": self._run}

    def log(self, round: int, values: Mapping[str, float]) -> None:
        self._round, now = round, int(time.time() * 1000)
        found = [
            self._entities.Metric(name, value, now, round)
            for name, value in ((ascii_name(name), value) for name, value in values.items())
            if round > self._last.get(name, -1)  # else a process logged it, and was killed before it noted that
        ]
        for some in _batches(found):
            self._client.log_batch(self._run, metrics=some)

    def finish(self, summary: Values) -> None:
        self.log(self._round, {f"summary/{name}": value for name, value in numbers(summary).items()})
        for name, text in summary.items():
            if isinstance(text, str):
                self._client.set_tag(self._run, f"homophily.{ascii_name(name)}", text[:_TAG])
        self._client.set_terminated(self._run)

    def _experiment_id(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name))
            except self._mlflow.MlflowException:  # another process has created it meanwhile
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)


def _batches(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (items[first : first + _BATCH] for first in range(0, len(items), _BATCH))
