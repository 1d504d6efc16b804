"""Accuracy under differential privacy: methods, epsilon and samples per peer, on rotated MNIST and Fashion-MNIST.

    python benchmarks/privacy_accuracy.py runs/privacy

Each run is a folder below the given one; a run that is there is not computed again, so an interrupted benchmark is
continued by the same command. The table is printed as Markdown. `--peers`, `--rounds` and the lists make it smaller.
After each run its result is written to `--out`, a file of JSON lines, in place of an earlier one of the same run.
Several processes can work side by side, each with a part of the lists and with a file of its own. Then

    python benchmarks/privacy_page.py FILE ...

takes the results of these files over into results/privacy/accuracy.jsonl and writes results/privacy.md. The learning
rate is the same with and without privacy. It was not tuned for either, so the column without privacy is not the best
that these networks reach.
"""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import torch

import homophily
from homophily.atomic_io import write_text
from homophily.errors import UserError

RESULTS = Path(__file__).resolve().parents[1] / "results" / "privacy"
KEYS = ("data", "network", "samples", "method", "epsilon", "seed")  # what tells runs apart
NETWORKS: dict[str, dict[str, Any]] = {
    "small MLP": {"model": {"name": "mlp", "hidden": [32]}, "lr": 0.5},
    "linear head": {"model": {"name": "mlp", "hidden": [1024], "frozen": ["1.*"]}, "lr": 0.5},  # on random features
}


def config(args: argparse.Namespace, data: str, network: str, samples: int, method: str, epsilon: float) -> Any:
    """The config of one run; epsilon 0: without privacy, with the same batches and learning rate."""
    chosen = NETWORKS[network]
    out = {
        "seed": args.seed,
        "peers": args.peers,
        "rounds": args.rounds,
        "evaluate": args.rounds,
        "record": False,
        "data": {"name": data, "shift": "rotation", "train": samples, "test": args.test},
        "model": chosen["model"],
        "method": method,
        "training": {
            "batch": samples // 4,
            "epochs": 1,
            "lr": chosen["lr"],
            "momentum": 0.0,
            "schedule": "constant",
        },
    }
    return out | ({"privacy": {"epsilon": epsilon}} if epsilon else {})


def result(folder: Path, keys: Any) -> dict[str, Any]:
    """The accuracy of a run, which is computed if it is not there (null: diverged); or why it was refused."""
    done = folder / "summary.json"
    if not done.exists():
        try:
            if (folder / "config.toml").exists():
                homophily.resume(folder)
            else:
                homophily.run(keys, out=folder)
        except UserError as error:
            return {"refused": str(error)}
    about = json.loads((folder / "run.json").read_text())
    day = datetime.fromtimestamp(done.stat().st_mtime, UTC).date().isoformat()
    summary = json.loads(done.read_text())
    found = {"accuracy": summary["accuracy"], "machine": about["machine"], "date": day}
    if keys["method"] == "kin":
        found["note"] = summary["notes"][0]  # what it found in the fingerprints
    return {**found, **about["versions"]}


def cell(record: dict[str, Any]) -> str:
    """What the table says about a run."""
    if "refused" in record:
        return "refused"
    return "diverged" if record["accuracy"] is None else f"{record['accuracy']:.1f}"


def records_in(path: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines; none if it does not exist."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def replace_in(path: Path, records: list[dict[str, Any]]) -> None:
    """Write the records to a file of JSON lines, in place of those of the same runs."""
    by_run = {tuple(record[key] for key in KEYS): record for record in [*records_in(path), *records]}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(f"{json.dumps(record)}\n" for record in by_run.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS / "accuracy.jsonl")
    parser.add_argument("--peers", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--test", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", nargs="+", default=["mnist", "fashion-mnist"])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--samples", nargs="+", type=int, default=[200, 600])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1, 2, 4, 8, 0], help="0: without privacy")
    parser.add_argument("--methods", nargs="+", default=["local", "random", "oracle", "kin"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    records = []
    names = [f"epsilon {epsilon:g}" if epsilon else "no privacy" for epsilon in args.epsilons]
    print(f"| data | network | samples | method | {' | '.join(names)} |")
    print("| --- " * (4 + len(names)) + "|")
    for case in product(args.data, args.networks, args.samples, args.methods):
        row = []
        for epsilon in args.epsilons:
            asked = dict(zip(KEYS, (*case, epsilon or None, args.seed), strict=True))
            name = "-".join(map(str, (*case, f"{epsilon:g}", args.seed))).replace(" ", "-")
            found = result(args.folder / name, config(args, *case, epsilon))
            row.append({**asked, "peers": args.peers, "rounds": args.rounds, **found})
            replace_in(args.out, row[-1:])
        print(f"| {' | '.join(map(str, case))} | {' | '.join(map(cell, row))} |", flush=True)
        records += row
    for record in records:
        if "refused" in record:
            print(f"\n{record}")


if __name__ == "__main__":
    main()
