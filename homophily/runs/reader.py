"""A run is a folder: resolved config, versions, metrics as they happen, checkpoints, final scores, models."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from torch import Tensor, nn

from homophily.atomic_io import (
    plain,
    read_folder,
    read_json,
    read_metadata,
    read_tensors,
    sync,
    write_folder,
    write_json,
    write_tensors,
    write_text,
    writing,
)
from homophily.config.schema import Config
from homophily.data import sources
from homophily.data.preparation import Preparation
from homophily.errors import UserError
from homophily.federation.layout import Layout
from homophily.models.builder import Network
from homophily.models.copying import copied
from homophily.simulation.configuration import load
from homophily.simulation.evaluation import Scores
from homophily.simulation.rounds import Simulation
from homophily.simulation.setup import Given
from homophily.training.resources import Resolved
from homophily.training.task import Task
from homophily.version import __version__

_ABOUT = ("device", "frozen", "inputs", "layout", "machine", "outputs", "resolved", "versions")
_START = "start.safetensors"
_CHECKPOINT = re.compile(r"round-(\d{6,})")


class RunFolder:
    """The writing side of a run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path | None, name: str) -> RunFolder:
        """A new, empty folder at ``path``, or a free one called ``name`` under runs/."""
        target = path or _free(Path("runs"), name)
        with writing(target):
            target.mkdir(parents=True, exist_ok=True)
            if any(not _left_behind(entry) for entry in target.iterdir()):
                how = f", or continue it with: homophily run --resume {target}" if cls(target).begun else ""
                raise UserError(f"{target} is not empty: name another folder{how}")
        return cls(target)

    @property
    def begun(self) -> bool:
        """Whether a run has begun in it."""
        return (self.path / "config.toml").is_file()

    @property
    def round(self) -> int:
        """From which a run would go on."""
        return max((number for number, _ in _checkpoints(self.path)), default=0)

    def describe(self, config: Config, resolved: Resolved, task: Task, device: torch.device) -> None:
        """Write what the run is, before its first round; the config comes last and makes the folder a run."""
        about = {
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
            "resolved": asdict(resolved),
            **_form(task),
            **({} if config.data.name in sources else {"data": task.data.digest}),
        }
        write_json(self.path / "run.json", about)
        self.write_config(config)

    def keep_start(self, given: Given) -> None:
        """Write down the weights of a model that was given."""
        if given.model is not None:
            write_tensors(self.path / _START, _tensors(given.model))

    def began_with(self, given: Given) -> Given:
        """What is given again, a model with the weights it had when the run began unless it is another network."""
        path = self.path / _START
        if given.model is None or not path.is_file():
            return given
        stored, model = read_tensors(path), copied(given.model)
        if {name: t.shape for name, t in stored.items()} == {name: t.shape for name, t in _tensors(model).items()}:
            model.load_state_dict(stored, strict=False)
        return replace(given, model=model)

    def check(self, config: Config, task: Task, *, data: bool = True) -> None:
        """Refuse to go on with another network than the folder's or, with ``data``, other data of one's own."""
        about = Run(self.path).about
        if any(about[key] != value for key, value in _form(task).items()):
            raise UserError(f"{self.path} is of another network, or of data of another form: it cannot go on with this")
        if data and "data" in about and about["data"] != task.data.digest:
            raise UserError(f"{self.path} began with other data than {config.data.name} holds now: it cannot go on")

    def write_config(self, config: Config) -> None:
        write_text(self.path / "config.toml", tomli_w.dumps(_without_none(config.toml())))

    def append(self, line: dict[str, Any]) -> None:
        """One more line of metrics.jsonl, on disk as soon as the round is over."""
        path = self.path / "metrics.jsonl"
        with writing(path):
            length = path.stat().st_size if path.exists() else 0
            try:
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(plain(line), ensure_ascii=False) + "\n")
            except OSError:
                with suppress(OSError):
                    os.truncate(path, length)  # no half lines
                raise

    def save(self, simulation: Simulation) -> None:
        """A checkpoint; older ones go only once the new one is whole."""
        metrics = self.path / "metrics.jsonl"
        if metrics.exists():
            with writing(metrics):
                sync(metrics)  # a checkpoint never knows of more rounds than the metrics on disk
        target = self.path / "checkpoints" / f"round-{simulation.round:06d}"
        if not target.exists():
            with writing(target):
                target.parent.mkdir(exist_ok=True)
            write_folder(target, simulation.tensors(), simulation.numbers())
        for _, old in _checkpoints(self.path)[:-1]:
            shutil.rmtree(old)

    def restore(self, simulation: Simulation) -> None:
        """Go on from the last checkpoint, or from the start: metrics written after it are cut off."""
        if found := _checkpoints(self.path):
            last = found[-1][1]
            try:
                simulation.restore(*read_folder(last))
            except (KeyError, TypeError, AttributeError, RuntimeError) as error:
                raise UserError(f"{last} is damaged, or of another version: {error}") from error
        metrics = self.path / "metrics.jsonl"
        if metrics.exists():
            with writing(metrics):
                os.truncate(metrics, _length_until(simulation.round, metrics))

    def finish(self, simulation: Simulation, summary: dict[str, Any], scores: Scores) -> None:
        """Final scores, merge counts and models; the summary comes last and marks the run as finished."""
        self.save(simulation)
        with writing(self.path / "summary.json"):
            (self.path / "summary.json").unlink(missing_ok=True)  # of fewer rounds, where the run was extended
        write_tensors(self.path / "merges.safetensors", simulation.exchange.final())
        models = simulation.models()
        task = simulation.problem.task
        kept = {f"kept/{name}": table for name, table in models.kept.items()}
        frozen = {f"frozen/{name}": value for name, value in task.layout.frozen_values(task.module).items()}
        write_tensors(self.path / "models.safetensors", {"rows": models.rows, **kept, **frozen})
        data = task.data
        prepared = data.preparation
        write_tensors(self.path / "inputs.safetensors", prepared.tensors(), {"raw": prepared.raw})
        columns = {
            "mse" if scores.regression else "accuracy": scores.value,
            "loss": scores.loss,
            **scores.extra,
            "models_received": simulation.exchange.traffic.received,
            "diverged_rounds": simulation.sick_rounds,
        }
        table: dict[str, list[Any] | None] = {name: values.tolist() for name, values in columns.items()}
        table["peer"] = None if data.names is None else list(data.names)
        table["cluster"] = None if data.cluster is None else [data.cluster_names[c] for c in data.cluster.tolist()]
        write_json(self.path / "scores.json", table)
        write_json(self.path / "summary.json", summary)


class Run:
    """A run's folder, to be read: ``summary``, ``scores``, ``metrics()``, ``merges()``, ``model(i)``."""

    def __init__(self, path: Path | str, model: nn.Module | None = None) -> None:
        """model: the network, where the run was given one in Python."""
        self.path = Path(path)
        if not (self.path / "config.toml").is_file():
            raise UserError(f"{self.path} is not a run: it has no config.toml")
        self._pattern = model

    @property
    def config(self) -> Config:
        return load(self.path / "config.toml")

    @property
    def about(self) -> dict[str, Any]:
        """Versions, machine, engine, layout."""
        found = read_json(self.path / "run.json")
        missing = set(_ABOUT) - set(found if isinstance(found, dict) else ())
        if missing:
            raise UserError(f"{self.path / 'run.json'} is damaged: it has no {', '.join(sorted(missing))}")
        return found  # type: ignore[no-any-return]

    def began_on(self) -> tuple[str, Resolved]:
        """The device and how it computes."""
        about = self.about
        try:
            return about["device"].partition(":")[0], Resolved(**about["resolved"])
        except (TypeError, AttributeError) as error:
            raise UserError(f"{self.path / 'run.json'} is damaged, or of another version: {error}") from error

    @property
    def finished(self) -> bool:
        """Whether it has come to an end; while it is being extended, its results are still those of that end."""
        return (self.path / "summary.json").is_file()

    @property
    def summary(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        self._need_end()
        return read_json(self.path / "summary.json")  # type: ignore[no-any-return]

    @property
    def scores(self) -> dict[str, Any]:
        """Final scores, a list over peers under each name."""
        self._need_end()
        return read_json(self.path / "scores.json")  # type: ignore[no-any-return]

    def metrics(self) -> list[dict[str, Any]]:
        """One entry a round."""
        path = self.path / "metrics.jsonl"
        *lines, _ = path.read_text(encoding="utf-8").split("\n") if path.exists() else [""]  # the last may be half one
        return [json.loads(line) for line in lines]

    def merges(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """How often peer i merged peer j's model: [N, N]; nobody anybody's where there is a server."""
        return self._dense("pairs", "counts", np.dtype(np.int64))

    def neighbours(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Whom peer i held to be alike at the end: [N, N], 1 for a neighbour, or the method's weights."""
        return self._dense("neighbours", "weights", np.dtype(np.float64))

    def _dense(self, pairs: str, values: str, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        self._need_end()
        stored, peers = read_tensors(self.path / "merges.safetensors"), int(self.config.peers or 0)
        dense = np.zeros(peers * peers, dtype=dtype)
        if pairs in stored:
            dense[stored[pairs].numpy()] = stored[values].numpy()
        return dense.reshape(peers, peers)

    def state_dict(self, peer: int) -> dict[str, Tensor]:
        """A peer's final model under its state-dict names."""
        self._check(peer)
        stored = read_tensors(self.path / "models.safetensors")
        kept = {name: table[peer] for name, table in _below(stored, "kept/").items()}
        layout = Layout.from_json(self.about["layout"])
        return layout.state_dict(stored["rows"][peer], kept, _below(stored, "frozen/"))

    def model(self, peer: int) -> nn.Module:
        """A peer's final model, ready to use (evaluation mode)."""
        about = self.about
        module = Network(self.config, self._pattern, tuple(about["inputs"]), about["outputs"]).common(0)
        module.load_state_dict(self.state_dict(peer))
        return module.eval()

    def prepared(self, peer: int, x: Tensor | np.ndarray[Any, Any]) -> Tensor:
        """Raw samples [n, ...] as a peer's model takes them: scaled, and filled in, as its training samples were."""
        try:
            samples = torch.as_tensor(x)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"x: cannot be made a tensor: {error}") from error
        about = self.about
        shape = about["inputs"]
        if list(samples.shape[1:]) != shape:
            sizes = ", ".join(map(str, ["n", *shape]))
            raise UserError(f"x: must have the shape [{sizes}], not {list(samples.shape)}")
        ready = self._preparation(peer)(peer, samples)
        return ready.to(Layout.from_json(about["layout"]).dtype) if ready.is_floating_point() else ready

    def export(self, peer: int, path: Path | str) -> Path:
        """A peer's final model as a safetensors file with state-dict names; how to prepare inputs in its metadata."""
        inputs = json.dumps(plain(self._preparation(peer).told(peer)))
        write_tensors(Path(path), self.state_dict(peer), {"inputs": inputs})
        return Path(path)

    def _preparation(self, peer: int) -> Preparation:
        self._check(peer)
        path = self.path / "inputs.safetensors"
        return Preparation.read(read_metadata(path).get("raw", "numbers"), read_tensors(path))

    def _check(self, peer: int) -> None:
        peers = len(self.scores["loss"])
        if not isinstance(peer, int | np.integer) or not 0 <= peer < peers:
            raise UserError(f"peer {peer!r}: this run has peers 0 to {peers - 1}")

    def _need_end(self) -> None:
        if not self.finished:
            raise UserError(f"the run in {self.path} has not finished: go on with --resume {self.path}")


def _below(stored: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names have this prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in stored.items() if name.startswith(prefix)}


def _free(parent: Path, name: str) -> Path:
    number = 1
    while (parent / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return parent / (name if number == 1 else f"{name}-{number}")


def _checkpoints(run: Path) -> list[tuple[int, Path]]:
    """Complete checkpoints, oldest first."""
    folder = run / "checkpoints"
    entries = folder.iterdir() if folder.is_dir() else ()
    return sorted((int(m[1]), p) for p in entries if (m := _CHECKPOINT.fullmatch(p.name)))


def _left_behind(entry: Path) -> bool:
    """By a process that was killed before the folder became a run."""
    return entry.name in ("run.json", "peer.log", _START) or entry.suffix == ".part"


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def _form(task: Task) -> dict[str, Any]:
    """What a model takes, puts out and looks like, and what of it everyone has in common."""
    form = {
        "inputs": task.data.inputs,
        "outputs": task.data.outputs,
        "layout": task.layout.to_json(),
        "frozen": task.layout.frozen_hash(task.module),
    }
    return plain(form)  # type: ignore[no-any-return]


def _length_until(last: int, metrics: Path) -> int:
    """Bytes of the lines up to a round; what follows them may be anything that a crash leaves."""
    length = done = 0
    with metrics.open("rb") as lines:
        while done < last and (line := lines.readline()).endswith(b"\n"):
            try:
                done = json.loads(line)["round"]
            except (ValueError, TypeError, KeyError) as error:
                raise UserError(f"{metrics} is damaged after round {done}: {error}") from error
            length += len(line)
    return length


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return list(value) if isinstance(value, tuple) else value


def machine(device: torch.device) -> str:
    """What a device is, in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()}, {os.cpu_count()} cores"
