"""A training step of networks that are not a chain of layers: the vectorised engine against a tuned PyTorch loop.

    python benchmarks/any_module.py --device cuda

The networks are small residual networks with GroupNorm and vision transformers with two layers of 64, with batches of
32 images of 3 x 32 x 32 pixels and SGD with momentum. A step is that of all peers. The loop trains a few peers, and its
time is scaled up. All ways of one network are timed in turn, and the table has medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from datetime import date
from itertools import pairwise
from typing import Any

import torch
from engines import FEW, Setup, experiment_of, of_loop
from torch import Tensor, nn

import homophily
from homophily.experiments.runner import chosen_device, machine, torch_settings
from homophily.training.vectorised import COMPILED, Vectorised

NETWORKS: dict[str, dict[str, Any]] = {
    "residual network, 2 blocks": {"name": "any_module:ResidualNetwork", "widths": [16, 32]},
    "residual network, 3 blocks": {"name": "any_module:ResidualNetwork", "widths": [16, 32, 64]},
    "vision transformer, 16 patches": {"name": "kin_transformer:VisionTransformer", "patch": 8},
    "vision transformer, 64 patches": {"name": "kin_transformer:VisionTransformer", "patch": 4},
}
WAYS = {
    "full": ("plain", "recorded", "compiled", "patched"),
    "fast": ("plain", "recorded", "compiled", "patched"),
    "bf16": ("recorded", "compiled", "patched"),
}


class Block(nn.Module):
    """Two convolutions with GroupNorm, and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1, self.norm2 = nn.GroupNorm(4, outputs), nn.GroupNorm(4, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.second(torch.relu(self.norm1(self.first(x)))))
        return torch.relu(y + self.shortcut(x))


class ResidualNetwork(nn.Module):
    """A convolution, a block for each width (all but the first halve the image), a mean over pixels, a linear layer."""

    def __init__(self, inputs: tuple[int, ...], outputs: int, widths: list[int]) -> None:
        super().__init__()
        first = widths[0]
        self.stem = nn.Sequential(nn.Conv2d(inputs[0], first, 3, 1, 1, bias=False), nn.GroupNorm(4, first), nn.ReLU())
        pairs = pairwise([first, *widths])
        self.blocks = nn.Sequential(*(Block(a, b, 2 if number else 1) for number, (a, b) in enumerate(pairs)))
        self.head = nn.Linear(widths[-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return out


def timers(setup: Setup, ways: tuple[str, ...], device: torch.device) -> dict[str, Callable[[], float]]:
    """Return, for the loop and for each way, a function that measures seconds per step of all peers."""
    peers = torch.arange(setup.peers, device=device)
    out = {"tuned loop": of_loop(setup, torch.get_num_threads(), device)}
    for way in ways:
        experiment, config, plan = experiment_of(setup, "vectorised", setup.peers, device)
        engine, models = Vectorised(experiment.task, plan.chunk, way), experiment.start.copy()  # type: ignore[arg-type]

        def once(engine: Any = engine, models: Any = models, config: Any = config, plan: Any = plan) -> float:
            with torch_settings(config, plan, device):
                torch.cuda.synchronize()
                began = time.perf_counter()
                engine.train(models.rows, models.kept, peers, 1)
                torch.cuda.synchronize()
                return (time.perf_counter() - began) / setup.steps

        out[way] = once
    return out


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--peers", type=int, default=100)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--precisions", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--ways", nargs="+", choices=WAYS["full"], default=WAYS["full"])
    residual = [name for name in NETWORKS if name.startswith("residual")]
    parser.add_argument("--compile", nargs="+", choices=list(NETWORKS), default=residual)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(words)
    device = chosen_device(options.device)
    print(f"{date.today()}, {machine(device)}, torch {torch.__version__}, homophily {homophily.__version__}")
    print(f"{options.peers} peers; the loop trains {FEW} of them, and its time is scaled up.\n")
    print("| network | precision | way | ms per step: median (range) | first round, s | peak memory, GiB |")
    print("| --- " * 6 + "|")
    for name in options.networks:
        for precision in options.precisions:
            config = {"model": NETWORKS[name], "precision": precision, "compile": "never"}
            setup = Setup(name, name, (3, 32, 32), 32, 10, config, options.peers)
            possible = [way for way in WAYS[precision] if way not in COMPILED or name in options.compile]
            ways = tuple(way for way in possible if way in options.ways)
            found: dict[str, list[float]] = {}
            first, peak = {}, {}
            made = timers(setup, ways, device)
            for turn in range(options.repeats + 1):
                for way, once in made.items():
                    torch.cuda.reset_peak_memory_stats()
                    began = time.perf_counter()
                    seconds = once()
                    if turn:
                        found.setdefault(way, []).append(1000 * seconds)
                    else:
                        first[way], peak[way] = time.perf_counter() - began, torch.cuda.max_memory_allocated() / 2**30
            for way, times in found.items():
                middle = f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"
                print(f"| {name} | {precision} | {way} | {middle} | {first[way]:.1f} | {peak[way]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
