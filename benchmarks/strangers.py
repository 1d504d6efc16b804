"""Connections of strangers to a peer's port: what they do to members, and the memory of the peer.

    python benchmarks/strangers.py [--connections 0 100 1000 10000] [--kinds idle garbage hello failing]
                                   [--without-layer]

idle: connections that send nothing; garbage: bytes that are not TLS; hello: a handshake that is begun and not
continued; failing: a handshake that fails. They come from 100 loopback addresses. A member joins when all of them are
open, and another one 12 seconds later, when zenoh's handshakes time out; they give up after 60 s. A member that was
connected before sends a request every 50 ms. --without-layer: zenoh accepts connections itself.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import resource
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from homophily.peer import certificates
from homophily.peer.refusals import Refusals
from homophily.peer.transport import Address, LinkHandlers, NoAnswer, ZenohLinks

NAMES = ("alice", "bob", "carol")
SOURCES = 100  # loopback addresses
TIMEOUT, PATIENCE, PAUSE = 12.0, 60.0, 0.05  # seconds


def links(folder: Path, name: str, listen: tuple[str, ...], connect: tuple[str, ...]) -> ZenohLinks:
    tls = folder / "ca.pem", folder / f"{name}.pem", folder / f"{name}.key"
    return ZenohLinks(Address(name, "benchmark", NAMES, listen, connect, False, 3.0, tls))


def serve(folder: Path, port: int, layered: bool) -> None:
    """A peer that listens."""
    allow_many_files()
    alice = links(folder, "alice", (f"127.0.0.1:{port}",), ())
    nothing = [lambda given: None] * 3
    alice.listen(LinkHandlers(lambda message: None, lambda request: request.answer(b"yes"), *nothing))
    if layered:
        log = logging.getLogger("strangers")
        alice.bound_strangers(Refusals(log), log)
    time.sleep(3600)


@contextmanager
def listening(folder: Path, port: int, layered: bool) -> Iterator[int]:
    """The process id of a peer that listens."""
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(folder, port, layered))
    process.start()
    try:
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        time.sleep(1.0)  # until the accept process has started
        assert process.pid is not None
        yield process.pid
    finally:
        process.kill()
        process.join()


def stranger(kind: str, number: int, port: int) -> socket.socket | None:
    """A connection of a stranger; None: it was refused."""
    raw = socket.socket()
    raw.settimeout(2.0)
    try:
        raw.bind((f"127.0.1.{1 + number % SOURCES}", 0))
        raw.connect(("127.0.0.1", port))
        if kind == "garbage":
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
        if kind in ("hello", "failing"):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            outgoing = ssl.MemoryBIO()
            with suppress(ssl.SSLWantReadError):
                context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
            raw.sendall(outgoing.read() + (b"nonsense" if kind == "failing" else b""))
    except OSError:
        raw.close()
        return None
    return raw


def memory(pid: int) -> float:
    """Resident memory of a process and those that it started, in MB."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    children = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return int(lines["VmRSS"].split()[0]) / 1024 + sum(memory(int(child)) for some in children for child in some)


def joins(folder: Path, port: int) -> float | None:
    """Seconds until a member has joined; None: it has not."""
    began = time.monotonic()
    carol = links(folder, "carol", (), (f"127.0.0.1:{port}",))
    try:
        while not carol.neighbours():
            if time.monotonic() - began > PATIENCE:
                return None
            time.sleep(0.02)
        return time.monotonic() - began
    finally:
        carol.close()


class Connected:
    """A member that is connected: it sends requests, and measures how long the answers take."""

    def __init__(self, folder: Path, port: int) -> None:
        self._links = links(folder, "bob", (), (f"127.0.0.1:{port}",))
        while not self._links.neighbours():
            time.sleep(0.02)
        self.longest, self.lost = 0.0, 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        while not self._stopped.wait(PAUSE):
            began = time.monotonic()
            try:
                self._links.request("alice", "question", 10.0)
                self.longest = max(self.longest, time.monotonic() - began)
            except NoAnswer:
                self.lost += 1

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._links.close()


def measure(kind: str, connections: int, layered: bool) -> str:
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        folder = Path(made)
        certificates.init(folder)
        for name in NAMES:
            certificates.issue(folder, name, ["127.0.0.1"])
        port = free_port()
        pid = stack.enter_context(listening(folder, port, layered))
        bob = Connected(folder, port)
        stack.callback(bob.close)
        joins(folder, port)
        before = memory(pid)
        opened = [raw for i in range(connections) if (raw := stranger(kind, i, port)) is not None]
        stack.callback(lambda: [raw.close() for raw in opened])
        at_once = joins(folder, port)
        grown = memory(pid) - before
        time.sleep(TIMEOUT)
        later = joins(folder, port)
    shown = [f"{value:.1f}" if value is not None else f"not in {PATIENCE:.0f}" for value in (at_once, later)]
    cells = [
        "yes" if layered else "no",
        kind,
        f"{connections:,}",
        *shown,
        f"{grown:.0f}",
        f"{bob.longest:.2f}",
        bob.lost,
    ]
    return f"| {' | '.join(map(str, cells))} |"


def allow_many_files() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, nargs="+", default=[0, 100, 1000, 10_000])
    parser.add_argument("--kinds", nargs="+", default=["idle", "garbage", "hello", "failing"])
    parser.add_argument("--without-layer", action="store_true")
    given = parser.parse_args()
    allow_many_files()
    columns = ["accept layer", "kind", "connections", "joined at once, s", "joined after 12 s, s", "memory, MB"]
    columns += ["longest answer to a connected member, s", "answers missing"]
    print(f"| {' | '.join(columns)} |\n{'| --- ' * len(columns)}|")
    for kind in given.kinds:
        for connections in given.connections:
            print(measure(kind, connections, not given.without_layer), flush=True)


if __name__ == "__main__":
    main()
