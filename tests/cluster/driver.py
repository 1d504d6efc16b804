"""Plays runs one after the other in each of the processes that torchrun starts: FOLDER NAME ..."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import homophily
from homophily.experiments.callbacks import RunHandle
from tests.cluster.configs import config

OWN = "own"  # the folder of a run with a model and data that Python passes


class Reader(homophily.Callback):
    """Reads a model that another rank may have, and ends a run."""

    def on_round(self, run: RunHandle, metrics: dict[str, Any]) -> None:
        metrics["weight"] = float(run.state_dict(6)["1.weight"].double().sum())
        if run.round == 3 and run.config.method.name == "local":
            run.stop()


def main(folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names:
        homophily.run(config(name), out=folder / name, device="cpu", callbacks=[Reader()])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(7, 12, 5))
    peers = [homophily.PeerData(own, (own[:, i % 2] > 0).astype(int)) for i, own in enumerate(x)]
    torch.manual_seed(int(os.environ.get("RANK", "0")))  # each rank draws other weights
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    keys: dict[str, Any] = {"rounds": 3, "engine": "one-by-one", "method": "random", "data": {"test": 4}}
    homophily.run(keys, model=model, data=peers, out=folder / OWN, device="cpu")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
