"""Runs on ranks of torchrun: the cost of one rank, whether two agree with one, bytes, and memory of each rank.

    python benchmarks/cluster.py [--device cpu] [--peers 2000,8000] [--ranks 1,2,4] [--methods random,kin,panm]

An MLP with 16 hidden units, data set `synthetic` with 20 training and 20 test samples per peer, 100 contacts. With
`--device cuda`, two ranks share the GPU over gloo.
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
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import homophily
from homophily.atomic_io import read_tensors

SEED, PAIRS = 0, 3  # runs with and without torchrun, one after the other
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def one(peers: int, method: str, rounds: int, device: str, folder: Path) -> None:
    """Play a run in this process, or in this rank; write the memory that it added."""
    torch.set_num_threads(1)
    before = _peak()
    config = {
        "peers": peers, "rounds": rounds, "contacts": 100, "method": method, "seed": SEED,
        "data": {"name": "synthetic", "train": 20, "test": 20}, "model": {"name": "mlp", "hidden": [16]},
        "training": {"epochs": 1},
    }  # fmt: skip
    homophily.run(config, out=folder / "run", device=device)
    (folder / f"rank-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(_peak() - before))


def _peak() -> float:
    """The most main memory that this process has had, in GiB."""
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 2**20


def played(ranks: int, options: argparse.Namespace, peers: int, method: str) -> dict[str, Any]:
    """Play a run on ranks of torchrun (0: without torchrun); returns its times, memory, bytes and models."""
    with tempfile.TemporaryDirectory() as name:
        words = [__file__, "--one", f"{peers},{method}", "--folder", name, "--device", options.device]
        words += ["--rounds", str(options.rounds)]
        start = [*TORCHRUN, str(ranks)] if ranks else [sys.executable]
        done = subprocess.run(
            [*start, *words], capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        if done.returncode:
            sys.exit(f"{' '.join([*start, *words])} failed:\n{done.stderr[-3000:]}")
        folder = Path(name)
        lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
        models = read_tensors(folder / "run" / "models.safetensors")["rows"]
        memory = [json.loads(path.read_text()) for path in sorted(folder.glob("rank-*.json"))]
    seconds = [line["seconds"] - before["seconds"] for before, line in pairwise(lines)]
    sent = [(line["models_sent_per_peer"], line["bytes_sent_per_peer"]) for line in lines]
    for (models_before, bytes_before), (models_after, bytes_after) in pairwise(sent):
        formula = (models_after - models_before) * models.shape[1] * models.element_size()
        assert abs(bytes_after - bytes_before - formula) < 1e-6 * formula, "bytes differ from the formula"
    return {"seconds": statistics.median(seconds), "memory": memory, "models": models, "bytes": peers * sent[-1][1]}


def cost_of_one_rank(options: argparse.Namespace, peers: int, method: str) -> None:
    print("## One rank under torchrun against no torchrun\n")
    runs = [(played(0, options, peers, method), played(1, options, peers, method)) for _ in range(PAIRS)]
    ratios = [ranked["seconds"] / alone["seconds"] for alone, ranked in runs]
    same = all(torch.equal(alone["models"], ranked["models"]) for alone, ranked in runs)
    print(f"`{method}`, {peers:,} peers, median round of {options.rounds - 1}, {PAIRS} pairs of runs in turn:")
    print(f"ratios {', '.join(f'{ratio:.3f}' for ratio in ratios)}, median {statistics.median(ratios):.3f}.")
    print(f"The models are {'the same bits' if same else 'not the same bits'}.\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--peers", default="2000,8000")
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--methods", default="random,kin,panm")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        count, method = options.one.split(",")
        one(int(count), method, options.rounds, options.device, options.folder)
        return
    peers, methods = [int(count) for count in options.peers.split(",")], options.methods.split(",")
    hardware = torch.cuda.get_device_name() if options.device == "cuda" else f"{platform.machine()} CPU"
    print("# Ranks of torchrun\n")
    print(f"{date.today()}, `python {' '.join(sys.argv)}`, torch {torch.__version__}, {hardware},")
    print(f"{os.cpu_count()} cores, 1 thread per rank, seed {SEED}.\n")
    cost_of_one_rank(options, peers[0], methods[0])
    print("## Time, memory and bytes\n")
    print("GiB: main memory that the run adds to each rank. Difference: the largest of all parameters from the models")
    print("of the first number of ranks. Bytes after the first round equal models sent times bytes of a model.\n")
    print("| method | peers | ranks | s per round | GiB of each rank | MB sent by peers | difference |")
    print("| --- | ---: | ---: | ---: | --- | ---: | ---: |")
    for method in methods:
        for count in peers:
            first = None
            for ranks in map(int, options.ranks.split(",")):
                found = played(ranks, options, count, method)
                first = found["models"] if first is None else first
                memory = ", ".join(f"{size:.2f}" for size in found["memory"])
                far = float((found["models"] - first).abs().max())
                cells = [method, f"{count:,}", ranks, f"{found['seconds']:.2f}", memory, f"{found['bytes'] / 1e6:,.1f}"]
                print(f"| {' | '.join(map(str, cells))} | {far:.1e} |", flush=True)


if __name__ == "__main__":
    main()
