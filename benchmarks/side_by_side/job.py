"""The input and the result of a measurement: two small JSON files, which any environment can read."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Job:
    """One measurement: network, task, data, settings, and the number of timed rounds."""

    network: str  # a name from networks.py
    task: str  # "gossip", "pens", "fedavg" or "training" (no exchange)
    shares: str  # .npz: x [peers, samples, 1, 28, 28] float32, y [peers, samples] int64
    result: str  # path of the result file
    engine: str = "auto"  # homophily's
    threads: int = 1  # torch threads of each process
    processes: int = 1
    batch: int = 8
    epochs: int = 1  # local epochs per round
    lr: float = 0.01
    momentum: float = 0.9
    merged: int = 1  # gossip: models merged per round
    tried: int = 10  # PENS: models tried for each merge
    kept: int = 4  # PENS: models merged
    warmup: int = 1  # rounds that are not timed
    repeats: int = 3

    @classmethod
    def asked(cls) -> Job:
        """Return the job whose file the command line names."""
        return cls(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))

    def data(self) -> tuple[Tensor, Tensor]:
        """Return all peers' samples: x [peers, samples, ...], y [peers, samples]."""
        with np.load(self.shares, allow_pickle=False) as shares:
            return torch.from_numpy(shares["x"]), torch.from_numpy(shares["y"])

    def answer(self, repeats: list[Repeat], packages: list[str], settings: str = "") -> None:
        """Write the result. settings: a description of what the framework chose itself."""
        found = {name: version(name) for name in packages}
        text = json.dumps({"repeats": [asdict(r) for r in repeats], "versions": found, "settings": settings})
        Path(self.result).write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class Repeat:
    """One timed round (or several)."""

    samples: int  # trained on, by all peers together
    seconds: float
    training: float | None = None  # seconds of it spent in training, if known


@dataclass
class Answer:
    """The result of a job: repeats, or the reason why there are none."""

    repeats: list[Repeat] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    settings: str = ""
    failure: str = ""

    @classmethod
    def read(cls, path: Path) -> Answer:
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls([Repeat(**r) for r in content["repeats"]], content["versions"], content["settings"])
