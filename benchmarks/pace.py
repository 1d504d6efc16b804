"""The rounds that a slow peer loses at a free pace, and what the others pay for it: real processes on loopback.

    python benchmarks/pace.py [--peers 3 5 16] [--pauses 0.005 0.2] [--slower 2 10] [--seconds 20]

Every peer pauses in each round, the last one longer: 2 times as long is half the speed. Each federation runs for some
seconds after all have met.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
from torch import Tensor

from homophily.peer.deploy import run_peer, start_peer, write_files
from homophily.runs.reader import Run
from homophily.simulation.configuration import make

PAUSE = "PACE_PAUSE"  # environment variable: seconds
CONFIG = {
    "rounds": 1_000_000,
    "engine": "one-by-one",
    "method": {"name": "random", "k": 2},
    "data": {"train": 20, "test": 10, "angles": [0, 180]},
    "training": {"epochs": 1},
    "extra_metrics": [f"{Path(__file__).stem}:pause"],
}


def pause(outputs: Tensor, targets: Tensor) -> Tensor:
    """A metric that makes a round last longer."""
    time.sleep(float(os.environ[PAUSE]))
    return torch.zeros(())


def paused(file: Path, log: Path) -> None:
    """Run a peer whose pause is in a file beside its own."""
    os.environ[PAUSE] = file.with_suffix(".pause").read_text()
    torch.set_num_threads(1)
    run_peer(file, log)


@dataclass
class Federation:
    """Peers that run, and their state folders."""

    folder: Path
    running: list[BaseProcess]

    def rounds(self, peer: int) -> list[int]:
        folder = self.folder / f"peer-{peer}"
        return [line["round"] for line in Run(folder).metrics()] if (folder / "config.toml").is_file() else []

    def wait_for_all(self, rounds: int) -> None:
        while not all(len(self.rounds(i)) >= rounds for i in range(len(self.running))):
            assert all(process.is_alive() for process in self.running), f"a peer failed: see {self.folder}"
            time.sleep(0.1)


@contextmanager
def federation(peers: int, pause: float, slower: float) -> Iterator[Federation]:
    """A federation of which the last peer is slower by this factor."""
    with tempfile.TemporaryDirectory() as folder:
        files = write_files(make({**CONFIG, "peers": peers}), peers, Path(folder), "free")
        for i, file in enumerate(files):
            file.with_suffix(".pause").write_text(str(pause * (slower if i == peers - 1 else 1)))
        running = [start_peer(file, file.with_suffix(".log"), paused) for file in files]
        try:
            yield Federation(Path(folder), running)
        finally:
            for process in running:
                process.kill()
            for process in running:
                process.join()


def measure(peers: int, pause: float, slower: float, seconds: float) -> tuple[float, float, float]:
    """The share of rounds that the slow peer loses, the median of this share of the others, and rounds per second."""
    with federation(peers, pause, slower) as run:
        run.wait_for_all(3)
        first = [run.rounds(i)[-1] for i in range(peers)]
        time.sleep(seconds)
        played = [[r for r in run.rounds(i) if r > first[i]] for i in range(peers)]
    lost = [1 - len(rounds) / (rounds[-1] - first[i]) if rounds else 1.0 for i, rounds in enumerate(played)]
    return lost[-1], statistics.median(lost[:-1]), statistics.median(len(r) for r in played[:-1]) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, nargs="+", default=[3, 5, 16])
    parser.add_argument("--pauses", type=float, nargs="+", default=[0.005, 0.2])
    parser.add_argument("--slower", type=float, nargs="+", default=[2.0, 10.0])
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    columns = ["peers", "pause, ms", "pause of the slow peer, ms", "lost by the slow peer", "lost by the others"]
    print(f"| {' | '.join([*columns, 'rounds per second of the others'])} |\n{'| --- ' * (len(columns) + 1)}|")
    for pause in given.pauses:
        for slower in given.slower:
            for peers in given.peers:
                slow, others, rate = measure(peers, pause, slower, given.seconds)
                print(
                    f"| {peers} | {1000 * pause:.0f} | {1000 * pause * slower:.0f} | {slow:.0%} | {others:.0%} "
                    f"| {rate:.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
