"""Training speed of the package's engines and of a tuned plain loop: ms for one training step of all peers.

    python benchmarks/engines.py [--device cuda] [--repeats 5] [--rows cnn mlp] [--threads 2] [--out results/engines.md]

The package creates the engines as for a run; they train whole rounds of local steps on random inputs. The loop trains
one peer after the other on the same batches, prepared on the same device, with a fused optimiser, with parameters that
are views of the peer's row, and without synchronising before the end. Loops over peers (this one and the engine
one-by-one) train a few peers; their time is extrapolated to all. On a CPU the loop uses one thread or all, whichever
is faster. Repeats are interleaved: every engine once, the loop once, and so on; the first pass is not counted.
"""

from __future__ import annotations

import argparse
import copy
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

import homophily
from homophily.config.schema import Config
from homophily.errors import UserError
from homophily.experiments.runner import chosen_device, machine, torch_settings
from homophily.simulation.configuration import make
from homophily.simulation.rounds import Experiment
from homophily.simulation.setup import prepare
from homophily.simulation.user_objects import UserObjects
from homophily.training.resources import threads
from homophily.training.schedule import shuffled


class TanhMLP(nn.Module):
    """An MLP that the stacked engine cannot train."""

    def __init__(self, inputs: tuple[int, ...], outputs: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs[0], hidden), nn.Tanh(), nn.Linear(hidden, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.mul(self.layers(x), 1.0)


FEW = 4  # peers that a loop over peers trains
PLAIN = "one-by-one"
HEAD = (
    "| setup | engine | ms per step of all peers: median (range) | speed-up over the loop | samples/s "
    "| peak memory, GiB |"
)


@dataclass(frozen=True)
class Setup:
    """The federation of one table row. config: keys that override the defaults."""

    key: str
    name: str
    inputs: tuple[int, ...]
    batch: int
    steps: int  # per timed round
    config: dict[str, Any] = field(default_factory=dict)
    peers: int = 100
    engines: tuple[str, ...] | None = None  # None: all engines
    gpu: bool = False  # measured on a GPU only
    cpu_peers: int = 100  # fewer if a CPU would take minutes
    cpu_steps: int = 4

    def on(self, device: torch.device) -> int:
        return self.peers if device.type == "cuda" else self.cpu_peers

    def steps_on(self, device: torch.device) -> int:
        """Return the steps per round: many on a GPU, so that planning takes as small a share as in a real run."""
        return self.steps if device.type == "cuda" else min(self.steps, self.cpu_steps)


CNN: dict[str, Any] = {"model": {"name": "cnn"}, "training": {"optimizer": "adam", "lr": 0.001}}
SGD: dict[str, Any] = {"training": {"momentum": 0.0}}
MLP: dict[str, Any] = {"model": {"name": "mlp", "hidden": [200, 200]}, **SGD}
CIFAR: dict[str, Any] = {"model": {"name": "cifar-cnn"}, "precision": "fast", **SGD}
VIT, RESIDUAL = "kin_transformer:VisionTransformer", "any_module:ResidualNetwork"
ZOO = tuple(
    Setup(f"zoo-{key}", name, inputs, batch, 4, {"model": model}, 100, ("auto",), cpu_peers=peers)
    for key, name, inputs, batch, peers, model in (
        ("linear", "linear, 64 inputs, batch 8", (64,), 8, 100, {"name": "linear"}),
        ("tanh", "MLP 64-32-10 with tanh, batch 8", (64,), 8, 100, {"name": "engines:TanhMLP", "hidden": 32}),
        (
            "tanh-wide",
            "MLP 784-200-10 with tanh, batch 32",
            (784,),
            32,
            100,
            {"name": "engines:TanhMLP", "hidden": 200},
        ),
        ("vit-digits", "transformer, 4 patches of 8x8 digits, batch 8", (1, 8, 8), 8, 40, {"name": VIT, "patch": 4}),
        ("vit", "transformer, 16 patches of 32x32 images, batch 32", (3, 32, 32), 32, 8, {"name": VIT, "patch": 8}),
        (
            "residual-digits",
            "residual network, 8x8 digits, batch 8",
            (1, 8, 8),
            8,
            40,
            {"name": RESIDUAL, "widths": [8]},
        ),
        (
            "residual",
            "residual network, 32x32 images, batch 32",
            (3, 32, 32),
            32,
            8,
            {"name": RESIDUAL, "widths": [16, 32]},
        ),
        ("mobilenet", "MobileNetV2, 32x32 images, batch 8", (3, 32, 32), 8, 4, {"name": "mobilenet-v2"}),
        ("resnet", "ResNet-18, 32x32 images, batch 8", (3, 32, 32), 8, 4, {"name": "resnet-18"}),
    )
)
SETUPS = (
    Setup("cnn", "28x28 CNN, batch 8, Adam", (1, 28, 28), 8, 60, CNN),
    Setup("cnn-fast", 'the same, precision "fast"', (1, 28, 28), 8, 60, {**CNN, "precision": "fast"}, gpu=True),
    Setup("cifar", '32x32 CNN, batch 128, SGD, "fast"', (3, 32, 32), 128, 4, CIFAR, cpu_peers=4),
    Setup("mlp", "MLP 784-200-200-10, batch 128, SGD", (784,), 128, 40, MLP),
    Setup("many", "28x28 CNN, batch 8, Adam", (1, 28, 28), 8, 20, CNN, 10_000, ("auto",), gpu=True),
    *ZOO,
)


def experiment_of(setup: Setup, engine: str, peers: int, device: torch.device) -> tuple[Experiment, Config, Any]:
    """Prepare a run with this engine as the package does."""
    chance = torch.Generator().manual_seed(0)
    samples = setup.batch * setup.steps_on(device)
    x = torch.randn(samples, *setup.inputs, generator=chance)
    y = torch.randint(10, (samples,), generator=chance)
    y[0] = 9  # ten classes, whatever was drawn
    data = [homophily.PeerData(x, y, test_x=x[:1], test_y=y[:1])] * peers
    training = {"batch": setup.batch, "epochs": 1, **setup.config.get("training", {})}
    config = make({**setup.config, "engine": engine, "training": training, "method": "fedavg"})
    return prepare(config, UserObjects(data=data), device)


def of_engine(setup: Setup, engine: str, device: torch.device) -> tuple[str, Callable[[], float]]:
    """Return the engine's name, and a function that trains a round and returns the seconds per step of all peers."""
    peers = setup.on(device)
    experiment, config, plan = experiment_of(setup, engine, peers, device)
    some = torch.arange(FEW if plan.engine == PLAIN else peers, device=device)
    models = experiment.start.copy()

    def once() -> float:
        with torch_settings(config, plan, device):
            seconds = _timed(lambda: experiment.engine.train(models.rows, models.kept, some, 1), device)
        return seconds / setup.steps_on(device) * peers / len(some)

    busy = plan.workers * plan.threads
    return f"{plan.engine}, {busy} thread(s)" if device.type == "cpu" else plan.engine, once


def of_loop(setup: Setup, count: int, device: torch.device, ready: bool = True) -> Callable[[], float]:
    """Return a function that times the plain loop in the same way, with ``count`` CPU threads.

    ready: its batches are made before it is timed; else it draws an order and makes its batches, as engines do.
    """
    experiment, config, plan = experiment_of(setup, PLAIN, FEW, device)
    task, rows = experiment.task, experiment.start.rows.clone()
    module = copy.deepcopy(task.module).train()
    parameters = list(module.parameters())
    make_optimiser = torch.optim.Adam if task.settings.optimizer == "adam" else torch.optim.SGD
    keys: dict[str, Any] = {} if task.settings.optimizer == "adam" else {"momentum": task.settings.momentum}
    optimiser = make_optimiser(parameters, task.settings.lr, fused=True, **keys)
    columns = [column for column in task.layout.columns if column.parameter]
    order = shuffled(task.seed, task.ids, task.data.train.count, setup.batch * setup.steps_on(device), 1, 0)
    batches = [[task.batch(task.data.train.start[i] + b) for b in order[i].split(setup.batch)] for i in range(FEW)]
    x, y = task.data.train.x, task.data.train.y
    first = task.data.train.start.tolist()

    def drawn(peer: int) -> Iterator[tuple[Tensor, Tensor]]:
        for some in (first[peer] + torch.randperm(order.shape[1], device=device)).split(setup.batch):
            yield x.index_select(0, some), y.index_select(0, some)

    def train() -> None:
        for peer, row in enumerate(rows):
            for parameter, column in zip(parameters, columns, strict=True):
                parameter.data = row[column.start : column.stop].view(column.shape)
            optimiser.state.clear()  # same as a new optimiser every round
            for inputs, targets in batches[peer] if ready else drawn(peer):
                optimiser.zero_grad(set_to_none=True)
                task.loss(module(inputs), targets).mean().backward()
                optimiser.step()

    def once() -> float:
        with torch_settings(config, plan, device), threads(count):
            return _timed(train, device) / setup.steps_on(device) * setup.on(device) / FEW

    return once


def _timed(work: Callable[[], None], device: torch.device) -> float:
    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    wait()
    began = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - began


def table(setup: Setup, engines: Sequence[str], repeats: int, device: torch.device) -> Iterator[str]:
    """Yield a row for the loop and for each engine; for an engine that cannot train the network, the reason."""
    peers, cuda = setup.on(device), device.type == "cuda"
    what = f"{setup.name}, {peers:,} peers"
    timers, failed = {}, {}
    for engine in engines:
        try:
            name, once = of_engine(setup, engine, device)
        except UserError as error:
            failed[engine] = str(error)
        else:
            timers[name] = once
    for count in (1,) if cuda else sorted({1, torch.get_num_threads()}):
        timers["plain loop" if cuda else f"plain loop, {count} thread(s)"] = of_loop(setup, count, device)
    found: dict[str, list[float]] = {name: [] for name in timers}
    peak: dict[str, float] = {}
    for turn in range(repeats + 1):
        for name, once in timers.items():
            if cuda:
                torch.cuda.reset_peak_memory_stats()
            seconds = once()
            if turn:
                found[name].append(1000 * seconds)
            if cuda:
                peak[name] = torch.cuda.max_memory_allocated() / 2**30
    loops = {name: statistics.median(times) for name, times in found.items() if name.startswith("plain loop")}
    best = min(loops, key=loops.__getitem__)
    for name, times in found.items():
        if name in loops and name != best:
            continue
        ms = statistics.median(times)
        cells = [
            what,
            name,
            f"{ms:.2f} ({min(times):.2f} to {max(times):.2f})",
            f"{loops[best] / ms:.1f}×",
            f"{1000 * peers * setup.batch / ms:,.0f}",
            f"{peak[name]:.1f}" if cuda else "-",
        ]
        yield f"| {' | '.join(cells)} |"
    for engine, reason in failed.items():
        yield f"| {what} | {engine} | {reason} | - | - | - |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", nargs="+", choices=[s.key for s in SETUPS], default=[s.key for s in SETUPS])
    parser.add_argument("--engines", nargs="+", help="default: all engines")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="maximum number of CPU threads")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = chosen_device(options.device)
    known = [name for name in get_args(Config.model_fields["engine"].annotation) if name != "auto"]
    lines = [
        "# Engines",
        "",
        f"{date.today()}, {machine(device)}, torch {torch.__version__}, homophily {homophily.__version__}: "
        f"`{shlex.join(['python', 'benchmarks/engines.py', *sys.argv[1:]])}`",
        "",
        f"Median of {options.repeats}. The loop and the engine one-by-one trained {FEW} peers; their time is",
        "multiplied up to all. Peak memory includes what is held ready for the other engines.",
        "",
        HEAD,
        "| --- | --- | --- | --- | --- | --- |",
    ]
    print("\n".join(lines), flush=True)
    for setup in SETUPS:
        there = device.type == "cuda" or not setup.gpu
        if setup.key in options.rows and there and set(setup.config) <= set(Config.model_fields):
            for line in table(setup, setup.engines or options.engines or known, options.repeats, device):
                lines.append(line)
                print(line, flush=True)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
