"""Runs of many peers in one process: time of each part, memory and bytes, and the plan's estimate beside them.

    python benchmarks/scale.py [--peers 10000,30000,100000] [--methods random,kin,panm] [--rounds 3] > results/scale.md

Each run is a process of its own, so that its peak memory is its own. An MLP with 16 hidden units, data set `synthetic`
with 20 training and 20 test samples per peer, 100 contacts.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from homophily.experiments.planning import PARTS, measured_parts, plan
from homophily.simulation.configuration import make


def config(peers: int, method: str, rounds: int) -> dict[str, object]:
    return {
        "peers": peers,
        "rounds": rounds,
        "contacts": 100,
        "method": method,
        "data": {"name": "synthetic", "train": 20, "test": 20},
        "model": {"name": "mlp", "hidden": [16]},
        "training": {"epochs": 1},
    }


def one(peers: int, method: str, rounds: int) -> dict[str, object]:
    """Play one run; returns its times and sizes."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        found = measured_parts(make(config(peers, method, rounds)), "cpu", Path(folder) / "run")
        took = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {
        "seconds": dict(found.seconds), "first": found.first, "build": found.build, "all": took, "gib": peak,
        "bytes": found.bytes_per_round, "formula": peers * found.models_in_last_round * found.model_bytes,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="10000,30000,100000")
    parser.add_argument("--methods", default="random,kin,panm")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        peers, method = options.one.split(",")
        print(json.dumps(one(int(peers), method, options.rounds)))
        return
    print("# Many peers in one process\n")
    print("Seconds by part of a round (mean of the rounds after the first), peak memory, and bytes that peers send.")
    print("`first` is the first round, in which `kin` computes and compares fingerprints.")
    print("`plan` is what `homophily plan` estimates for a round.\n")
    print(f"`python benchmarks/scale.py`, torch {torch.__version__}, {platform.machine()}, 1 thread.\n")
    print(f"| method | peers | build | first | {' | '.join(PARTS)} | round | plan | peak GiB | MB sent per round |")
    print(f"| --- {'| ---: ' * (8 + len(PARTS))}|")
    for method in options.methods.split(","):
        for peers in map(int, options.peers.split(",")):
            command = [sys.executable, __file__, "--one", f"{peers},{method}", "--rounds", str(options.rounds)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found = json.loads(done.stdout.splitlines()[-1])
            assert found["bytes"] == found["formula"], found
            torch.set_num_threads(1)
            estimate = plan(make(config(peers, method, options.rounds)), 1, "100Gbit", "cpu")
            cells = [f"{found[name]:.1f}" for name in ("build", "first")]
            cells += [f"{found['seconds'][part]:.2f}" for part in PARTS]
            cells += [f"{sum(found['seconds'].values()):.2f}", f"{estimate.seconds:.2f}", f"{found['gib']:.2f}"]
            print(f"| {method} | {peers:,} | {' | '.join(cells)} | {found['bytes'] / 1e6:,.1f} |", flush=True)


if __name__ == "__main__":
    main()
