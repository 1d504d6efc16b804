"""Time of the decisions alone (meet and choose) for all peers at once: ms per round, median over rounds.

    python benchmarks/deciding.py [--device cpu] [--rounds 30] [--threads 2]

Similarities are given, not computed. 10,000 peers have 1,000 contacts each; in smaller federations, all peers know all.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time

import torch

from homophily.federation.contacts import view_of_all
from homophily.methods import Method, RoundContext, methods
from homophily.methods.dispatch import SharedTables, choose, meet
from homophily.randomness import uniform

SIZES = ((100, None), (1_000, None), (10_000, 1_000))
NAMES = ("random", "panm", "dac", "dpg", "pens")


def ms_per_round(method: Method, peers: int, contacts: int | None, rounds: int, device: torch.device) -> float:
    """Return the median time of a round in ms, without the first two rounds."""
    cluster = torch.arange(peers, device=device) % 4
    view = view_of_all(peers, 0, None, 1, contacts, cluster, device)
    assert view.same is not None
    noise = uniform(1, view.me[:, None], view.contacts).to(torch.float64)
    table = noise + view.same
    memory: dict[str, torch.Tensor] = {}
    times = []
    for round in range(1, rounds + 1):
        _wait(device)
        began = time.perf_counter()
        met = meet(method, view, round, memory)
        _wait(device)
        took = time.perf_counter() - began
        alike = torch.where(met, table, -torch.inf) if method.compares(RoundContext(view, round, memory)) else None
        _wait(device)
        began = time.perf_counter()
        tables = {name: memory[name] for name in method.shares if name in memory}
        shared = SharedTables(tables, view.contacts, _row)
        _, memory = choose(method, view, round, memory, met, met, alike, shared)
        _wait(device)
        times.append(1000 * (took + time.perf_counter() - began))
    return statistics.median(times[2:])


def _row(ids: torch.Tensor) -> torch.Tensor:
    """The row of a peer is its id."""
    return ids.clamp(min=0)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    print(f"ms per round for meet and choose; torch {torch.__version__}, {name}")
    print("peers".rjust(8), *(method.rjust(9) for method in NAMES))
    for peers, contacts in SIZES:
        rounds = options.rounds if peers < 10_000 else min(options.rounds, 12)
        cells = [ms_per_round(methods.get(n)().in_rounds(rounds), peers, contacts, rounds, device) for n in NAMES]
        print(str(peers).rjust(8), *(f"{cell:9.2f}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
