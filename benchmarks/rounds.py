"""The time of a round by activity, the time of whole runs, and the time saved by executing runs together.

    python benchmarks/rounds.py shares [--peers 100 1000 10000] [--methods random panm dac kin] [--budget 400]
    python benchmarks/rounds.py runs [--runs panm panm-500 dac]
    python benchmarks/rounds.py sweep [--networks mlp cnn]

shares: the 28x28 CNN in batches of 8, 60 steps per round, on random images; the models are scored in every round.
Training and the loss metric's forward passes are timed between synchronisations with the device. With more than 2,000
peers, each has 1,000 contacts, except with kin. Fingerprints are computed and compared before the first round.
runs: start to final scores, run folder included, in a process that has compiled its kernels and read the data files.
sweep: 7 methods with 3 seeds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import torch

import homophily
from homophily.experiments.runner import chosen_device, machine, torch_settings
from homophily.simulation.configuration import make
from homophily.simulation.rounds import OneRun, RunState, play_round
from homophily.simulation.setup import prepare
from homophily.simulation.training_setup import SetupCache
from homophily.simulation.user_objects import UserObjects
from homophily.training.engines import read_chain
from homophily.training.stacked.chain import Chain, Convolution

BATCH, STEPS = 8, 60
COMPARING = "cross_evaluate"
METHODS = ("local", "random", "pens", "panm", "dac", "kin", "oracle")


@dataclass
class Clock:
    """Adds up the seconds of calls, with a synchronisation with the device before and after each."""

    device: torch.device
    seconds: dict[str, float] = field(default_factory=dict)
    work: dict[str, int] = field(default_factory=dict)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def watch(self, thing: Any, name: str, count: Callable[..., int]) -> None:
        """Time every call of a method; count: a function from its arguments to the amount of work."""
        called = getattr(thing, name)

        def timed(*arguments: Any) -> Any:
            self.wait()
            began = time.perf_counter()
            answer = called(*arguments)
            self.wait()
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
            self.work[name] = self.work.get(name, 0) + count(*arguments)
            return answer

        setattr(thing, name, timed)


def operations(chain: Chain) -> tuple[int, int]:
    """Return the floating-point operations per sample of a forward pass and of a training step."""
    each = [
        2 * stage.inputs * stage.outputs * (prod(stage.convolved) if isinstance(stage, Convolution) else 1)
        for stage in chain.stages
    ]
    return sum(each), 3 * sum(each) - each[0]  # the inputs of the first stage need no gradient


def shares(options: argparse.Namespace) -> Iterator[str]:
    yield "| peers | method | ms a round | training | comparing | all else | training, GFLOP/s | comparing, GFLOP/s |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for peers in options.peers:
        cache = SetupCache()  # the data is made once for all methods
        for method in options.methods:
            yield _share(peers, method, options.device, cache)


def _share(peers: int, method: str, device: torch.device, cache: SetupCache) -> str:
    rounds = 5 if peers < 5000 else 2
    chance = torch.Generator().manual_seed(0)
    x, y = torch.randn(BATCH * STEPS, 1, 28, 28, generator=chance), torch.arange(BATCH * STEPS) % 10
    data = [homophily.PeerData(x, y, test_x=x[:100], test_y=y[:100])] * peers
    training = {"optimizer": "adam", "lr": 1e-4, "batch": BATCH, "epochs": 1}
    bounded = peers > 2000 and method != "kin"  # with limited contacts, each peer of kin would decide separately
    keys = {
        "rounds": 2 * rounds + 2,
        "model": {"name": "cnn"},
        "training": training,
        "method": {"name": method, **({"t1": 1000} if method == "panm" else {})},  # it compares in every round
        **({"contacts": 1000} if bounded else {}),
    }
    experiment, config, plan = prepare(make(keys), UserObjects(data=data), device, cache=cache)
    chain = read_chain(experiment.task.module, experiment.task.layout, experiment.task.loss, experiment.task.data)
    assert isinstance(chain, Chain)
    forward, step = operations(chain)
    clock = Clock(device)
    with torch_settings(config, plan, device):
        run = RunState(experiment)
        clock.watch(run.exchange, "before_training", lambda federation, round, active: 0)
        _round(run, clock)
        first = clock.seconds["before_training"]
        _round(run, clock)
        plain = statistics.median(_round(run, clock) for _ in range(rounds))
        samples = BATCH * STEPS
        clock.watch(experiment.engine, "train", lambda rows, kept, those, round: len(those) * samples * step)
        clock.watch(experiment.engine, COMPARING, lambda rows, kept, model, data: len(model) * samples * forward)
        watched = [_round(run, clock) for _ in range(rounds)]
    took = {name: clock.seconds.get(name, 0.0) / sum(watched) for name in ("train", COMPARING)}
    rate = [f"{clock.work[n] / clock.seconds[n] / 1e9:,.0f}" if n in clock.work else "-" for n in ("train", COMPARING)]
    took["rest"] = 1.0 - sum(took.values())
    if method == "kin":
        method += f" (fingerprints: {first:.1f} s)"
    cells = [f"{peers:,}", method, f"{1000 * plain:.1f}", *(f"{share:.0%}" for share in took.values()), *rate]
    return f"| {' | '.join(cells)} |"


def _round(run: RunState, clock: Clock) -> float:
    clock.wait()
    began = time.perf_counter()
    play_round({0: run}, OneRun(run))
    clock.wait()
    return time.perf_counter() - began


MLP = {"name": "mlp", "hidden": [200, 200]}
PANM: dict[str, Any] = {"rounds": 300, "model": MLP, "method": {"name": "panm", "metric": "loss"}}
RUNS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "panm": ("PANM (loss), MLP, batch 128, 3 epochs, 300 rounds, as in its Table 2", 200, {
        **PANM, "training": {"batch": 128, "lr": 0.08, "momentum": 0.9, "decay": 0.99},
    }),
    "panm-500": ("the same with more images, without momentum", 500, {
        **PANM, "training": {"batch": 128, "momentum": 0.0},
    }),
    "dac": ("DAC, 28x28 CNN, Adam, batch 8, 3 epochs, 200 rounds", 500, {
        "rounds": 200, "model": {"name": "cnn"}, "method": {"name": "dac"},
        "training": {"batch": 8, "optimizer": "adam", "lr": 3e-4},
    }),
}  # fmt: skip


def runs(options: argparse.Namespace) -> Iterator[str]:
    yield "| run (Fashion-MNIST, 100 peers) | images a peer | precision | s: median (range) | in rounds | accuracy |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for run, precision in product(options.runs, ("full", "fast")):
        name, images, keys = RUNS[run]
        data = {"name": "fashion-mnist", "train": images, "test": 100}
        config = {**keys, "peers": 100, "evaluate": 10, "precision": precision, "data": data}
        _timed({**config, "rounds": 2}, options.device)  # compiles
        times, inside, summary = [], [], {}
        for _ in range(options.repeats):
            seconds, summary = _timed(config, options.device)
            times.append(seconds)
            inside.append(summary["seconds"])
        spread = f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"
        inner = statistics.median(inside)
        yield f"| {name} | {images} | {precision} | {spread} | {inner:.2f} | {summary['accuracy']:.1f} |"


def _timed(config: dict[str, Any], device: torch.device) -> tuple[float, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run = homophily.run(config, device=device.type, out=Path(folder) / "run")
        return time.perf_counter() - began, run.summary


SWEEPS: dict[str, dict[str, Any]] = {
    "mlp": {"rounds": 60, "data": {"name": "digits", "train": 10, "test": 5}},
    "cnn": {
        "rounds": 10, "model": {"name": "cnn"}, "data": {"name": "fashion-mnist", "train": 500, "test": 100},
        "training": {"optimizer": "adam", "lr": 3e-4, "batch": 8},
    },
}  # fmt: skip


def sweep(options: argparse.Namespace) -> Iterator[str]:
    yield f"| network | {len(METHODS)} methods with 3 seeds in turn, s | side by side, s | of the time |"
    yield "| --- | --- | --- | --- |"
    for network in options.networks:
        config = {"peers": 100, "checkpoint": 1000, **SWEEPS[network]}
        in_turn, together = [], []
        for turn in range(options.repeats + 1):  # the first compiles
            seconds = [
                _timed({**config, "seed": seed, "method": {"name": method}}, options.device)[0]
                for method in METHODS
                for seed in range(3)
            ]
            with tempfile.TemporaryDirectory() as folder:
                began = time.perf_counter()
                every = {**config, "methods": ",".join(METHODS), "seeds": "0,1,2"}
                homophily.compare(every, device=options.device.type, out=Path(folder) / "runs")
                if turn:
                    in_turn.append(sum(seconds))
                    together.append(time.perf_counter() - began)
        a, b = statistics.median(in_turn), statistics.median(together)
        yield f"| {network} | {a:.1f} | {b:.1f} | {b / a:.0%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["shares", "runs", "sweep"])
    parser.add_argument("--peers", nargs="+", type=int, default=[100, 1000, 10000])
    parser.add_argument("--methods", nargs="+", default=["random", "panm", "dac", "kin"])
    parser.add_argument("--runs", nargs="+", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--networks", nargs="+", choices=list(SWEEPS), default=list(SWEEPS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", type=chosen_device, default="auto")
    parser.add_argument("--budget", type=float, default=float("inf"), help="stop after this many seconds")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    began = time.perf_counter()
    lines = [
        f"{date.today()}, {machine(options.device)}, torch {torch.__version__}, homophily {homophily.__version__}",
        "",
    ]
    print(lines[0], flush=True)
    for line in {"shares": shares, "runs": runs, "sweep": sweep}[options.what](options):
        lines.append(line)
        print(line, flush=True)
        if options.out:
            options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
        if time.perf_counter() - began > options.budget:
            print("stopped: the budget is spent; rows after this one are missing")
            break


if __name__ == "__main__":
    main()
