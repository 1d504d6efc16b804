"""Real peers as processes on this machine that tests start, kill, freeze and inspect."""

import os
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from homophily.peer.deploy import start_peer, status, write_files
from homophily.runs.reader import Run
from homophily.simulation.configuration import make, overlaid
from tests.patience import PATIENCE, until

ENDLESS: dict[str, Any] = {
    "rounds": 100_000,
    "engine": "one-by-one",
    "method": {"name": "random", "k": 8},
    "data": {"train": 20, "test": 10, "angles": [0, 180]},
    "training": {"epochs": 1},
    "extra_metrics": ["tests.peer.field:pause"],
}


def pause(outputs: Tensor, targets: Tensor) -> Tensor:
    """Makes a round last a while, and costs nothing."""
    time.sleep(0.1)
    return torch.zeros(())


class Field:
    """So many peers, each startable; everything they leave behind is in ``folder``."""

    def __init__(
        self, folder: Path, peers: int, pace: str = "free", peer: dict[str, Any] | None = None, **keys: Any
    ) -> None:
        self.folder, self.names = folder, [f"peer-{i}" for i in range(peers)]
        config = make({**overlaid(ENDLESS, keys), "peers": peers})
        self.files = write_files(config, peers, folder, pace, **{"lease": 2.0, "wait_for": 0, **(peer or {})})
        self.running: dict[int, BaseProcess] = {}

    def start(self, *peers: int) -> None:
        for i in peers:
            self.running[i] = self._process(i)

    def _process(self, peer: int) -> BaseProcess:
        return start_peer(self.files[peer], self.files[peer].with_suffix(".log"))

    def signal(self, peer: int, number: signal.Signals) -> None:
        pid = self.running[peer].pid
        assert pid is not None
        os.kill(pid, number)

    def kill(self, *peers: int) -> None:
        for i in peers:
            self.running[i].kill()
        for i in peers:
            self.running.pop(i).join()

    def end(self, peer: int, seconds: float = PATIENCE) -> int | None:
        """Wait until a peer ends by itself; its exit code."""
        process = self.running.pop(peer)
        process.join(seconds)
        if process.is_alive():
            process.kill()
            process.join()
            raise AssertionError(f"peer {peer} does not end")
        return process.exitcode

    def run(self, peer: int) -> Run:
        return Run(self.folder / self.names[peer])

    def lines(self, peer: int) -> list[dict[str, Any]]:
        path = self.folder / self.names[peer]
        return Run(path).metrics() if (path / "config.toml").is_file() else []

    def round(self, peer: int) -> int:
        lines = self.lines(peer)
        return int(lines[-1]["round"]) if lines else 0

    def status(self, peer: int) -> dict[str, Any]:
        return status(self.folder / self.names[peer])

    def met(self, peer: int) -> set[str]:
        """Whom a peer met in its last round and got a model from."""
        lines = self.lines(peer)
        return set(lines[-1]["met"]) if lines else set()

    def all_meet(self, *peers: int) -> None:
        """Wait until each of these has just met all others of them, and nobody else."""
        for i in peers:
            others = {self.names[j] for j in peers if j != i}
            until(lambda i=i, others=others: self.met(i) == others, f"{self.names[i]} meets {sorted(others)}")

    def go_on(self, *peers: int, rounds: int = 3) -> None:
        """Wait until each has played some more rounds."""
        for i, last in {i: self.round(i) + rounds for i in peers}.items():
            until(lambda i=i, last=last: self.round(i) >= last, f"{self.names[i]} plays on")

    def size(self, peer: int) -> tuple[int, int]:
        """A peer's memory in kB, and its threads."""
        text = Path(f"/proc/{self.running[peer].pid}/status").read_text()
        lines = dict(line.split(":", 1) for line in text.splitlines())
        return int(lines["VmRSS"].split()[0]), int(lines["Threads"])

    def close(self) -> None:
        for i in list(self.running):
            self.kill(i)
