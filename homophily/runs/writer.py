"""Writes the folder of a run: config, versions, metrics, checkpoints, final scores and models."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from torch import Tensor, nn

from homophily.atomic_io import (
    Stacked,
    plain,
    read_tensors,
    sync,
    write_bytes,
    write_folder,
    write_json,
    write_stacked,
    write_tensors,
    write_text,
    writing,
)
from homophily.config.schema import Config
from homophily.data.preparation import Preparation
from homophily.errors import UserError
from homophily.models.copying import copied
from homophily.runs.history import HistoryWriter
from homophily.runs.reader import FORMAT, FROZEN, INPUTS, Run, frozen_tensors
from homophily.runs.stored_models import checkpoints

_METRICS_BYTES = 32 << 20  # of metrics.jsonl, above which every second line is removed
_START = "start.safetensors"


@dataclass(frozen=True)
class Outcome:
    """The results of a finished run."""

    summary: dict[str, Any]
    scores: dict[str, list[Any] | None]  # over peers
    merges: Stacked  # sparse counts of merges, and neighbours
    models: Stacked  # the final models
    preparation: Preparation  # how raw samples become a model's inputs


class RunWriter:
    """The writing side of a run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.history = HistoryWriter(path / "history")
        self._prepared: Preparation | None = None  # the last that was written

    @classmethod
    def create(cls, path: Path | None, name: str) -> RunWriter:
        """A new, empty folder at ``path``, or one called ``name``, or ``name-2`` and so on, under runs/."""
        if path is None:
            return cls(_numbered(Path("runs"), name))
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            if any(not _left_behind(entry) for entry in path.iterdir()):
                how = f", or continue it with: homophily run --resume {path}" if cls(path).begun else ""
                raise UserError(f"{path} is not empty: name another folder{how}")
        return cls(path)

    @property
    def begun(self) -> bool:
        """Whether the folder holds a run."""
        return (self.path / "config.toml").is_file()

    def describe(self, config: Config, about: dict[str, Any]) -> None:
        """Write the run's description before its first round; the config comes last and makes the folder a run."""
        write_json(self.path / "run.json", {"format": FORMAT, **about})
        self.write_config(config)

    def write_config(self, config: Config) -> None:
        write_text(self.path / "config.toml", tomli_w.dumps(_without_none(config.toml())))

    def keep_start(self, model: nn.Module | None, frozen: dict[str, Tensor]) -> None:
        """Write the frozen tensors of all peers, and the other initial weights of a model object."""
        if frozen:
            write_tensors(self.path / FROZEN, frozen)
        if model is not None:
            rest = {name: value for name, value in _tensors(model).items() if name not in frozen}
            write_tensors(self.path / _START, rest)

    @property
    def has_start(self) -> bool:
        """Whether the folder holds the initial weights of a model object."""
        return (self.path / _START).is_file()

    def with_start(self, model: nn.Module | None) -> nn.Module | None:
        """Return a copy of a model object that is passed again, with the weights that it had when the run began.

        If the stored weights do not fit the model, the copy keeps its own weights, and ``check`` refuses the model.
        """
        if model is None or not (self.path / _START).is_file():
            return model
        clone = copied(model, share_frozen=False)
        own = _tensors(clone)
        frozen = {name: value for name, value in frozen_tensors(self.path).items() if name in own}
        stored = {**frozen, **read_tensors(self.path / _START)}
        if {name: t.shape for name, t in stored.items()} == {name: t.shape for name, t in own.items()}:
            clone.load_state_dict(stored, strict=False)
        return clone

    def check(self, form: dict[str, Any], config: Config, digest: str | None) -> None:
        """Refuse to resume with another network than the folder's, or with other data.

        form: shapes and layout of the run's models; digest: of the data, None: the data may differ.
        """
        about = Run(self.path).about
        if any(about[key] != value for key, value in plain(form).items()):
            differs = "the network, or the shape of the data, differs from the one that the run began with"
            raise UserError(f"cannot resume {self.path}: {differs}")
        if digest is not None and "data" in about and about["data"] != digest:
            raise UserError(f"cannot resume {self.path}: data = {config.data.name} has changed since the run began")

    def append(self, metrics: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl. Above a limit, every second line before it is removed."""
        path = self.path / "metrics.jsonl"
        with writing(path):
            length = path.stat().st_size if path.exists() else 0
            if length > _METRICS_BYTES:
                length = _halve(path)
            try:
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(plain(metrics), ensure_ascii=False) + "\n")
            except OSError:
                with suppress(OSError):
                    os.truncate(path, length)  # remove the incomplete line
                raise

    def keep_preparation(self, preparation: Preparation) -> None:
        """Write how inputs are prepared for the models of the next checkpoint, if that has changed.

        A run that is extended keeps it for its final models until it has finished again.
        """
        if preparation is self._prepared or (self.path / "summary.json").is_file():
            return
        self._write_preparation(preparation)

    def _write_preparation(self, preparation: Preparation) -> None:
        write_tensors(self.path / INPUTS, preparation.tensors(), {"raw": preparation.raw})
        self._prepared = preparation

    def has_checkpoint(self, round: int) -> bool:
        """Whether there is a complete checkpoint of this round."""
        return self._checkpoint(round).exists()

    def _checkpoint(self, round: int) -> Path:
        return self.path / "checkpoints" / f"round-{round:06d}"

    def save(self, round: int, shards: Iterable[dict[str, Tensor]] | None, rest: dict[str, Any]) -> None:
        """Write a checkpoint; older ones are removed once the new one is complete.

        shards: the tensors; None: this checkpoint is written already. rest: written as JSON.
        """
        self.history.flush()
        metrics = self.path / "metrics.jsonl"
        if metrics.exists():
            with writing(metrics):
                sync(metrics)  # the metrics on disk have all rounds of the checkpoint; the history survives a kill only
        target = self._checkpoint(round)
        if shards is not None:
            with writing(target):
                target.parent.mkdir(exist_ok=True)
            write_folder(target, shards, rest)
        for _, old in checkpoints(self.path)[:-1]:
            shutil.rmtree(old)

    def last_checkpoint(self) -> Path | None:
        """The folder of the last checkpoint; None if there is none."""
        found = checkpoints(self.path)
        return found[-1][1] if found else None

    @property
    def last_round(self) -> int:
        """The round of the last checkpoint, after which the run would continue; 0 if there is none."""
        return max((round for round, _ in checkpoints(self.path)), default=0)

    @property
    def length(self) -> int:
        """The bytes of the metrics; 0 before the first round."""
        metrics = self.path / "metrics.jsonl"
        return metrics.stat().st_size if metrics.exists() else 0

    def cut(self, last: int) -> None:
        """Remove the metrics and the history of rounds after ``last``."""
        self.history.cut(last)
        metrics = self.path / "metrics.jsonl"
        if metrics.exists():
            with writing(metrics):
                os.truncate(metrics, _length_until(last, metrics))

    def finish(self, outcome: Outcome) -> None:
        """Write final scores, merge counts and models; the summary comes last and marks the run as finished."""
        summary = self.path / "summary.json"
        with writing(summary):
            summary.unlink(missing_ok=True)  # of fewer rounds, if the run was extended
        write_stacked(self.path / "merges.safetensors", outcome.merges)
        write_stacked(self.path / "models.safetensors", outcome.models)
        self._write_preparation(outcome.preparation)
        write_json(self.path / "scores.json", outcome.scores)
        write_json(summary, {**outcome.summary, "run": str(self.path)})


def _numbered(parent: Path, name: str) -> Path:
    """Make a folder that no other process has made."""
    number, path = 1, parent / name
    with writing(path):
        parent.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                path.mkdir()
                return path
            except FileExistsError:
                number += 1
                path = parent / f"{name}-{number}"


def _left_behind(entry: Path) -> bool:
    """Whether a process that was killed before the folder became a run may have left this entry."""
    return entry.name in ("run.json", "peer.log", _START, FROZEN) or entry.suffix == ".part"


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a state dict; tied weights occur once, under their first name."""
    named = {name: t for name, t in model.state_dict(keep_vars=True).items() if isinstance(t, Tensor)}
    first = {id(tensor): name for name, tensor in reversed(named.items())}
    return {name: tensor.detach() for name, tensor in named.items() if first[id(tensor)] == name}


def _length_until(last: int, metrics: Path) -> int:
    """Bytes of the lines up to a round; a crash may have left anything after them."""
    length = done = 0
    with metrics.open("rb") as lines:
        while done < last and (line := lines.readline()).endswith(b"\n"):
            try:
                done = int(json.loads(line)["round"])
            except (ValueError, TypeError, KeyError) as error:
                raise UserError(f"{metrics} is damaged after round {done}: {error}") from error
            length += len(line) if done <= last else 0
    return length


def _halve(metrics: Path) -> int:
    """Remove every second line, but not the last; returns the length of the file."""
    lines = metrics.read_bytes().splitlines(keepends=True)
    kept = b"".join(lines[::-1][::2][::-1])
    write_bytes(metrics, kept)
    return len(kept)


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return list(value) if isinstance(value, tuple) else value
