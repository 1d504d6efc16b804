"""One run from its first round to its last, or several side by side: computed, logged and finished."""

from __future__ import annotations

import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from homophily.atomic_io import Stacked, locked, plain, read_folder
from homophily.config.schema import Config
from homophily.errors import ConfigWarning, DivergedWarning, UserError
from homophily.experiments.callbacks import Callbacks
from homophily.experiments.tracking import Tracking
from homophily.plugins.registry import GIVEN
from homophily.runs.headline import Headline
from homophily.runs.reader import Run
from homophily.runs.writer import Outcome, RunWriter
from homophily.simulation.configuration import idle_settings, load, make
from homophily.simulation.evaluation import Scores
from homophily.simulation.rounds import Computation, Experiment, OneRun, RunState, play_round
from homophily.simulation.shards import WHOLE, Shards, rows_of, total
from homophily.simulation.side_by_side import SideBySide
from homophily.simulation.user_objects import UserObjects
from homophily.training.resources import ExecutionPlan, threads
from homophily.training.task import Task
from homophily.version import __version__

_NOTICEABLE, _REST = 0.1, 20  # after a checkpoint of more seconds than this, none is written for 20 times as long
_WRITTEN = 400 << 20  # bytes per second, to estimate the time of the first checkpoint
_WRITERS = 8  # finished runs that are written in parallel


def as_config(config: Config | Mapping[str, Any] | str | Path | None) -> Config:
    """The config in any of the forms a caller may give it."""
    if isinstance(config, Config):
        return config
    if isinstance(config, str | Path):
        return load(Path(config))
    if not isinstance(config, Mapping | None) or not all(isinstance(key, str) for key in config or {}):
        raise UserError(f"config: must be a TOML file, a Config, or keys and values, not {config!r}")
    return make(config or {})


@dataclass(eq=False)
class ActiveRun:
    """A run in progress, its folder and its callbacks."""

    state: RunState
    writer: RunWriter
    config: Config
    objects: UserObjects
    callbacks: Callbacks

    def __post_init__(self) -> None:
        rows = self.state.federation.rows
        self.rested = time.monotonic() + _rest(rows.nbytes / _WRITTEN)  # no checkpoint before this time
        self.shards = self.state.experiment.shards
        self.state.may_end = self.shards.agreed(lambda: bool(self.callbacks))

    # What callbacks see

    @property
    def path(self) -> Path:
        return self.writer.path

    @property
    def round(self) -> int:
        return self.state.round

    def state_dict(self, peer: int) -> dict[str, Tensor]:
        peers, task = self.state.experiment.roster.peers, self.state.experiment.task
        if not 0 <= peer < peers:
            raise UserError(f"peer {peer!r}: this run has peers 0 to {peers - 1}")
        self.shards.agreed(lambda: {"model": int(peer)})
        row, kept = self._model(peer)
        return task.layout.state_dict(row, kept, task.layout.frozen_values(task.module))

    def _model(self, peer: int) -> tuple[Tensor, dict[str, Tensor]]:
        """A peer's row and kept buffers, in every process."""
        federation, peers = self.state.federation, self.state.experiment.roster.peers

        def of_peer(table: Tensor) -> Tensor:
            return rows_of(self.shards, table, torch.tensor([peer]), peers)[0]

        return of_peer(federation.rows), {name: of_peer(table) for name, table in federation.kept.items()}

    def stop(self) -> None:
        self.state.end()

    # What process 0 does alone

    def held(self) -> AbstractContextManager[None]:
        """The lock on the run's folder, which process 0 holds."""
        return locked(self.path) if self.shards.rank == 0 else nullcontext()

    def call(self, callbacks: Callable[[], None]) -> None:
        """Call callbacks in process 0; meanwhile the others answer what it asks for."""
        if self.shards.rank == 0:
            callbacks()
            self.shards.agreed(lambda: {"end": self.state.ended})
            return
        while "model" in (asked := self.shards.agreed(dict)):
            self._model(asked["model"])
        if asked["end"]:
            self.state.end()

    def log(self, metrics: dict[str, Any]) -> None:
        """Write a round's metrics and add its entries to the history."""
        if self.shards.rank == 0:
            self.writer.append(metrics)
            self.record()

    # What is written

    def record(self) -> None:
        """Add the entries of the last round to the history."""
        recorded = self.state.exchange.recorded
        if recorded is not None:
            self.writer.history.add(self.state.round, self.state.entries, recorded.about)

    def save(self) -> None:
        """Write a checkpoint."""
        written = self.shards.agreed(lambda: self.writer.has_checkpoint(self.state.round))
        shards = None if written else self.shards.collected(self.state.tensors())
        if self.shards.rank == 0:
            self.writer.keep_preparation(self.state.experiment.task.data.preparation)
            self.writer.save(self.state.round, shards, {**self.state.numbers(), "callbacks": self.callbacks.state()})
        elif shards is not None:
            list(shards)  # this sends them

    def restore(self) -> None:
        """Continue from the last checkpoint, or from the start."""
        last = self.writer.last_checkpoint() if self.shards.rank == 0 else None
        where = self.shards.agreed(lambda: None if last is None else str(last))
        if where is not None:
            mine = self.shards.mine(self.state.experiment.roster.peers)
            tensors, numbers = read_folder(Path(where), mine, lambda name: name.startswith(WHOLE))
            try:
                self.state.restore(tensors, numbers)
            except (KeyError, TypeError, AttributeError, RuntimeError) as error:
                raise UserError(f"{where} is damaged, or of another version: {error}") from error
            self.callbacks.restore(numbers.get("callbacks", []))
        if self.shards.rank == 0:
            self.writer.cut(self.state.round)

    def finish(self, summary: dict[str, Any], scores: Scores) -> None:
        """Write the results of a finished run."""
        self.save()
        outcome = _outcome(self.state, summary, scores)
        if self.shards.rank == 0:
            self.writer.finish(outcome)
        else:
            for tensors in (outcome.merges, outcome.models):
                list(tensors.parts)  # this sends them

    def end(self) -> Run:
        """Call the callbacks of a finished run whose results are written."""
        self.call(lambda: self.callbacks.end(self, Run(self.path).summary))
        return Run(self.path, self.objects.model)


def begin(
    experiment: Experiment,
    config: Config,
    plan: ExecutionPlan,
    objects: UserObjects,
    out: Path | None,
    callbacks: Callbacks,
) -> ActiveRun:
    """A run before its first round, its folder made."""
    shards = experiment.shards
    if shards.rank:
        return _follower(experiment, config, objects, RunWriter(Path(shards.agreed(str))))
    for note in idle_settings(config):
        warnings.warn(note, ConfigWarning, stacklevel=2)
    callbacks = callbacks.observed_by(Tracking(config))
    named = [config.method.name, Path(config.data.name).name, str(config.seed)]
    name = "-".join("own" if part == GIVEN else part for part in named)
    writer = RunWriter.create(out, "".join(c if c.isalnum() or c in "-_." else "-" for c in name))
    task = experiment.task
    writer.keep_start(objects.model, task.layout.frozen_values(task.module))
    about = description(config, plan, task, experiment.scorer.metric.headline, experiment.digest)
    names = experiment.roster.names
    writer.describe(config, about if names is None else {**about, "peers": list(names)})
    shards.agreed(lambda: str(writer.path))
    return ActiveRun(RunState(experiment), writer, config, objects, callbacks)


def again(
    experiment: Experiment, config: Config, objects: UserObjects, writer: RunWriter, callbacks: Callbacks
) -> ActiveRun:
    """A stopped run, after the last round in its checkpoint."""
    writer.check(form(experiment.task), config, experiment.digest)
    if experiment.shards.rank:
        found = _follower(experiment, config, objects, writer)
    else:
        callbacks = callbacks.observed_by(Tracking(config))
        found = ActiveRun(RunState(experiment), writer, config, objects, callbacks)
    found.restore()
    return found


def _follower(experiment: Experiment, config: Config, objects: UserObjects, writer: RunWriter) -> ActiveRun:
    """The run in a process that writes nothing and calls no callbacks."""
    return ActiveRun(RunState(experiment), writer, config, objects, Callbacks([]))


def with_start(writer: RunWriter, objects: UserObjects) -> UserObjects:
    """The objects that are passed again; a model gets the weights with which the run began."""
    return replace(objects, model=writer.with_start(objects.model))


def plan_of(run: Run) -> ExecutionPlan:
    """The execution plan of a stored run."""
    try:
        return ExecutionPlan(**run.about["plan"])
    except TypeError as error:
        raise UserError(f"{run.path / 'run.json'} is damaged, or of another version: {error}") from error


class RoundPlayer:
    """Computes one run, or several side by side, round by round, and logs each round."""

    def __init__(self, runs: Sequence[ActiveRun]) -> None:
        self.runs = runs
        states = [run.state for run in runs]
        self._compute: Computation = OneRun(states[0]) if len(states) == 1 else SideBySide(states)
        for run in runs:
            run.call(partial(run.callbacks.start, run))

    @property
    def finished(self) -> bool:
        return all(run.state.finished for run in self.runs)

    def step(self) -> dict[int, dict[str, Any]]:
        """One round of the runs, by number, that are not finished; returns the metrics of each."""
        going = {number: run for number, run in enumerate(self.runs) if not run.state.finished}
        played = play_round({number: run.state for number, run in going.items()}, self._compute)
        metrics = {number: plain(line) for number, line in played.items()}
        with ExitStack() as lines:  # every run's line is written, also if a callback is interrupted or fails
            for number, run in going.items():
                lines.callback(run.log, metrics[number])
            for number, run in going.items():
                run.call(partial(run.callbacks.round, run, metrics[number]))
        _save_if_due(list(going.values()))
        return metrics

    def play(self, before_round: Callable[[], None] = lambda: None) -> list[Run]:
        """Compute all runs to their ends. before_round: called before each round."""
        try:
            while not self.finished:
                before_round()
                self.step()
        except KeyboardInterrupt:
            stopped = next((run for run in self.runs if not run.state.finished), self.runs[0])
            raise KeyboardInterrupt(str(stopped.path)) from None  # for the caller's hint how to resume
        finally:  # the history of a stopped run has the rounds of its metrics
            for run in self.runs:
                run.writer.history.flush()
        return self.finish()

    def finish(self) -> list[Run]:
        """Compute final scores and write the results of all runs."""
        results = [run.state.result() for run in self.runs]
        with ThreadPoolExecutor(_WRITERS) as pool:  # a disk can write the files of several runs at a time
            written = pool.map(lambda run, result: run.finish(*result), self.runs, results)
            return [run.end() for run, _ in zip(self.runs, written, strict=True)]  # callbacks in the caller's thread


def _save_if_due(runs: Sequence[ActiveRun]) -> None:
    """Write checkpoints if they are due, of all runs or of none, so that the runs can be resumed together."""
    began = time.monotonic()
    due = [run for run in runs if run.state.round % run.config.checkpoint == 0]
    if due and due[0].shards.agreed(lambda: began >= max(run.rested for run in due)):
        for run in due:
            run.save()
        over = time.monotonic()
        for run in due:
            run.rested = over + _rest(over - began)


def _rest(seconds: float) -> float:
    """Seconds without a checkpoint after one that took so many seconds to write."""
    return _REST * seconds if seconds > _NOTICEABLE else 0.0


def _outcome(state: RunState, summary: dict[str, Any], scores: Scores) -> Outcome:
    """The results of a finished run."""
    models, data, roster = state.models(), state.experiment.task.data, state.experiment.roster
    gathered = state.experiment.shards.gathered
    columns = {
        **scores.columns,
        "models_received": gathered(state.exchange.traffic.received),
        "diverged_rounds": gathered(state.diverged_rounds),
    }
    table: dict[str, list[Any] | None] = {name: values.tolist() for name, values in columns.items()}
    table["peer"] = None if roster.names is None else list(roster.names)
    table["cluster"] = None if roster.cluster is None else [roster.cluster_names[c] for c in roster.cluster.tolist()]
    rows = {"rows": models.rows, **{f"kept/{name}": buffers for name, buffers in models.kept.items()}}
    shards = state.experiment.shards
    return Outcome(summary, table, _stacked(shards, state.exchange.final()), _stacked(shards, rows), data.preparation)


def _stacked(shards: Shards, tensors: Mapping[str, Tensor]) -> Stacked:
    """The rows of all processes, which process 0 writes and the others send."""
    counts = total(shards, torch.tensor([len(table) for table in tensors.values()])).tolist()
    return Stacked(shards.collected(tensors), dict(zip(tensors, counts, strict=True)))


def description(
    config: Config, plan: ExecutionPlan, task: Task, headline: Headline, digest: str | None
) -> dict[str, Any]:
    """The content of ``run.json``. digest: of the data of all peers."""
    device = task.ids.device
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "seed": config.seed,
        "versions": {
            "homophily": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "machine": machine(device),
        "device": str(device),
        "plan": asdict(plan),
        "headline": asdict(headline),
        **form(task),
        **({} if digest is None else {"data": digest}),
        **({} if task.data.class_names is None else {"class_names": task.data.class_names}),
    }


def form(task: Task) -> dict[str, Any]:
    """A model's input and output shapes, its layout, and a hash of its frozen weights."""
    return {
        "inputs": task.data.inputs,
        "outputs": task.data.outputs,
        "layout": task.layout.to_json(),
        "frozen": task.layout.frozen_hash(task.module),
        **({} if task.data.fields is None else {"fields": task.data.fields.to_json()}),
    }


def machine(device: torch.device) -> str:
    """The name of a device's hardware."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()}, {os.cpu_count()} cores"


def chosen_device(name: str, key: str = "device") -> torch.device:
    """The device named auto, cpu or cuda. key: its name in error messages."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise UserError(f"{key} = {name!r}: must be auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError(f"{key} = 'cuda': this machine has no CUDA device that torch can use")
    return torch.device(name)


def warn_of_diverged(runs: Iterable[Run]) -> None:
    """One warning to the caller of the public function, if peers of some runs have diverged."""
    diverged = {run.path: len(run.summary["diverged"]) for run in runs}
    if found := [f"{peers} peers in {path}" for path, peers in diverged.items() if peers]:
        which = ", ".join(found[:3]) + (f" and {len(found) - 3} more runs" if len(found) > 3 else "")
        why = "weights or outputs hold a NaN or an infinity"
        warnings.warn(f"models have diverged ({why}) and have no scores: {which}", DivergedWarning, stacklevel=3)


@contextmanager
def torch_settings(config: Config, plan: ExecutionPlan, device: torch.device) -> Iterator[None]:
    """torch's process-wide settings for the time of a run."""
    precision, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest" if config.precision == "full" else "high")
        torch.backends.cudnn.allow_tf32 = config.precision != "full"
    try:
        with threads(plan.threads):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = convolutions
