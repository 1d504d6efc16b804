"""Private fingerprints: the families that kin finds with them, its false alarms, and the hospitals.

    python benchmarks/kin_private.py families      precision and recall against epsilon and samples
    python benchmarks/kin_private.py calibration   how often a difference is found although there is none
    python benchmarks/kin_private.py hospitals     the heart-disease clinics

Settings were chosen on digits; families and calibration are measured on MNIST and Fashion-MNIST.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from typing import Any

import hospitals
import torch
from kin_settings import NETWORK_OF, SHIFTS, config

import homophily
from homophily.experiments.discovery import Discovery
from homophily.experiments.runner import as_config
from homophily.fingerprints.embedding import CompactEmbedding, Targets
from homophily.fingerprints.private import NUMBERS, Draw, clipped, clipping_norm, released, unpacked
from homophily.methods.kin.released import released_kinship
from homophily.privacy.gaussian import gaussian_noise
from homophily.simulation.training_setup import SetupCache, data_of
from homophily.simulation.user_objects import UserObjects

EPSILONS = (1.0, 2.0, 4.0, 8.0)
SAMPLES = (50, 100, 200, 600)
DATA = ("mnist", "fashion-mnist")
DELTA = 1e-5
PEERS = 100
CASES = ((12, 50, 50), (12, 200, 200), (12, 50, 600), (60, 50, 50), (60, 200, 200), (60, 50, 600))  # peers, from, to


def embedded(
    data: str, shift: dict[str, Any], samples: int, seed: int, peers: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Clipped embedded samples [peers, samples, d], and the clusters [peers]."""
    asked = as_config(config(data, NETWORK_OF[data], samples, shift, seed, peers))
    _, shares = data_of(asked, UserObjects(), torch.device("cpu"), SetupCache())
    train, targets = shares.train, Targets(shares.classes)
    embed = CompactEmbedding(train.x[:1], train.y[:1], targets, seed, train.x.device, NUMBERS)
    e = clipped(embed, train.x, train.y, clipping_norm(embed, train, targets, seed))
    assert shares.cluster is not None
    return e.view(peers, samples, -1), shares.cluster


def draws(*keys: int) -> tuple[Draw, Draw]:
    chance = torch.Generator().manual_seed(hash(keys) % (1 << 62))

    def signs(n: int) -> torch.Tensor:
        return torch.rand(n, generator=chance, dtype=torch.float64)

    def noise(n: int) -> torch.Tensor:
        return torch.randn(n, generator=chance, dtype=torch.float64)

    return signs, noise


def answer(samples: list[torch.Tensor], cluster: torch.Tensor, epsilon: float, seed: int) -> Discovery:
    """What kin finds in private fingerprints of peers with these clipped samples."""
    multiplier, (signs, noise) = gaussian_noise(epsilon, DELTA), draws(seed, int(1000 * epsilon), len(samples[0]))
    vectors = torch.stack([released(e, multiplier, signs, noise) for e in samples])
    prints = unpacked(vectors, multiplier)
    found, _ = released_kinship(prints, torch.arange(len(samples)), seed)
    return Discovery(found, prints, cluster, (), 0.0, 0.0)


def families(seeds: range) -> Iterator[str]:
    yield "| data | shift | samples | " + " | ".join(f"epsilon {e:g}" for e in EPSILONS) + " |"
    yield "| --- " * (3 + len(EPSILONS)) + "|"
    for data in DATA:
        for shift in ("rotations, 4", "label swaps, 4"):
            made = [embedded(data, SHIFTS[shift], max(SAMPLES), seed, PEERS) for seed in seeds]
            for samples in SAMPLES:
                cells = []
                for epsilon in EPSILONS:
                    found = [
                        answer(list(e[:, :samples]), cluster, epsilon, seed)
                        for seed, (e, cluster) in zip(seeds, made, strict=True)
                    ]
                    cells.append(cell(found))
                yield f"| {data} | {shift} | {samples} | " + " | ".join(cells) + " |"


def cell(found: list[Discovery]) -> str:
    """Mean precision and recall of the federations with families, and how many had none or a continuum."""
    seen = [one for one in found if one.conclusive and one.families is not None]
    ranks = "/".join(str(one.kinship.rank) for one in found)
    if not seen:
        return f"no families (rank {ranks})"
    pairs = [one.precision_and_recall() for one in seen]
    means = ", ".join(f"{statistics.fmean(pair[i] or 0.0 for pair in pairs):.2f}" for i in (0, 1))
    return means if len(seen) == len(found) else f"{means} in {len(seen)} of {len(found)} (rank {ranks})"


def calibration(federations: int) -> Iterator[str]:
    yield "| data | epsilon | federations | rank above 0 | by peers and samples |"
    yield "| --- | --- | --- | --- | --- |"
    for data in DATA:
        pools = [embedded(data, {"shift": "iid"}, 20000, seed, 1)[0][0] for seed in range(3)]
        for epsilon in EPSILONS:
            false: dict[str, int] = {}
            for peers, low, high in CASES:
                name = f"{peers} x {low}" if low == high else f"{peers} x {low} to {high}"
                false[name] = 0
                for seed in range(federations):
                    chance = torch.Generator().manual_seed(seed)
                    order = torch.randperm(20000, generator=chance)
                    counts = [low + (high - low) * i // (peers - 1) for i in range(peers)]
                    parts = [
                        pools[seed % 3][order[torch.randint(20000, (count,), generator=chance)]] for count in counts
                    ]
                    cluster = torch.zeros(peers, dtype=torch.int64)
                    false[name] += answer(parts, cluster, epsilon, seed).kinship.rank > 0
            rows = ", ".join(f"{name}: {bad}" for name, bad in false.items())
            yield f"| {data} | {epsilon:g} | {federations * len(CASES)} | {sum(false.values())} | {rows} |"


def clinics(seeds: range) -> Iterator[str]:
    yield "| patients per clinic | clinics | " + " | ".join(f"epsilon {e:g}" for e in EPSILONS) + " |"
    yield "| --- " * (2 + len(EPSILONS)) + "|"
    for train, sizes in hospitals.CLINICS.items():
        cells = []
        for epsilon in EPSILONS:
            asked = (hospitals.config(train, seed, hospitals.NETWORKS["linear"]) for seed in seeds)
            cells.append(cell([homophily.kin({**one, "privacy": {"epsilon": epsilon}}, device="cpu") for one in asked]))
        yield f"| {train} | {sum(sizes)} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=["families", "calibration", "hospitals"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--federations", type=int, default=250, help="calibration: per row of peers and samples")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(options.seeds)
    lines = {"families": lambda: families(seeds), "calibration": lambda: calibration(options.federations)}
    for line in lines.get(options.study, lambda: clinics(seeds))():
        print(line, flush=True)


if __name__ == "__main__":
    main()
