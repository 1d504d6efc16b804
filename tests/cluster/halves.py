"""Begins runs and leaves them after two rounds, or resumes them: FOLDER begin|resume NAME ..."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import homophily
from tests.cluster.configs import config


def main(folder: Path, what: str, names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names:
        if what == "resume":
            homophily.resume(folder / name)
            continue
        simulation = homophily.Simulation(config(name), out=folder / name, device="cpu")
        simulation.step()
        simulation.step()
        simulation.save()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
