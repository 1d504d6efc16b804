"""How well kin groups peers before training, and how often it sees kinds where there are none.

    python benchmarks/kin.py grouping [--data fashion-mnist] [--samples 20 50 200] [--seeds 5] [--budget 500]
    python benchmarks/kin.py calibration [--federations 100] [--budget 500]

Prints a table; --out adds it to a file. A budget in seconds stops between rows; the rows left are named.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import torch

import homophily
from homophily.api import chosen_device
from homophily.fingerprint import contrasts
from homophily.introductions import BUCKETS, ROWS, checked
from homophily.kinship import kinship
from homophily.randomness import normal
from homophily.runs import machine

SHIFTS: dict[str, dict[str, Any]] = {
    "rotations, 2": {"shift": "rotation", "angles": [0, 180]},
    "rotations, 4": {"shift": "rotation"},
    "rotations, 70/20/5/5": {"shift": "rotation", "sizes": [70, 20, 5, 5]},
    "label swaps, 2": {"shift": "label-swap", "clusters": 2},
    "label swaps, 4": {"shift": "label-swap", "clusters": 4},
    "label pairs, 5": {"shift": "label-groups", "groups": "pairs"},
    "one distribution": {"shift": "iid"},
}
NETWORKS: dict[str, dict[str, Any]] = {"mlp": {"name": "mlp", "hidden": [200, 200]}, "cnn": {"name": "cnn"}}


def grouping(options: argparse.Namespace) -> Iterator[str]:
    """A row for each data set, network, number of samples and shift: mean over seeds."""
    yield "| data | network | samples | shift | rank | families found | precision | recall | lowest of both | s |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for data in options.data:
        for network in options.network:
            for samples in options.samples:
                for name, shift in SHIFTS.items():
                    yield _grouping_row(data, network, samples, name, shift, options)


def _grouping_row(data: str, network: str, samples: int, name: str, shift: dict[str, Any], options: Any) -> str:
    answers = []
    for seed in range(options.seeds):
        table = {"name": data, "train": samples, "test": 1, **shift}
        config = {"seed": seed, "peers": options.peers, "data": table, "model": NETWORKS[network]}
        answers.append(homophily.kin(config, device=options.device).summary())
    found = [a for a in answers if a["families"] is not None]
    cells = [f"{statistics.fmean(a[key] for a in found):.3f}" if found else "-" for key in ("precision", "recall")]
    lowest = min((min(a["precision"], a["recall"]) for a in found), default=0.0)
    ranks = ", ".join(map(str, sorted({a["rank"] for a in answers})))
    seconds = statistics.median(a["seconds"] for a in answers)
    numbers = f"{ranks} | {len(found)} of {len(answers)} | {cells[0]} | {cells[1]} | {lowest:.3f} | {seconds:.2f}"
    return f"| {data} | {network} | {samples} | {name} | {numbers} |"


def calibration(options: argparse.Namespace) -> Iterator[str]:
    """Pure Gaussian gradients of one distribution: how often a rank above 0 is seen, where 1 in 100 is meant."""
    yield "| peers | samples a peer | federations | rank above 0 |"
    yield "| --- | --- | --- | --- |"
    for peers in (12, 60, 200):
        for samples in ((20, 20), (50, 50), (200, 200), (10, 40), (20, 200)):
            wrong = sum(_noise_rank(peers, samples, seed, options.device) > 0 for seed in range(options.federations))
            spread = f"{samples[0]}" if samples[0] == samples[1] else f"{samples[0]} to {samples[1]}"
            yield f"| {peers} | {spread} | {options.federations} | {wrong} |"


def _noise_rank(peers: int, samples: tuple[int, int], seed: int, device: str) -> int:
    """The rank found in a federation of noise whose deviations fall from 2 to 0.1 over the buckets."""
    on = chosen_device(device)
    low, high = samples
    counts = [low + (high - low) * (i % 4) // 3 for i in range(peers)]
    peer, bucket = torch.arange(peers, device=on)[:, None, None], torch.arange(BUCKETS, device=on)
    x = normal(seed, 1, peer, torch.arange(max(counts), device=on)[:, None], bucket) * torch.linspace(
        2, 0.1, BUCKETS, device=on
    )
    count = torch.tensor(counts, device=on)
    there = (torch.arange(max(counts), device=on) < count[:, None])[..., None]
    mean = (x * there).sum(1) / count[:, None]
    factor = torch.linalg.qr(contrasts(x[:, :ROWS]) * there[:, 1:ROWS], mode="r").R
    return kinship(checked(mean.float(), factor.float(), count), torch.arange(peers, device=on), seed).rank


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["grouping", "calibration"])
    parser.add_argument("--data", nargs="+", default=["fashion-mnist", "mnist"])
    parser.add_argument("--network", nargs="+", default=["mlp"])
    parser.add_argument("--samples", nargs="+", type=int, default=[20, 50, 200])
    parser.add_argument("--peers", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--federations", type=int, default=100)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--budget", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    began = time.perf_counter()
    versions = f"torch {torch.__version__}, homophily {homophily.__version__}"
    title = f"{options.what}: {date.today()}, {machine(chosen_device(options.device))}, {versions}, seeds from 0"
    rows = [title, ""]
    print(title, flush=True)
    for row in grouping(options) if options.what == "grouping" else calibration(options):
        rows.append(row)
        print(row, flush=True)
        if options.out:
            options.out.write_text("\n".join(rows) + "\n", encoding="utf-8")
        if time.perf_counter() - began > options.budget:
            print("stopped: the budget is spent; rows after this one are missing")
            break


if __name__ == "__main__":
    main()
