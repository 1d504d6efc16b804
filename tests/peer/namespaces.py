"""Networks on this machine: a network namespace for each peer, and a virtual cable for each link."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterable
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from homophily.peer.deploy import run_peer, start_peer
from tests.peer.field import Field

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
Link = tuple[int, int]


def obstacle(*tools: str) -> str | None:
    """Why there can be no namespaces here."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", *tools) if shutil.which(tool) is None]
    return f"needs {missing[0]}" if missing else None


def run(*words: object, text: str | None = None) -> None:
    done = subprocess.run([str(word) for word in words], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.stderr}"


class Network:
    """A host for each peer, reachable from its neighbours only."""

    def __init__(self, peers: int, links: Iterable[Link]) -> None:
        self.spaces = [f"hph{os.getpid()}-{i}" for i in range(peers)]
        self.hosts = [f"10.77.1.{i + 1}" for i in range(peers)]
        self.links = list(links)

    def __enter__(self) -> "Network":
        for space, host in zip(self.spaces, self.hosts, strict=True):
            run("ip", "netns", "add", space)
            run("ip", "-n", space, "link", "set", "lo", "up")
            run("ip", "-n", space, "address", "add", f"{host}/32", "dev", "lo")
        for a, b in self.links:
            ends = "name", f"to{b}", "netns", self.spaces[a], "type", "veth", "peer"
            run("ip", "link", "add", *ends, "name", f"to{a}", "netns", self.spaces[b])
        self.join(*self.links)
        return self

    def __exit__(self, *error: object) -> None:
        for space in self.spaces:
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)

    def join(self, *links: Link) -> None:
        for a, b in links:
            for one, other in ((a, b), (b, a)):
                run("ip", "-n", self.spaces[one], "link", "set", f"to{other}", "up")
        for a, b in links:
            for one, other in ((a, b), (b, a)):
                way = self.hosts[other], "dev", f"to{other}", "src", self.hosts[one]
                run("ip", "-n", self.spaces[one], "route", "replace", *way)

    def cut(self, *links: Link) -> None:
        for a, b in links:
            run("ip", "-n", self.spaces[a], "link", "set", f"to{b}", "down")

    def slow_down(self, rate: str) -> None:
        """All links, in both directions."""
        for a, b in self.links:
            for one, other in ((a, b), (b, a)):
                limit = "tbf", "rate", rate, "burst", "256kb", "latency", "100ms"
                run("tc", "-n", self.spaces[one], "qdisc", "add", "dev", f"to{other}", "root", *limit)

    def lose(self, percent: int) -> None:
        """That share of all packets."""
        rules = f"""table inet hph {{
            chain arriving {{
                type filter hook input priority 0; policy accept;
                numgen random mod 100 < {percent} counter drop
            }}
        }}"""
        for space in self.spaces:
            run("ip", "netns", "exec", space, "nft", "-f", "-", text=rules)

    def lost(self) -> bool:
        """Whether packets were lost."""
        listed = [
            subprocess.run(["ip", "netns", "exec", s, "nft", "list", "ruleset"], capture_output=True, text=True).stdout
            for s in self.spaces
        ]
        return any("counter packets" in text and "counter packets 0 " not in text for text in listed)


class SpreadField(Field):
    """A field of peers that are on hosts of their own."""

    def __init__(self, network: Network, folder: Path, pace: str = "free", **keys: Any) -> None:
        peer = {**keys.pop("peer", {}), "hosts": network.hosts}
        super().__init__(folder, len(network.hosts), pace, peer, **keys)
        self._network = network

    def _process(self, peer: int) -> BaseProcess:
        file = self.files[peer]
        return start_peer(file, file.with_suffix(".log"), partial(_inside, self._network.spaces[peer]))


def _inside(space: str, file: Path, log: Path) -> None:
    with Path("/run/netns", space).open() as door:
        if ctypes.CDLL(None, use_errno=True).setns(door.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter {space}")
    run_peer(file, log)
