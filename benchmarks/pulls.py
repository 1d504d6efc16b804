"""How fast real peers pull models, compared with bare zenoh, which transfers the same bytes and checks nothing.

    python benchmarks/pulls.py [--peers 20] [--pulls 5] [--megabytes 2] [--repeats 10]

Every peer is a process; all are in one mesh over mutual TLS on loopback. All peers pull at once, alternately by
BlobTransfer (manifest, chunks, signature, hashes) and by one query with one reply per model, the latter with zenoh's
default settings and with the transmission queue of our links. Publishing is not timed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zenoh

from homophily.peer.blob_transfer import BlobId, BlobTransfer
from homophily.peer.deploy import write_files
from homophily.peer.identity import Authority, Identity
from homophily.peer.manifest import BlobKind
from homophily.peer.membership import Members
from homophily.peer.refusals import Refusals
from homophily.peer.settings import PeerSettings, load
from homophily.peer.transport import QUEUE_BATCHES, Address, LinkHandlers, ZenohLinks
from homophily.simulation.configuration import make

TIMEOUT = 120.0  # seconds
OURS, BARE, QUEUED = "BlobTransfer", "bare zenoh, one reply", "bare zenoh with our queue"


@dataclass(frozen=True)
class Job:
    peers: int
    pulls: int
    size: int  # bytes
    repeats: int

    def partners(self, me: int, turn: int) -> list[int]:
        """Return the peers to pull from: different ones each turn, each peer asked equally often."""
        return [(me + 1 + (turn * self.pulls + i) % (self.peers - 1)) % self.peers for i in range(self.pulls)]


class Ours:
    """Pulls models by homophily's BlobTransfer."""

    def __init__(self, asked: PeerSettings, job: Job) -> None:
        peer = asked.peer
        self._names, self._job = peer.allow, job
        identity, authority = (
            Identity(peer.name, asked.certificate, asked.key),
            Authority(asked.path(peer.ca), peer.allow),
        )
        most: dict[BlobKind, int] = {"model": job.size, "before": job.size, "print": job.size}
        address = Address(
            peer.name, peer.federation, tuple(peer.allow), tuple(peer.listen), tuple(peer.connect), True, TIMEOUT,
            (asked.path(peer.ca), asked.certificate, asked.key),
        )  # fmt: skip
        self._links = links = ZenohLinks(address)
        members = Members(peer.name, peer.allow, True, links.neighbours)
        self._transfer = BlobTransfer(
            peer.federation, identity, authority, most, links, members, Refusals(), timeout=TIMEOUT, slots=peer.slots,
            waiting=peer.waiting, pulls=job.pulls, window=peer.window, cache_bytes=peer.cache_mb << 20,
        )  # fmt: skip
        asked_for = self._transfer.handle_request
        links.listen(
            LinkHandlers(lambda data: None, asked_for, members.connected, members.disconnected, lambda name: None)
        )

    def ready(self) -> bool:
        return len(self._links.neighbours()) == self._job.peers - 1

    def publish(self, turn: int) -> None:
        self._transfer.publish("model", turn, os.urandom(self._job.size))

    def pull(self, partners: list[int], turn: int) -> None:
        blobs = [BlobId(self._names[i], "model", turn) for i in partners]
        came = self._transfer.fetch_all(blobs, len, time.monotonic() + TIMEOUT)
        assert all(size == self._job.size for size in came.values()), came

    def close(self) -> None:
        self._transfer.close()
        self._links.close()


class Bare:
    """Pulls a model by one query with one reply. queue: size of zenoh's transmission queue; None: zenoh's default."""

    def __init__(self, asked: PeerSettings, job: Job, ports: int, queue: int | None = None) -> None:
        peer = asked.peer
        self._me, self._job, self._model = peer.allow.index(peer.name), job, b""
        key, certificate = str(asked.key), str(asked.certificate)
        config = zenoh.Config()
        for name, value in {
            "mode": "peer",
            "listen/endpoints": [f"tls/{_moved(address, ports)}" for address in peer.listen],
            "connect/endpoints": [f"tls/{_moved(address, ports)}" for address in peer.connect],
            "connect/timeout_ms": -1,
            "connect/exit_on_failure": False,
            "scouting/multicast/enabled": False,
            "transport/shared_memory/enabled": False,
            "transport/link/tx/lease": int(1000 * TIMEOUT),
            **({} if queue is None else {"transport/link/tx/queue/size/data": queue}),
            "transport/link/tls": {
                "root_ca_certificate": str(asked.path(peer.ca)),
                "enable_mtls": True,
                "listen_private_key": key,
                "listen_certificate": certificate,
                "connect_private_key": key,
                "connect_certificate": certificate,
                "verify_name_on_connect": True,
            },
        }.items():
            config.insert_json5(name, json.dumps(value))
        self._session = zenoh.open(config)
        self._declared = self._session.declare_queryable(f"bare/{self._me}", self._answer)
        self._pool = ThreadPoolExecutor(job.pulls)

    def _answer(self, query: zenoh.Query) -> None:
        query.reply(query.key_expr, self._model)
        query.drop()

    def ready(self) -> bool:
        return len({str(link.zid) for link in self._session.info.links()}) == self._job.peers - 1

    def publish(self, turn: int) -> None:
        self._model = os.urandom(self._job.size)

    def pull(self, partners: list[int], turn: int) -> None:
        sizes = list(self._pool.map(self._get, partners))
        assert sizes == [self._job.size] * len(partners), sizes

    def _get(self, partner: int) -> int:
        reply = next(iter(self._session.get(f"bare/{partner}", timeout=TIMEOUT)), None)
        return len(reply.ok.payload.to_bytes()) if reply is not None and reply.ok is not None else -1

    def close(self) -> None:
        self._pool.shutdown()
        self._session.close()


def _moved(address: str, ports: int) -> str:
    """Return the address with its port increased by ``ports``."""
    host, _, port = address.rpartition(":")
    return f"{host}:{(int(port) + ports - 1024) % 64_512 + 1024}"


@dataclass
class Meeting:
    """The barrier at which all processes wait, and the measured times."""

    barrier: Any
    seconds: Any = field(default_factory=list)

    def timed(self, work: Callable[..., None], *arguments: Any) -> float:
        self.barrier.wait(TIMEOUT)
        began = time.perf_counter()
        work(*arguments)
        self.barrier.wait(TIMEOUT)
        return time.perf_counter() - began


def run_peer(file: Path, job: Job, meeting: Meeting) -> None:
    asked = load(file)
    me = asked.peer.allow.index(asked.peer.name)
    variants: dict[str, Ours | Bare] = {
        OURS: Ours(asked, job),
        BARE: Bare(asked, job, 20_000),
        QUEUED: Bare(asked, job, 40_000, QUEUE_BATCHES),
    }
    end = time.monotonic() + TIMEOUT
    while late := [name for name, variant in variants.items() if not variant.ready()]:
        assert time.monotonic() < end, f"{asked.peer.name} is not connected to all peers by {late}"
        time.sleep(0.1)
    meeting.barrier.wait(TIMEOUT)
    for turn in range(job.repeats + 1):  # the first is not counted
        for name, variant in variants.items():
            variant.publish(turn)
            seconds = meeting.timed(variant.pull, job.partners(me, turn), turn)
            if me == 0 and turn:
                meeting.seconds.append((name, seconds))
    for variant in variants.values():
        variant.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=20)
    parser.add_argument("--pulls", type=int, default=5)
    parser.add_argument("--megabytes", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=10)
    asked = parser.parse_args()
    job = Job(asked.peers, asked.pulls, int(asked.megabytes * 1e6), asked.repeats)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["homophily.peer.process"])
    with tempfile.TemporaryDirectory() as folder, context.Manager() as manager:
        files = write_files(make({"peers": job.peers}), job.peers, Path(folder), "free")
        meeting = Meeting(context.Barrier(job.peers), manager.list())
        running = [context.Process(target=run_peer, args=(file, job, meeting)) for file in files]
        for process in running:
            process.start()
        for process in running:
            process.join()
        measured = list(meeting.seconds)
    total = job.peers * job.pulls * job.size / 1e6
    seconds = {name: [s for n, s in measured if n == name] for name in (BARE, QUEUED, OURS)}
    print(
        f"{job.peers} peers pull {job.pulls} models of {asked.megabytes:g} MB each: {total:g} MB, {job.repeats} times\n"
    )
    print("| | seconds (median) | MB/s (median) | MB/s (range) |\n| --- | --- | --- | --- |")
    for name, taken in seconds.items():
        rates = sorted(total / s for s in taken)
        middle = statistics.median(taken)
        print(f"| {name} | {middle:.2f} | {total / middle:.0f} | {rates[0]:.0f} to {rates[-1]:.0f} |")
    print()
    for name in (BARE, QUEUED):
        whole = sum(seconds[name]) / sum(seconds[OURS])
        median = statistics.median(bare / ours for bare, ours in zip(seconds[name], seconds[OURS], strict=True))
        print(f"{OURS} at {100 * median:.0f}% of {name} in the median turn, {100 * whole:.0f}% over all turns")


if __name__ == "__main__":
    main()
