"""kin finds the same with any network: an MLP and two-layer vision transformers on the default digits federation.

Fingerprints are made of the data and not of the network, so that the first table has the same row for each network.

    python benchmarks/kin_transformer.py --seeds 0 1 2 --rounds 0    what kin finds before training
    python benchmarks/kin_transformer.py                             and the accuracy of its models, in 10 minutes

On the command line, from this folder: homophily kin model=kin_transformer:VisionTransformer model.patch=2
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from kin_power import weakest_direction
from torch import Tensor, nn

import homophily

NETWORKS: dict[str, dict[str, Any]] = {
    "mlp, 32 hidden units": {"name": "mlp", "hidden": [32]},
    "vision transformer, 4x4 patches": {"name": "kin_transformer:VisionTransformer", "patch": 4},
    "vision transformer, 2x2 patches": {"name": "kin_transformer:VisionTransformer", "patch": 2},
}
METHODS = ["random", "panm", "kin", "oracle"]
CLUSTERS = 4  # of the default federation


class VisionTransformer(nn.Module):
    """Patches, learned positions, two encoder layers of 64 and the mean over patches."""

    def __init__(self, inputs: tuple[int, ...], outputs: int, patch: int = 2, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        channels, height, wide = inputs
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.position = nn.Parameter(0.02 * torch.randn((height // patch) * (wide // patch), width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).mT + self.position
        out: Tensor = self.head(self.encoder(tokens).mean(1))
        return out


def before_training(model: dict[str, Any], seeds: list[int]) -> list[str]:
    """Return a network's cells: ranks, singular values, smallest difference and true distance of four groups."""
    found: dict[str, list[float]] = {}
    for seed in seeds:
        answer = homophily.kin({"seed": seed, "model": model})
        evidence, summary = answer.kinship.evidence, answer.summary()
        assert evidence is not None
        assert answer.cluster is not None
        strength, _, _ = weakest_direction(answer.prints, answer.cluster, len(evidence.levels))
        smallest = homophily.methods.kin.power.smallest_difference(evidence, CLUSTERS)
        assert smallest is not None
        cells = {
            "rank": summary["rank"],
            "largest": summary["singular_values"][0],
            "edge": summary["edge"],
            "smallest": smallest,
            "distance": (2 * CLUSTERS * strength / evidence.peers) ** 0.5,
            "precision": summary["precision"],
        }
        for name, value in cells.items():
            found.setdefault(name, []).append(value)
    means = {name: statistics.fmean(values) for name, values in found.items()}
    ranks = ", ".join(str(rank) for rank in sorted(set(found["rank"])))
    digits = {"largest": 1, "edge": 1, "smallest": 2, "distance": 2, "precision": 2}
    return [ranks, *(f"{means[name]:.{places}f}" for name, places in digits.items())]


def trained(model: dict[str, Any], seeds: list[int], rounds: int) -> list[str]:
    """Return accuracies by method. On a CPU, torch.vmap is slower for these transformers than a loop."""
    engine = "auto" if torch.cuda.is_available() else "one-by-one"
    with tempfile.TemporaryDirectory() as folder:
        config = {"model": model, "rounds": rounds, "evaluate": rounds, "engine": engine}
        table = homophily.compare(config, methods=METHODS, seeds=seeds, out=Path(folder) / "runs").table()
    return [f"{table[method]['accuracy']['mean']:.1f}" for method in METHODS]


def tables(seeds: list[int], rounds: int) -> Iterator[str]:
    head = (
        "network", "rank", "largest singular value", "edge", "smallest difference seen", "distance of the clusters",
        "precision",
    )  # fmt: skip
    rows = {name: before_training(model, seeds) for name, model in NETWORKS.items()}
    yield from _lines(head, ((name, *cells) for name, cells in rows.items()))
    yield ""
    yield f"Answers that differ from network to network: {len(set(map(tuple, rows.values()))) - 1}."
    if rounds:
        yield ""
        yield from _lines(("network", *METHODS), ((n, *trained(m, seeds, rounds)) for n, m in NETWORKS.items()))


def _lines(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    for cells in (head, ["---"] * len(head)):
        yield f"| {' | '.join(cells)} |"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--rounds", type=int, default=40, help="rounds of the comparison; 0: no training")
    options = parser.parse_args(words)
    for line in tables(options.seeds, options.rounds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
