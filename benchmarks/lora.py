"""The error and the accuracy of each way to merge LoRA adapters (model.lora.merge).

    python benchmarks/lora.py [--peers 20] [--rounds 30] [--seeds 5] [--out results/lora.md]

The network is a random frozen MLP with adapters on its first layer and a trained last layer; the data is `digits`
without a shift. Error: peers train alone for some rounds; for groups of 5 peers, the script compares the product of the
merged factors with the mean of the peers' products. Accuracy: peers merge with 4 random peers in every round.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

import homophily
from homophily.experiments.runner import machine
from homophily.federation.factors import best_factors

MODES = ("factors", "freeze-a", "product")
GROUP = 5
LAYER = "1"


def config(mode: str, seed: int, peers: int, rounds: int, method: Any) -> dict[str, Any]:
    """The config of a run. mode: model.lora.merge."""
    lora = {"rank": 4, "alpha": 8, "targets": [LAYER], "train": ["3"], "merge": mode}
    return {
        "seed": seed, "peers": peers, "rounds": rounds, "method": method, "evaluate": rounds, "checkpoint": rounds,
        "data": {"shift": "iid"}, "model": {"name": "mlp", "hidden": [64], "lora": lora},
    }  # fmt: skip


def error(run: homophily.Run, mode: str, peers: int) -> float:
    """The relative error of merging groups of consecutive peers of a run: the mean over the groups, in percent."""
    states = [run.state_dict(peer) for peer in range(peers)]
    found = []
    for first in range(0, peers - GROUP + 1, GROUP):
        group = states[first : first + GROUP]
        a, b = (torch.stack([state[f"{LAYER}.{name}"] for state in group]).double() for name in ("lora_A", "lora_B"))
        exact = (b @ a).mean(0)
        found.append(float((merged(a, b, mode) - exact).norm() / exact.norm()))
    return 100 * statistics.mean(found)


def merged(a: Tensor, b: Tensor, mode: str) -> Tensor:
    """The product of the merged factors. a: [k, r, n]; b: [k, m, r]."""
    if mode == "product":
        new_a, new_b = best_factors(a, b, torch.full((len(a),), 1 / len(a)))
        return new_b @ new_a
    return b.mean(0) @ a.mean(0)


def measured(mode: str, arguments: argparse.Namespace) -> list[str]:
    """The cells of one row: mode, parameters sent, errors after few and many rounds, accuracy."""
    errors: dict[int, list[float]] = {3: [], arguments.rounds: []}
    accuracy = []
    with TemporaryDirectory() as folder:
        for seed in range(arguments.seeds):
            for rounds, values in errors.items():
                keys = config(mode, seed, arguments.peers, rounds, "local")
                run = homophily.run(keys, out=f"{folder}/local-{seed}-{rounds}", device="cpu")
                values.append(error(run, mode, arguments.peers))
            keys = config(mode, seed, arguments.peers, arguments.rounds, {"name": "random", "k": GROUP - 1})
            run = homophily.run(keys, out=f"{folder}/random-{seed}", device="cpu")
            accuracy.append(run.summary["accuracy"])
            sent = run.summary["bytes_sent_per_peer"] / run.summary["models_sent_per_peer"] / 4
    means = [f"{statistics.mean(values):.1f} %" for values in errors.values()]
    spread = f" ± {statistics.stdev(accuracy):.1f}" if len(accuracy) > 1 else ""
    return [f"`{mode}`", f"{sent:,.0f}", *means, f"{statistics.mean(accuracy):.1f}{spread}"]


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="a Markdown file for the table")
    arguments = parser.parse_args(words)
    torch.set_num_threads(1)
    heads = [
        "`model.lora.merge`", "parameters sent per model", "error after 3 rounds alone",
        f"error after {arguments.rounds} rounds alone", f"accuracy after {arguments.rounds} rounds with merges, %",
    ]  # fmt: skip
    rows = [measured(mode, arguments) for mode in MODES]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in [heads, ["---"] * len(heads), *rows])
    command = shlex.join(["python", "benchmarks/lora.py", *(sys.argv[1:] if words is None else words)])
    versions = f"{machine(torch.device('cpu'))}, torch {torch.__version__}, homophily {homophily.__version__}"
    page = f"# Merging LoRA adapters\n\n{__doc__.split(chr(10) * 2)[2].strip()}\n\n"
    page += f"`{command}`: {date.today()}, {versions}; {arguments.seeds} seeds.\n\n{table}"
    print(page, end="")
    if arguments.out is not None:
        arguments.out.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
