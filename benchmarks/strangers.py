"""Connections of strangers to a peer's port: how long a member needs to join meanwhile, and the peer's memory.

    python benchmarks/strangers.py [--connections 0 100 1000 10000] [--kinds idle garbage hello] [--haproxy]

idle: connections that send nothing; garbage: that send bytes that are not TLS; hello: that begin a handshake without a
certificate. Each strangers' connection comes from one of 100 loopback addresses. The member joins 12 seconds after the
last of them, when zenoh's handshakes time out, and gives up after 60 s. --haproxy: with the proxy of docs/deploy.md
before the peer's port.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from homophily.peer import certificates
from homophily.peer.transport import Address, LinkHandlers, ZenohLinks

NAMES = ("alice", "bob")
SOURCES = 100  # loopback addresses
TIMEOUT, PATIENCE = 12.0, 60.0  # seconds
HAPROXY = """global
    maxconn 4000
defaults
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
frontend strangers
    bind 127.0.0.1:{front} maxconn 4000
    stick-table type ip size 100k expire 1m store conn_cur,conn_rate(10s)
    tcp-request connection track-sc0 src
    tcp-request connection reject if {{ sc0_conn_cur gt 10 }} || {{ sc0_conn_rate gt 20 }}
    tcp-request inspect-delay 3s
    tcp-request content accept if {{ req.ssl_hello_type 1 }}
    tcp-request content reject
    default_backend peer
backend peer
    server peer 127.0.0.1:{back}
"""


def links(folder: Path, name: str, listen: tuple[str, ...], connect: tuple[str, ...]) -> ZenohLinks:
    tls = folder / "ca.pem", folder / f"{name}.pem", folder / f"{name}.key"
    return ZenohLinks(Address(name, "benchmark", NAMES, listen, connect, False, 3.0, tls))


def serve(folder: Path, port: int) -> None:
    """A peer that listens."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    alice = links(folder, "alice", (f"127.0.0.1:{port}",), ())
    alice.listen(LinkHandlers(*[lambda given: None] * 5))
    time.sleep(3600)


@contextmanager
def listening(folder: Path, port: int) -> Iterator[int]:
    """The process id of a peer that listens."""
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(folder, port))
    process.start()
    try:
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        assert process.pid is not None
        yield process.pid
    finally:
        process.kill()
        process.join()


@contextmanager
def proxied(folder: Path, front: int, back: int) -> Iterator[None]:
    (folder / "haproxy.cfg").write_text(HAPROXY.format(front=front, back=back))
    process = subprocess.Popen(["haproxy", "-db", "-q", "-f", str(folder / "haproxy.cfg")])
    time.sleep(1.0)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def stranger(kind: str, number: int, port: int) -> socket.socket | None:
    """A connection of a stranger; None: it was refused."""
    raw = socket.socket()
    raw.settimeout(2.0)
    try:
        raw.bind((f"127.0.1.{1 + number % SOURCES}", 0))
        raw.connect(("127.0.0.1", port))
        if kind == "garbage":
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
        if kind == "hello":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            outgoing = ssl.MemoryBIO()
            with suppress(ssl.SSLWantReadError):
                context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
            raw.sendall(outgoing.read())
    except OSError:
        raw.close()
        return None
    return raw


def memory(pid: int) -> float:
    """Resident memory in MB."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines["VmRSS"].split()[0]) / 1024


def joins(folder: Path, port: int) -> float | None:
    """Seconds until a member has joined; None: it has not."""
    began = time.monotonic()
    bob = links(folder, "bob", (), (f"127.0.0.1:{port}",))
    try:
        while not bob.neighbours():
            if time.monotonic() - began > PATIENCE:
                return None
            time.sleep(0.02)
        return time.monotonic() - began
    finally:
        bob.close()


def measure(kind: str, connections: int, haproxy: bool) -> str:
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        folder = Path(made)
        certificates.init(folder)
        for name in NAMES:
            certificates.issue(folder, name, ["127.0.0.1"])
        front, back = free_port(), free_port()
        port = front if haproxy else back
        pid = stack.enter_context(listening(folder, back))
        if haproxy:
            stack.enter_context(proxied(folder, front, back))
        joins(folder, port)
        before = memory(pid)
        opened = [raw for i in range(connections) if (raw := stranger(kind, i, port)) is not None]
        stack.callback(lambda: [raw.close() for raw in opened])
        at_once = joins(folder, port)
        grown = memory(pid) - before
        time.sleep(TIMEOUT)
        later = joins(folder, port)
    shown = [f"{value:.1f}" if value is not None else f"not in {PATIENCE:.0f}" for value in (at_once, later)]
    return f"| {kind} | {connections:,} | {shown[0]} | {shown[1]} | {grown:.0f} |"


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, nargs="+", default=[0, 100, 1000, 10_000])
    parser.add_argument("--kinds", nargs="+", default=["idle", "garbage", "hello"])
    parser.add_argument("--haproxy", action="store_true")
    given = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print("| kind | connections | joined at once, s | joined after 12 s, s | memory, MB |")
    print("| --- | --- | --- | --- | --- |")
    for kind in given.kinds:
        for connections in given.connections:
            print(measure(kind, connections, given.haproxy), flush=True)


if __name__ == "__main__":
    main()
