"""Real peers as processes, on loopback or in network namespaces, whose rounds are watched: for benchmarks/faults.py."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import tomli_w

from homophily.errors import UserError
from homophily.peer.deploy import status, write_files
from homophily.runs.reader import Run
from homophily.simulation.configuration import make

PATIENCE = 180.0  # seconds after which something hangs
LEASE = 2.0  # seconds
CONFIG: dict[str, Any] = {
    "rounds": 100_000,
    "engine": "one-by-one",
    "method": {"name": "random", "k": 8},
    "data": {"train": 20, "test": 10, "angles": [0, 180]},
    "training": {"epochs": 1},
}


class Hangs(Exception):
    """Something did not happen in time."""


def until(done: Callable[[], bool], what: str, seconds: float = PATIENCE) -> float:
    """Seconds until something is so."""
    began = time.monotonic()
    while not done():
        if time.monotonic() - began > seconds:
            raise Hangs(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.02)
    return time.monotonic() - began


def command(*words: object, text: str | None = None) -> None:
    done = subprocess.run([str(word) for word in words], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")


class Network:
    """A network namespace for each peer, and a bridge between them."""

    def __init__(self, peers: int) -> None:
        self.switch, self.spaces = f"hpf{os.getpid()}", [f"hpf{os.getpid()}-{i}" for i in range(peers)]
        self.hosts = [f"10.78.0.{i + 1}" for i in range(peers)]

    def __enter__(self) -> Network:
        for space in (self.switch, *self.spaces):
            command("ip", "netns", "add", space)
            command("ip", "-n", space, "link", "set", "lo", "up")
        command("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        command("ip", "-n", self.switch, "link", "set", "bridge", "up")
        for i, (space, host) in enumerate(zip(self.spaces, self.hosts, strict=True)):
            end = "name", "net", "netns", space, "type", "veth", "peer", "name", f"to{i}", "netns", self.switch
            command("ip", "link", "add", *end)
            command("ip", "-n", self.switch, "link", "set", f"to{i}", "master", "bridge", "up")
            command("ip", "-n", space, "address", "add", f"{host}/24", "dev", "net")
            command("ip", "-n", space, "link", "set", "net", "up")
        return self

    def __exit__(self, *error: object) -> None:
        for space in (*self.spaces, self.switch):
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)

    def limit(self, peer: int, rate: str | None) -> None:
        """Limit the rate to and from a peer; None: no more."""
        for space, device in ((self.spaces[peer], "net"), (self.switch, f"to{peer}")):
            if rate is None:
                command("tc", "-n", space, "qdisc", "delete", "dev", device, "root")
            else:
                limit = "tbf", "rate", rate, "burst", "256kb", "latency", "200ms"
                command("tc", "-n", space, "qdisc", "add", "dev", device, "root", *limit)

    def separate(self, some: Sequence[int], others: Sequence[int]) -> None:
        """Drop all packets between two sets of peers."""
        for here, there in ((some, others), (others, some)):
            sources = ", ".join(self.hosts[i] for i in there)
            rules = "add table inet cut\nadd chain inet cut in { type filter hook input priority 0; }\n"
            rules += f"add rule inet cut in ip saddr {{ {sources} }} drop\n"
            for i in here:
                command("ip", "netns", "exec", self.spaces[i], "nft", "-f", "-", text=rules)

    def unite(self) -> None:
        for space in self.spaces:
            command("ip", "netns", "exec", space, "nft", "delete", "table", "inet", "cut")

    def sent(self, peer: int) -> int:
        """Bytes that a peer has sent."""
        words = "ip", "netns", "exec", self.spaces[peer], "cat", "/sys/class/net/net/statistics/tx_bytes"
        return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


class Federation:
    """Peers that run, and when each of their rounds was over."""

    def __init__(self, folder: Path, peers: int, hidden: list[int], network: Network | None = None) -> None:
        self.names = [f"peer-{i}" for i in range(peers)]
        self.folder, self._network = folder, network
        config = make({**CONFIG, "model": {"name": "mlp", "hidden": hidden}, "peers": peers})
        hosts = None if network is None else network.hosts
        self.files = write_files(config, peers, folder, "free", hosts, lease=LEASE, wait_for=peers - 1)
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.seen: list[dict[int, float]] = [{} for _ in range(peers)]  # rounds, and when each was first seen
        self.unsaved: set[tuple[int, int]] = set()  # peers, and rounds that they had not saved when they ended
        self._stopped = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        while not self._stopped.wait(0.05):
            for i, seen in enumerate(self.seen):
                now = time.monotonic()
                for line in self.lines(i):
                    seen.setdefault(line["round"], now)

    def change(self, peer: int, **keys: Any) -> None:
        """Change keys of [peer]."""
        table = tomllib.loads(self.files[peer].read_text())
        self.files[peer].write_text(tomli_w.dumps({**table, "peer": {**table["peer"], **keys}}))

    def start(self, *peers: int, prefix: Sequence[str] = (), **environment: str) -> None:
        for i in peers:
            inside = () if self._network is None else ("ip", "netns", "exec", self._network.spaces[i])
            words = [*inside, *prefix, sys.executable, "-m", "homophily", "peer", str(self.files[i])]
            settings = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
            with self.log(i).open("ab") as out:
                self.running[i] = subprocess.Popen(words, stdout=out, stderr=out, env=settings)

    def log(self, peer: int) -> Path:
        return self.files[peer].with_suffix(".log")

    def kill(self, peer: int) -> None:
        process = self.running.pop(peer)
        process.kill()
        process.wait()
        self._leave_out_unsaved(peer)

    def end(self, peer: int) -> int:
        """Wait until a peer ends by itself; its exit code."""
        process = self.running[peer]
        until(lambda: process.poll() is not None, f"{self.names[peer]} ends")
        del self.running[peer]
        self._leave_out_unsaved(peer)
        return process.returncode

    def _leave_out_unsaved(self, peer: int) -> None:
        saved = [path.name for path in (self.state(peer) / "checkpoints").glob("round-*") if not path.suffix]
        last = max((int(name.rpartition("-")[2]) for name in saved), default=0)
        self.unsaved |= {(peer, line["round"]) for line in self.lines(peer) if line["round"] > last}

    def state(self, peer: int) -> Path:
        table = tomllib.loads(self.files[peer].read_text())["peer"]
        return self.folder / table.get("state", self.names[peer])

    def lines(self, peer: int) -> list[dict[str, Any]]:
        folder = self.state(peer)
        return Run(folder).metrics() if (folder / "config.toml").is_file() else []

    def time(self, peer: int) -> float:
        """The time of the last status of a peer, by its clock."""
        return float(status(self.state(peer))["time"])

    def all_meet(self, *peers: int) -> float:
        """Seconds until each of these has met all others of them, and nobody else, in a round that is over from now."""
        before = {i: len(self.lines(i)) for i in peers}

        def met(i: int) -> bool:
            others = {self.names[j] for j in peers if j != i}
            return any(set(line["met"]) == others for line in self.lines(i)[before[i] :])

        return until(lambda: all(met(i) for i in peers), f"{[self.names[i] for i in peers]} meet each other")

    def longest_pause(self, peers: Sequence[int], since: float, to: float) -> float:
        """The longest time between two rounds of a peer, of those that overlap with a period."""
        pauses = []
        for i in peers:
            times = sorted(self.seen[i].values())
            pauses += [b - a for a, b in pairwise(times) if b > since and a < to]
        return max(pauses)

    def lost(self, peer: int) -> int:
        """Rounds that were over and are not in the state folder any more."""
        seen = list(self.seen[peer])  # first: the peer may go on
        kept = {line["round"] for line in self.lines(peer)}
        return sum(r not in kept and (peer, r) not in self.unsaved for r in seen)

    def close(self) -> None:
        self._stopped.set()
        self._watcher.join()
        for i in list(self.running):
            self.kill(i)


@contextmanager
def federation(peers: int, hidden: list[int], network: Network | None = None) -> Iterator[Federation]:
    with tempfile.TemporaryDirectory() as folder:
        made = Federation(Path(folder), peers, hidden, network)
        try:
            yield made
        except BaseException:
            for i in range(peers):
                if made.log(i).is_file():
                    print(made.names[i], made.log(i).read_text()[-1500:], sep="\n", file=sys.stderr)
            raise
        finally:
            made.close()
