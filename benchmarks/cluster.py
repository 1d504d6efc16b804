"""Runs on ranks of torchrun: the cost of one rank, time, memory and bytes of several, and what the plan says of them.

    python benchmarks/cluster.py [--device cpu] [--runs 50000x2,100000x1,100000x2] [--methods random,kin,panm] \\
        [--pairs 3] [--out results/cluster.md]

`--runs` are numbers of peers, times ranks.

An MLP with 16 hidden units, data set `synthetic` with 20 training and 20 test samples per peer, 100 contacts. With
`--device cuda`, several ranks share the GPU over gloo, and the plan is left out. `--rounds` counts for the cost of one
rank only.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import homophily
from homophily.atomic_io import read_tensors
from homophily.experiments.planning import FETCH, FINGERPRINTS, MEASURED_ROUNDS, measured_parts, plan
from homophily.simulation.configuration import make

SEED, LINK = 0, "12Gbit"  # what gloo reaches between two processes of one machine
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
LIMIT = 1800  # seconds of one run
NOTES = """
Seconds are of the slowest rank, of a round after the first (mean of two). On a CPU they are seconds of processor time,
which other processes on the machine do not change; *wall* is the time that passed.

- *decide* is a rank's decisions and its bookkeeping. In the first round `kin` compares fingerprints in it;
  *fingerprints* computes them before.
- *fetch* is getting the models of other ranks.
- *GiB* is main memory that the run, with its final results, adds to each rank.
- *MB sent* is what a rank sends to others in a round. The formula counts the rows of models that peers ask for at
  random, each once per rank. `kin` asks peers of its own family, and the clusters of `synthetic` are consecutive
  peers, so that here no model of `kin` travels between two ranks.
- *MB by peers* is what peers send to each other: models times bytes of a model, which the script checks.
- *difference* is the largest of all parameters from the models of the first run of as many peers.
- *plan* is what `homophily plan` says, with a link of """


def config(peers: int, method: str, rounds: int) -> dict[str, Any]:
    return {
        "peers": peers, "rounds": rounds, "contacts": 100, "method": method, "seed": SEED,
        "data": {"name": "synthetic", "train": 20, "test": 20}, "model": {"name": "mlp", "hidden": [16]},
        "training": {"epochs": 1},
    }  # fmt: skip


def one(peers: int, method: str, rounds: int, device: str, folder: Path) -> None:
    """Play a run in this process, or in this rank, and measure its parts; rounds: play so many, and measure nothing."""
    torch.set_num_threads(1)
    before = _peak()
    if rounds:
        homophily.run(config(peers, method, rounds), out=folder / "run", device=device)
        return
    asked = make(config(peers, method, MEASURED_ROUNDS))
    found = measured_parts(asked, device, folder / "run", results=True, now=_clock(device))
    numbers = {
        "build": found.build, "first": dict(found.first), "seconds": dict(found.seconds), "gib": _peak() - before,
        "sent": found.rank_bytes, "bytes": found.bytes_per_round,
        "formula": peers * found.models_in_last_round * found.model_bytes,
    }  # fmt: skip
    (folder / f"rank-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(numbers))


def _clock(device: str) -> Callable[[], float]:
    return time.process_time if device == "cpu" else time.perf_counter


def _peak() -> float:
    """The most main memory that this process has had, in GiB."""
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 2**20


def played(ranks: int, device: str, peers: int, method: str, rounds: int, folder: Path) -> torch.Tensor:
    """Play a run on ranks of torchrun (0: without torchrun); returns its models."""
    words = [__file__, "--one", f"{peers},{method}", "--folder", str(folder), "--device", device]
    start = [*TORCHRUN, str(ranks)] if ranks else [sys.executable]
    command = [*start, *words, "--rounds", str(rounds)]
    threads = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=threads, timeout=LIMIT)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return read_tensors(folder / "run" / "models.safetensors")["rows"]


def cost_of_one_rank(options: argparse.Namespace, peers: int, method: str, say: Any) -> None:
    runs = []
    for _ in range(options.pairs):
        pair = []
        for ranks in (0, 1):
            with tempfile.TemporaryDirectory() as name:
                models = played(ranks, options.device, peers, method, options.rounds, Path(name))
                lines = [json.loads(line) for line in (Path(name) / "run" / "metrics.jsonl").read_text().splitlines()]
            pair.append((statistics.median(b["seconds"] - a["seconds"] for a, b in pairwise(lines)), models))
        runs.append(pair)
    ratios = [ranked / alone for (alone, _), (ranked, _) in runs]
    same = all(torch.equal(alone, ranked) for (_, alone), (_, ranked) in runs)
    say("## One rank under torchrun against no torchrun\n")
    say(f"`{method}`, {peers:,} peers, median of {options.rounds - 1} rounds, {options.pairs} pairs of runs in turn:")
    say(f"ratios {', '.join(f'{ratio:.3f}' for ratio in ratios)}, median {statistics.median(ratios):.3f}.")
    say(f"The models are {'the same bits' if same else 'not the same bits'}.\n")


def several_ranks(options: argparse.Namespace, method: str, say: Any) -> None:
    """A row of the table for each run."""
    first: dict[int, torch.Tensor] = {}
    for peers, ranks in _runs(options):
        with tempfile.TemporaryDirectory() as name:
            models = played(ranks, options.device, peers, method, 0, Path(name))
            parts = [json.loads(file.read_text()) for file in sorted(Path(name).glob("rank-*.json"))]
            lines = [json.loads(line) for line in (Path(name) / "run" / "metrics.jsonl").read_text().splitlines()]
        wall = (lines[-1]["seconds"] - lines[0]["seconds"]) / (len(lines) - 1)
        difference = float((models - first.setdefault(peers, models)).abs().max())
        for part in parts:
            assert abs(part["bytes"] - part["formula"]) < 1e-6 * part["formula"], "bytes differ from the formula"
        seconds = {part: max(one["seconds"][part] for one in parts) for part in parts[0]["seconds"]}
        total = max(sum(one["seconds"].values()) for one in parts)
        opening = {part: max(one["first"][part] for one in parts) for part in ("decide", FINGERPRINTS)}
        planned = ["-", "-", "-"]
        if options.device == "cpu":
            asked = make(config(peers, method, MEASURED_ROUNDS))
            found = plan(asked, ranks, LINK, options.device, _clock(options.device))
            memory, received = found.memory / 2**30, found.network_bytes_per_rank / 1e6
            planned = [f"{found.seconds:.2f}", f"{memory:.2f}", f"{received:,.0f}"]
        cells = [
            method, f"{peers:,}", str(ranks), f"{opening[FINGERPRINTS]:.1f}", f"{opening['decide']:.2f}",
            f"{seconds['decide']:.2f}", f"{seconds[FETCH]:.2f}", f"{total:.2f}", planned[0], f"{wall:.1f}",
            ", ".join(f"{part['gib']:.2f}" for part in parts), planned[1],
            ", ".join(f"{part['sent'] / 1e6:,.0f}" for part in parts), planned[2],
            f"{parts[0]['bytes'] / 1e6:,.1f}", f"{difference:.1e}",
        ]  # fmt: skip
        say(f"| {' | '.join(cells)} |")


def _runs(options: argparse.Namespace) -> list[tuple[int, int]]:
    """Peers and ranks of each run."""
    pairs = (run.split("x") for run in options.runs.split(","))
    return [(int(peers), int(ranks)) for peers, ranks in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--runs", default="50000x2,100000x1,100000x2", help="numbers of peers, times ranks")
    parser.add_argument("--methods", default="random,kin,panm")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=3, help="runs with and without torchrun, one after the other")
    parser.add_argument("--out", type=Path, help="the file to write; left out: only print")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        count, method = options.one.split(",")
        one(int(count), method, options.rounds, options.device, options.folder)
        return
    lines: list[str] = []

    def say(line: str) -> None:
        print(line, flush=True)
        lines.append(line)
        if options.out is not None:
            options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")

    torch.set_num_threads(1)
    methods = options.methods.split(",")
    hardware = torch.cuda.get_device_name() if options.device == "cuda" else f"{platform.machine()} CPU"
    say("# Ranks of torchrun\n")
    say(f"{date.today()}, `python {' '.join(sys.argv)}`, torch {torch.__version__}, {hardware},")
    say(f"{os.cpu_count()} cores, 1 thread per rank, seed {SEED}, load {os.getloadavg()[0]:.1f} at the start.\n")
    say("## Time, memory and bytes")
    say(f"{NOTES}{LINK}.\n")
    names = ["fingerprints", "first decide", "decide", "fetch", "round", "plan", "wall", "GiB of each rank", "plan GiB"]
    names += ["MB sent by each rank", "formula MB", "MB by peers", "difference"]
    say(f"| method | peers | ranks | {' | '.join(names)} |")
    say(f"| --- {'| ---: ' * (len(names) + 2)}|")
    for method in methods:
        several_ranks(options, method, say)
    say("")
    if options.pairs:
        cost_of_one_rank(options, _runs(options)[0][0], methods[0], say)


if __name__ == "__main__":
    main()
