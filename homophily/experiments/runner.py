"""Run, continue and compare: what the command line and Python callers use."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from homophily.atomic_io import locked
from homophily.config.schema import Config
from homophily.data import PeerArrays
from homophily.errors import DivergedWarning, UserError
from homophily.methods import Method
from homophily.plugins.registry import GIVEN
from homophily.runs.reader import Run, RunFolder
from homophily.simulation.configuration import load, make, over
from homophily.simulation.evaluation import ExtraMetric, Scores
from homophily.simulation.rounds import Problem, Simulation
from homophily.simulation.setup import Given, prepare
from homophily.training.losses import Loss
from homophily.training.resources import Resolved, threads

_NOTICEABLE, _REST = 0.1, 20  # a checkpoint that takes so many seconds comes after twenty times as many without
_WRITTEN = 400 << 20  # bytes a second that a first checkpoint is thought to take
Progress = Callable[[dict[str, Any]], None]  # called with each round's line of metrics


def run(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    *,
    model: nn.Module | None = None,
    data: Sequence[PeerArrays] | None = None,
    loss: Loss | None = None,
    method: Method | None = None,
    extra_metrics: Mapping[str, ExtraMetric] | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> Run:
    """Simulate a federation from its first round to its last and return the finished run.

    config: a TOML file, nested keys as in one, or None for the defaults. The keyword arguments take objects in place
    of the names a config has: any ``nn.Module``, one ``PeerData`` a peer, a loss ``(outputs, targets) -> [samples]``,
    a ``Method``, and metrics ``(outputs, targets) -> float`` that are scored for every peer.
    """
    given = Given(model, data, loss, method, extra_metrics or {})
    finished = _start(as_config(config), given, Path(out) if out else None, device, progress)
    warn_of_diverged([finished])
    return finished


def resume(
    path: str | Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    model: nn.Module | None = None,
    data: Sequence[PeerArrays] | None = None,
    loss: Loss | None = None,
    method: Method | None = None,
    extra_metrics: Mapping[str, ExtraMetric] | None = None,
    progress: Progress | None = None,
) -> Run:
    """Go on with a run that was stopped, or with a finished one for more rounds: ``resume(path, {"rounds": 100})``.

    Objects that were given to ``run`` must be given again, a model with whatever weights.
    """
    found = Run(path)
    for key in overrides or {}:
        if key not in ("rounds", "evaluate", "checkpoint"):
            raise UserError(f"{key}: a resumed run can change rounds, evaluate and checkpoint only")
    stored = found.config
    config = over(stored, overrides or {})
    if config.rounds < stored.rounds:
        raise UserError(f"rounds = {config.rounds}: this run has {stored.rounds} already, and they cannot be undone")
    if found.finished and found.summary["rounds"] == config.rounds:
        warn_of_diverged([found])
        return Run(path, model)
    folder = RunFolder(found.path)
    given = folder.began_with(Given(model, data, loss, method, extra_metrics or {}))
    device, resolved = found.began_on()
    chosen = chosen_device(device)
    with locked(found.path), settings(config, resolved, chosen):
        problem, config, _ = prepare(config, given, chosen, resolved)
        playing = again(problem, config, given, folder, progress)
        if playing.simulation.finished and found.finished and found.summary["rounds"] == playing.simulation.round:
            return Run(path, model)  # everyone had stopped
        folder.write_config(config)
        finished = playing.play()
    warn_of_diverged([finished])
    return finished


def warn_of_diverged(runs: Iterable[Run]) -> None:
    """One warning to the caller of the public function, if peers of some runs have diverged."""
    diverged = {run.path: len(run.summary["diverged"]) for run in runs}
    if found := [f"{peers} peers in {path}" for path, peers in diverged.items() if peers]:
        which = ", ".join(found[:3]) + (f" and {len(found) - 3} more runs" if len(found) > 3 else "")
        why = "weights or outputs hold a NaN or an infinity"
        warnings.warn(f"models have diverged ({why}) and have no scores: {which}", DivergedWarning, stacklevel=3)


def as_config(config: Config | Mapping[str, Any] | str | Path | None) -> Config:
    """The config in any of the forms a caller may give it."""
    if isinstance(config, Config):
        return config
    if isinstance(config, str | Path):
        return load(Path(config))
    if not isinstance(config, Mapping | None) or not all(isinstance(key, str) for key in config or {}):
        raise UserError(f"config: must be a TOML file, a Config, or keys and values, not {config!r}")
    return make(config or {})


def _start(config: Config, given: Given, out: Path | None, device: str, progress: Progress | None) -> Run:
    chosen = chosen_device(device)
    problem, complete, resolved = prepare(config, given, chosen)
    playing = begin(problem, complete, resolved, given, out, progress)
    with locked(playing.folder.path), settings(complete, resolved, chosen):
        return playing.play()


def begin(
    problem: Problem, config: Config, resolved: Resolved, given: Given, out: Path | None, progress: Progress | None
) -> Playing:
    """A run before its first round, its folder made."""
    named = [config.method.name, Path(config.data.name).name, str(config.seed)]
    name = "-".join("own" if part == GIVEN else part for part in named)
    folder = RunFolder.create(out, "".join(c if c.isalnum() or c in "-_." else "-" for c in name))
    folder.keep_start(given)
    folder.describe(config, resolved, problem.task, problem.task.ids.device)
    return Playing(Simulation(problem), folder, config, given, progress)


def again(problem: Problem, config: Config, given: Given, folder: RunFolder, progress: Progress | None) -> Playing:
    """A run that was stopped, after the last round that it kept."""
    folder.check(config, problem.task)
    simulation = Simulation(problem)
    folder.restore(simulation)
    return Playing(simulation, folder, config, given, progress)


@dataclass(eq=False)
class Playing:
    """A run that is being played, and its folder."""

    simulation: Simulation
    folder: RunFolder
    config: Config
    given: Given
    progress: Progress | None

    def __post_init__(self) -> None:
        rows = self.simulation.federation.rows
        self.rested = time.monotonic() + _rest(rows.nbytes / _WRITTEN)  # no checkpoint before this time

    def play(self) -> Run:
        """To the end."""
        try:
            while not self.simulation.finished:
                written_down({self: self.simulation.step()})
        except KeyboardInterrupt:
            raise KeyboardInterrupt(str(self.folder.path)) from None  # the caller can say what to resume
        return self.finish()

    def finish(self) -> Run:
        """Final scores, and what a finished run keeps."""
        return self.keep(*self.simulation.result())

    def keep(self, summary: dict[str, Any], scores: Scores) -> Run:
        """Write down what a finished run keeps."""
        self.folder.finish(self.simulation, {**summary, "run": str(self.folder.path)}, scores)
        return Run(self.folder.path, self.given.model)


def written_down(lines: Mapping[Playing, dict[str, Any]]) -> None:
    """Write a round of runs down; save them if it is time, all or none, so that they can go on together."""
    for one, line in lines.items():
        one.folder.append(line)
    began = time.monotonic()
    due = [one for one in lines if one.simulation.round % one.config.checkpoint == 0]
    if due and began >= max(one.rested for one in due):
        for one in due:
            one.folder.save(one.simulation)
        over = time.monotonic()
        for one in due:
            one.rested = over + _rest(over - began)
    for one, line in lines.items():
        if one.progress is not None:
            one.progress({**line, "rounds": one.config.rounds})


def _rest(seconds: float) -> float:
    """How long nothing is saved, where saving takes so many seconds."""
    return _REST * seconds if seconds > _NOTICEABLE else 0.0


def chosen_device(name: str, key: str = "device") -> torch.device:
    """The device called auto, cpu or cuda. key: what a complaint calls it."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise UserError(f"{key} = {name!r}: must be auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError(f"{key} = 'cuda': this machine has no CUDA device that torch can use")
    return torch.device(name)


@contextmanager
def settings(config: Config, resolved: Resolved, device: torch.device) -> Iterator[None]:
    """torch's process-wide settings for the time of a run."""
    precision, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if config.precision == "fast" else "highest")
        torch.backends.cudnn.allow_tf32 = config.precision == "fast"
    try:
        with threads(resolved.threads):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = convolutions
