"""Runs of many peers in one process: time of each part, memory and bytes, and the plan's estimate beside them.

    python benchmarks/scale.py [--peers 10000,30000,100000] [--methods random,kin,panm] [--rounds 3] > results/scale.md

Each run is a process of its own, so that its peak memory is its own. An MLP with 16 hidden units, data set `synthetic`
with 20 training and 20 test samples per peer, 100 contacts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

import torch

from homophily.experiments.planning import FINGERPRINTS, PARTS, measured_parts, plan
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
    before = _peak()
    with tempfile.TemporaryDirectory() as folder:
        found = measured_parts(make(config(peers, method, rounds)), "cpu", Path(folder) / "run")
    return {
        "seconds": dict(found.seconds), "first": dict(found.first), "build": found.build, "gib": _peak() - before,
        "bytes": found.bytes_per_round, "formula": peers * found.models_in_last_round * found.model_bytes,
    }  # fmt: skip


def _peak() -> float:
    """The most memory that this process has had, in GiB."""
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 2**20


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
    print("Seconds of the first round by part, seconds of a later round by part (mean of the rounds after the first),")
    print("the memory that the run adds to that of a Python process which has imported homophily, and bytes that peers")
    print(
        "send. `plan` is what `homophily plan` estimates. `kin` compares fingerprints in its first round, and `panm`,"
    )
    print("whose first stage has one round here, compares models.\n")
    print(f"{date.today()}, `python benchmarks/scale.py`, torch {torch.__version__}, {platform.machine()}, 1 thread,")
    print(f"seed 0, load {os.getloadavg()[0]:.1f} at the start.\n")
    first = [FINGERPRINTS, "compare", "decide"]
    names = ["build", *(f"first: {part}" for part in first), *PARTS, "round", "plan", "GiB", "plan GiB"]
    print(f"| method | peers | {' | '.join(names)} | MB sent per round |")
    print(f"| --- {'| ---: ' * (len(names) + 2)}|")
    for method in options.methods.split(","):
        for peers in map(int, options.peers.split(",")):
            command = [sys.executable, __file__, "--one", f"{peers},{method}", "--rounds", str(options.rounds)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found = json.loads(done.stdout.splitlines()[-1])
            assert found["bytes"] == found["formula"], found
            torch.set_num_threads(1)
            estimate = plan(make(config(peers, method, options.rounds)), 1, "100Gbit", "cpu")
            cells = [f"{found['build']:.1f}", *(f"{found['first'][part]:.2f}" for part in first)]
            cells += [f"{found['seconds'][part]:.2f}" for part in PARTS]
            cells += [f"{sum(found['seconds'].values()):.2f}", f"{estimate.seconds:.2f}"]
            cells += [f"{found['gib']:.2f}", f"{estimate.memory / 2**30:.2f}"]
            print(f"| {method} | {peers:,} | {' | '.join(cells)} | {found['bytes'] / 1e6:,.1f} |", flush=True)
    print("\nThe bytes of every row equal peers times models times bytes of a model; the script checks it.")


if __name__ == "__main__":
    main()
