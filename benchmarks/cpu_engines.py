"""The engine that a CPU chooses (engine = "auto") against a tuned plain loop, for networks of many forms.

    python benchmarks/cpu_engines.py [--threads 2] [--repeats 7] [--networks linear resnet] [--out FILE]
    python benchmarks/cpu_engines.py --threads 1 --clock processor [--ready-batches]

Both are measured in turn: the engine, the loop with one thread, the loop with all threads, and again. A ratio compares
two measurements of one turn, so that other work on the machine, which changes slowly, hits both alike. The loop is the
faster of one and all threads, by their medians. Both draw the order of the samples and make their batches; with
--ready-batches those of the loop are made before it is timed. The networks are those of benchmarks/engines.py and
bundled ones. A round has 16 steps.

On a machine with other work, use one thread and the clock "processor": the time that a processor spends on the process.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path

import torch
from engines import ZOO, Setup, of_engine, of_loop

import homophily
from homophily.experiments.runner import machine

CPU = torch.device("cpu")
CHAINS = tuple(
    Setup(f"zoo-{name}", f"bundled {name}, batch {batch}", inputs, batch, 4, {"model": {"name": name}}, cpu_peers=peers)
    for name, inputs, batch, peers in (
        ("mlp", (1, 8, 8), 8, 100),
        ("cnn", (1, 14, 14), 8, 40),
        ("dac-cnn", (3, 32, 32), 8, 8),
        ("cifar-cnn", (3, 32, 32), 8, 8),
    )
)
STEPS = 16  # per round: those of a peer with 160 samples in one epoch of batches of 10
NETWORKS = {s.key.removeprefix("zoo-"): replace(s, steps=STEPS, cpu_steps=STEPS) for s in (*CHAINS, *ZOO)}


def timed(once: Callable[[], float], clock: str) -> float:
    """Return the seconds per step that ``once`` measures; "processor": the share of them on a processor."""
    began, busy = time.perf_counter(), time.process_time()
    seconds = once()
    if clock == "wall":
        return seconds
    return seconds * (time.process_time() - busy) / (time.perf_counter() - began)


def row(setup: Setup, repeats: int, clock: str, ready: bool) -> tuple[str, float]:
    """Return the row of a network, and the median of its ratios."""
    engine, chosen = of_engine(setup, "auto", CPU)
    loops = {count: of_loop(setup, count, CPU, ready) for count in sorted({1, torch.get_num_threads()})}
    mine: list[float] = []
    others: dict[int, list[float]] = {count: [] for count in loops}
    for turn in range(repeats + 1):
        seconds, each = timed(chosen, clock), {count: timed(loop, clock) for count, loop in loops.items()}
        if turn:  # the first is not counted
            mine.append(seconds)
            for count, loop_seconds in each.items():
                others[count].append(loop_seconds)
    best = min(others, key=lambda count: statistics.median(others[count]))
    ratios = [loop / own for loop, own in zip(others[best], mine, strict=True)]
    middle = statistics.median(ratios)
    cells = [
        f"{setup.name}, {setup.cpu_peers} peers",
        engine,
        f"{1000 * statistics.median(mine):.1f}",
        f"{1000 * statistics.median(others[best]):.1f}, {best} thread(s)",
        f"{middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
    ]
    return f"| {' | '.join(cells)} |", middle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="maximum number of CPU threads")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall")
    parser.add_argument("--ready-batches", action="store_true", help="the loop does not make its batches")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.clock == "processor" and options.threads != 1:
        parser.error("--clock processor adds up the time of all threads; it needs --threads 1")
    torch.set_num_threads(options.threads)
    command = shlex.join(["python", "benchmarks/cpu_engines.py", *sys.argv[1:]])
    lines = [
        f"{date.today()}, {machine(CPU)}, torch {torch.__version__}, homophily {homophily.__version__}: `{command}`",
        "",
        "| network | chosen by `auto` | ms per step of all peers | loop, ms | loop / engine: median (range) |",
        "| --- | --- | --- | --- | --- |",
    ]
    print("\n".join(lines), flush=True)
    slower = []
    for name in options.networks:
        line, middle = row(NETWORKS[name], options.repeats, options.clock, options.ready_batches)
        lines.append(line)
        slower += [name] if middle < 1 else []
        print(line, flush=True)
    lines += ["", f"Slower than the loop: {', '.join(slower) or 'none'}."]
    print(lines[-1])
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
