"""Flower: FedAvg in its simulation, clients in Ray actors with one core each."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from flwr.app import ArrayRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from side_by_side.flower_client import client
from side_by_side.job import Job, Repeat
from side_by_side.networks import network


class Timed(FedAvg):  # type: ignore[misc]
    """Flower's FedAvg, which also records the start time and the samples of each round."""

    def __init__(self) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.begins: list[float] = []
        self.samples: list[int] = []

    def configure_train(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        self.begins.append(time.perf_counter())
        return super().configure_train(*args, **kwargs)  # type: ignore[no-any-return]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[Any, Any]:
        replies = list(replies)
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(f"a client failed: {reply.error.reason}")
        self.samples.append(sum(int(reply.content["metrics"]["num-examples"]) for reply in replies))
        return super().aggregate_train(server_round, replies)  # type: ignore[no-any-return]


def main() -> None:
    job = Job.asked()
    strategy, app = Timed(), ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def serve(grid: Grid, context: Context) -> None:
        start = ArrayRecord(network(job.network).state_dict())
        strategy.start(
            grid, start, num_rounds=job.warmup + job.repeats + 1
        )  # the end of the last round is not recorded

    config = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": job.processes}}
    run_simulation(app, client(job), len(job.data()[0]), backend_config=config)
    seconds = [end - began for began, end in pairwise(strategy.begins)]
    repeats = [Repeat(n, s) for n, s in zip(strategy.samples, seconds, strict=False)][job.warmup :]
    job.answer(repeats, ["flwr", "ray", "torch"])


if __name__ == "__main__":
    main()
