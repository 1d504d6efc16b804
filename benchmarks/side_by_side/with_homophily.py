"""homophily, through its public API. Each round is one repeat; the last round, which is scored, is left out."""

from __future__ import annotations

import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import homophily
from side_by_side.job import Job, Repeat

NETWORKS: dict[str, dict[str, Any]] = {"cnn": {"name": "cnn"}, "mlp": {"name": "mlp", "hidden": [200, 200]}}
NEVER = 1_000_000


def method(job: Job, rounds: int) -> dict[str, Any]:
    """Return the method of the task. PENS stays in its first stage, in which models are compared."""
    methods: dict[str, dict[str, Any]] = {
        "gossip": {"name": "random", "k": job.merged},
        "pens": {"name": "pens", "l": job.tried, "k": job.kept, "t1": rounds},
        "fedavg": {"name": "fedavg"},
        "training": {"name": "local"},
    }
    return methods[job.task]


class Clock(homophily.Callback):
    """Records the end time of each round."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_round(self, run: Any, metrics: dict[str, Any]) -> None:
        self.ends.append(time.perf_counter())


def main() -> None:
    job = Job.asked()
    x, y = job.data()
    peers = [homophily.PeerData(x[i], y[i], test_x=x[i, :1], test_y=y[i, :1]) for i in range(len(x))]
    rounds = job.warmup + job.repeats + 1
    training = {"lr": job.lr, "momentum": job.momentum, "decay": 1.0, "batch": job.batch, "epochs": job.epochs}
    config = {
        "rounds": rounds, "engine": job.engine, "evaluate": NEVER, "checkpoint": NEVER,
        "model": NETWORKS[job.network], "training": training, "method": method(job, rounds),
    }  # fmt: skip
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        run = homophily.run(
            config,
            data=peers,
            out=Path(folder) / "run",
            device="cpu",
            callbacks=[clock],
        )
        plan = run.about["plan"]
    samples = y.numel() * job.epochs
    repeats = [Repeat(samples, end - began) for began, end in pairwise(clock.ends[job.warmup - 1 : -1])]
    threads = plan["threads"] * plan["workers"]
    job.answer(repeats, ["torch"], f"{plan['engine']}, {threads} thread(s)")


if __name__ == "__main__":
    main()
