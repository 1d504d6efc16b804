"""The heart-disease hospitals divided into clinics: what kin finds, and the accuracy of each method.

    python benchmarks/hospitals.py [--seeds 10] [--rounds 60] [--out results/hospitals.md]

Needs the heart-disease files (HOMOPHILY_DATA, the cache or a download).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import torch

import homophily
from homophily.experiments.runner import machine

# Training patients per clinic, and clinics of each hospital; every clinic has 10 more patients for testing.
CLINICS = {20: [10, 9, 4, 6], 40: [6, 5, 2, 4], 60: [4, 4, 1, 2]}
METHODS = ("local", "random", "panm", "dac", "kin", "oracle")
NETWORKS: dict[str, dict[str, Any]] = {"one layer of 32": {"name": "mlp", "hidden": [32]}, "linear": {"name": "linear"}}


def config(train: int, seed: int, network: dict[str, Any]) -> dict[str, Any]:
    sizes = CLINICS[train]
    data = {"name": "heart-disease", "train": train, "test": 10, "sizes": sizes}
    return {"seed": seed, "peers": sum(sizes), "data": data, "model": network, "evaluate": 1000}


def grouping(seeds: int) -> list[str]:
    """Return one row per clinic size: how often kin found families, with precision and recall."""
    rows = [
        "| patients per clinic | clinics | families found | precision | recall |",
        "| --- | --- | --- | --- | --- |",
    ]
    network = NETWORKS["linear"]  # fingerprints do not depend on it
    for train, sizes in CLINICS.items():
        answers = [homophily.kin(config(train, seed, network), device="cpu").summary() for seed in range(seeds)]
        found = [answer for answer in answers if answer["families"] is not None]
        cells = [_spread([answer[key] for answer in found], 2) for key in ("precision", "recall")]
        rows.append(f"| {train} | {sum(sizes)} | {len(found)} of {seeds} | {cells[0]} | {cells[1]} |")
    return rows


def accuracies(seeds: int, rounds: int) -> list[str]:
    """Return one row per network: every method's accuracy with 20 training patients per clinic."""
    rows = ["| network | " + " | ".join(METHODS) + " |", "| --- |" + " --- |" * len(METHODS)]
    for name, network in NETWORKS.items():
        cells = []
        for method in METHODS:
            values = []
            for seed in range(seeds):
                with tempfile.TemporaryDirectory() as folder:
                    asked = {**config(20, seed, network), "rounds": rounds, "method": {"name": method}}
                    found = homophily.run(asked, out=Path(folder) / "run", device="cpu")
                    values.append(found.summary["accuracy"])
            cells.append(_spread(values, 1))
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return rows


def _spread(values: list[float], digits: int) -> str:
    if not values:
        return "-"
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.{digits}f} ± {spread:.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    asked = f"python benchmarks/hospitals.py --seeds {options.seeds} --rounds {options.rounds}"
    versions = f"torch {torch.__version__}, homophily {homophily.__version__}"
    lines = [
        "# Hospitals",
        "",
        f"{date.today()}, {machine(torch.device('cpu'))}, {versions}, seeds 0 to {options.seeds - 1}: `{asked}`",
        "",
        "Families that kin finds before training, mean ± standard deviation over the seeds in which it finds them:",
        "",
        *grouping(options.seeds),
        "",
        f"Accuracy in percent after {options.rounds} rounds, 29 clinics with 20 patients for training and 10 for",
        "testing, mean ± standard deviation over seeds:",
        "",
        *accuracies(options.seeds, options.rounds),
    ]
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
