"""Runs a federation as real peers on this machine, one process each, and compares it with its simulation."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import tomli_w
import torch
from torch import Tensor

from homophily.atomic_io import read_json, read_tensors
from homophily.config.schema import Config
from homophily.data.constants import AgreedScale
from homophily.errors import UserError
from homophily.experiments.simulate import run as simulate
from homophily.peer import certificates
from homophily.peer.process import Peer, stopping
from homophily.peer.setup import peer_method
from homophily.runs.reader import Run, runs_inside
from homophily.simulation.configuration import over
from homophily.simulation.setup import graph_of

_HOST = "127.0.0.1"
_PORT = 7447  # if every peer has its own host
_ERROR_CHARS = 2000  # of a peer's output, repeated in an error message
_PRELOADED = [
    "homophily.cli.app",
    "sklearn.datasets",
    "torch._dynamo",
]  # which torch's optimisers import when first used
_LOCKSTEP_TIMEOUTS = {"deadline": 600.0, "lease": 30.0}  # in lockstep all wait for a slow peer


@dataclass(frozen=True)
class Deployment:
    """The runs of the real peers and of the simulation."""

    folder: Path
    peers: list[Run]
    simulation: Run
    seconds: float

    def result(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        real, simulated = torch.cat([rows(run) for run in self.peers]), rows(self.simulation)
        private = self.simulation.config.privacy is not None  # noise that others can repeat protects nobody
        both = [_mean_score([run.summary for run in self.peers]), _mean_score([self.simulation.summary])]
        rounds = self.simulation.summary["rounds"]
        bills = [_bill(self.peers, rounds), _bill([self.simulation], rounds)]
        return {
            "identical": None if private else bool(((real == simulated) | (real.isnan() & simulated.isnan())).all()),
            "largest_difference": _largest_difference(real.double(), simulated.double()),
            "bills_identical": None if private else bills[0] == bills[1],
            "bill": bills[0],
            "simulated_bill": bills[1],
            "headline": self.simulation.headline.name,
            "score": both[0],
            "simulated_score": both[1],
            "peers": len(self.peers),
            "rounds": rounds,
            "seconds": round(self.seconds, 1),
            "run": str(self.folder),
        }


def _mean_score(summaries: Sequence[dict[str, Any]]) -> float | None:
    """The mean of the headline metric; None if it is unknown for a peer."""
    found = [summary[summary["headline"]] for summary in summaries]
    known = [float(value) for value in found if value is not None]
    return sum(known) / len(known) if len(known) == len(found) else None


def _largest_difference(a: Tensor, b: Tensor) -> float | None:
    """The largest difference of two models' weights; None if only one of them has diverged."""
    finite = a.isfinite() & b.isfinite()
    if not torch.equal(a.isfinite(), b.isfinite()):
        return None
    return float((a - b)[finite].abs().max()) if bool(finite.any()) else 0.0


def _bill(runs: Sequence[Run], rounds: int) -> dict[str, Any]:
    """The communication of all peers of some runs, under the names of a summary, in exact numbers.

    rounds: of the federation; a peer that stops early plays fewer.
    """
    received = [models for run in runs for models in run.scores["models_received"]]
    peers, by_hops = len(received), Counter[str]()
    for run in runs:
        everyone = len(run.scores["models_received"]) * run.summary["rounds"]
        each = run.summary["models_per_peer_round_by_hops"].items()
        by_hops.update({hops: round(models * everyone) for hops, models in each})
    total = sum(run.summary["bytes_sent_per_peer"] * len(run.scores["models_received"]) for run in runs)
    return {
        "models_sent_per_peer": sum(received) / peers,
        "bytes_sent_per_peer": round(total) / peers,
        "peak_models_per_peer_round": max(run.summary["peak_models_per_peer_round"] for run in runs),
        "models_per_peer_round_by_hops": {
            hops: by_hops[hops] / (peers * max(1, rounds)) for hops in sorted(by_hops, key=int)
        },
        "models_received": received,
    }


def rows(run: Run) -> Tensor:
    """A run's final models [N, D]."""
    return read_tensors(run.path / "models.safetensors")["rows"]


def deploy(
    config: Config, peers: int, folder: Path, pace: str = "lockstep", progress: Callable[[str], None] = print
) -> Deployment:
    """Simulate a config with the reference engine, then run it with real peers over mutual TLS on loopback."""
    if config.peers not in (None, peers):
        raise UserError(f"peers = {config.peers}: must be {peers}, the number of real peers, or left out")
    config = over(config, {"peers": peers, "engine": "one-by-one"})
    peer_method(config, peers)  # raises if real peers cannot use it
    progress("simulating")  # first: it reports mistakes in the config
    simulated = simulate(config, out=folder / "simulation", device="cpu")
    files = write_files(config, peers, folder, pace)
    progress(f"running {peers} real peers, a process each, in {folder}")
    began = time.monotonic()
    with stopping():
        _run_all(files)
    seconds = time.monotonic() - began
    return Deployment(folder, [Run(folder / f"peer-{i}") for i in range(peers)], simulated, seconds)


def write_files(
    config: Config, peers: int, folder: Path, pace: str, hosts: Sequence[str] | None = None, **keys: Any
) -> list[Path]:
    """Write a certificate and a file for each peer, which dials the neighbours with smaller ids.

    hosts: an address for each peer; None: all peers are on this machine.
    """
    config = _with_constants(config)
    graph, _ = graph_of(config, peers)
    names = [f"peer-{i}" for i in range(peers)]
    certs = folder / "certs"
    certificates.init(certs)
    addresses = [(_HOST, port) for port in _free_ports(peers)] if hosts is None else [(host, _PORT) for host in hosts]
    files = []
    for i, name in enumerate(names):
        certificates.issue(certs, name, [addresses[i][0]])
        dialled = [j for j in (range(i) if graph is None else sorted(graph[i])) if j < i]
        table = {
            "name": name,
            "allow": names,
            "listen": ["{}:{}".format(*addresses[i])],
            "connect": ["{}:{}".format(*addresses[j]) for j in dialled],
            "mesh": "full" if graph is None else "partial",
            "device": "cpu",  # the simulation beside them is on the CPU, where the bits are the same
            "pace": pace,
            "share": i,
            **(_LOCKSTEP_TIMEOUTS if pace == "lockstep" else {"wait_for": peers - 1}),
            **keys,
        }
        path = folder / f"{name}.toml"
        path.write_text(tomli_w.dumps({**config.toml(), "peer": table}), encoding="utf-8")
        files.append(path)
    return files


def _with_constants(config: Config) -> Config:
    """The config with the constants of data.scale themselves: the path of their file may be relative."""
    scale = config.data.scale
    if not isinstance(scale, str):
        return config
    return over(config, {"data": {"scale": AgreedScale.read(scale).constants.table}})


def run_peer(file: Path, log: Path) -> None:
    """Run a peer in this process. log: where its output goes."""
    with log.open("ab") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    try:
        Peer(file, alone=True).result()
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def start_peer(file: Path, log: Path, be: Callable[[Path, Path], None] = run_peer) -> BaseProcess:
    """Start a process for a peer, with its output in a file. It is forked from one that has loaded the libraries."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    process = context.Process(target=be, args=(file, log))
    process.start()
    return process


def _run_all(files: Sequence[Path]) -> None:
    """Run all peers until they end; if one fails, stop the others and report its output."""
    logs = [file.with_suffix(".log") for file in files]
    running = [start_peer(file, log) for file, log in zip(files, logs, strict=True)]
    try:
        while True:
            alive = [process.sentinel for process in running if process.is_alive()]
            failed = [i for i, process in enumerate(running) if process.exitcode not in (None, 0)]
            if failed:
                output = logs[failed[0]].read_text(encoding="utf-8", errors="replace")[-_ERROR_CHARS:].strip()
                raise UserError(f"{files[failed[0]].stem} failed: {output}")
            if not alive:
                return
            wait(alive, timeout=1.0)
    finally:
        for process in running:
            if process.is_alive():
                process.terminate()
        for process in running:
            process.join()


def _free_ports(count: int) -> list[int]:
    """Ports that are free now."""
    held = [socket.socket() for _ in range(count)]
    try:
        for each in held:
            each.bind((_HOST, 0))
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()


def status(folder: Path) -> dict[str, Any]:
    """The status that a peer wrote last."""
    path = folder / "status.json"
    if not path.is_file():
        raise UserError(
            f"{folder} is not the state folder of a peer: it has no status.json (a peer writes it when it starts)"
            f"{runs_inside(folder)}"
        )
    found = read_json(path)
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged: it must hold a JSON object")
    return found
