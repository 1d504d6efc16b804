"""How long kin takes before the first round of a large federation: fingerprints of all peers, and the decision.

    python benchmarks/kin_large.py --peers 10000 --samples 20 100 480

The images are random, 28 x 28 pixels, in four clusters that differ in their mean image. Each size runs once to warm up;
the table has medians over seeds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from datetime import date

import torch

import homophily
from homophily.data.types import Split
from homophily.experiments.runner import chosen_device, machine
from homophily.fingerprints.compute import fingerprints
from homophily.fingerprints.embedding import Targets
from homophily.fingerprints.fingerprint import format_of
from homophily.methods.kin.families import kinship

CLUSTERS, CLASSES, SIDE = 4, 10, 28


def federation(peers: int, samples: int, seed: int, device: torch.device) -> Split:
    """Return the training samples of all peers; peer i belongs to cluster i modulo CLUSTERS."""
    chance = torch.Generator(device).manual_seed(seed)
    x = torch.randn(peers * samples, 1, SIDE, SIDE, generator=chance, device=device)
    mean = torch.randn(CLUSTERS, 1, SIDE, SIDE, generator=chance, device=device)
    for cluster in range(CLUSTERS):
        x.view(peers, samples, 1, SIDE, SIDE)[cluster::CLUSTERS] += mean[cluster]
    y = torch.randint(CLASSES, (len(x),), generator=chance, device=device)
    start = samples * torch.arange(peers, device=device)
    return Split(x, y, start, torch.full_like(start, samples))


def seconds(peers: int, samples: int, seed: int, device: torch.device) -> tuple[float, float, int | None]:
    """Return the time of the fingerprints and of the decision, and the number of families found."""
    data, ids = federation(peers, samples, seed, device), torch.arange(peers, device=device)

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    began = now()
    prints = fingerprints(data, Targets(CLASSES, None, None), ids, seed, format_of(peers))
    between = now()
    family = kinship(prints, ids, seed).family
    return between - began, now() - between, None if family is None else int(family.max()) + 1


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=10_000)
    parser.add_argument("--samples", type=int, nargs="+", default=[20, 100, 480])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(words)
    device = chosen_device(options.device)
    print(f"{date.today()}, {machine(device)}, torch {torch.__version__}, homophily {homophily.__version__}\n")
    print("| peers | samples per peer | fingerprints, s | decision, s | both, s | families |\n" + "| --- " * 6 + "|")
    for samples in options.samples:
        found = [seconds(options.peers, samples, seed, device) for seed in [0, *range(options.seeds)]][1:]
        first, second = (statistics.median(times[part] for times in found) for part in (0, 1))
        both = statistics.median(a + b for a, b, _ in found)
        families = ", ".join(str(families) for *_, families in found)
        cells = [f"{options.peers:,}", samples, f"{first:.2f}", f"{second:.2f}", f"{both:.2f}", families]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
