"""The process that accepts connections before zenoh does. accept_layer.py starts it, with the standard library only.

It passes a connection on once it has begun a TLS handshake, and looks at nothing else: TLS is end to end. Connections
that are not established yet are bounded in number, per address and in time. zenoh pauses for 100 ms after a failed
handshake, so few of them are passed on per second: first those from addresses with the fewest failures, then the
newest. An established connection is never closed.

It reads from its standard input which connections are established, a line each, and ends with it. It writes to its
standard output which connections it refused: a JSON object with new ones by reason, a line each.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import resource
import signal
import socket
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

HELLO_SECONDS = 3.0  # for the first message of a handshake
TURN_SECONDS = 10.0  # that a connection then waits to be passed on
HANDSHAKE_SECONDS = 10.0  # until the connection is established
CLOSE_SECONDS = 10.0  # from the end of one direction to the end of the other
MOST_WAITING = 1000  # connections that are not passed on yet
MOST_PER_ADDRESS = 32
BURST, PER_SECOND = 8, 5.0  # connections passed on; those that are established do not count
_MOST_FAILURES = 10_000  # addresses whose failures are remembered
_HELLO_BYTES = 1 << 14  # at most
_BUFFER = 1 << 18
_REPORT_SECONDS = 1.0
_HANDSHAKE, _CLIENT_HELLO = 22, 1  # types of a TLS record, and of the message in it


@dataclass(frozen=True)
class Door:
    """A socket that strangers reach, and how zenoh's own socket for the same port is reached."""

    listening: socket.socket
    source: str  # connections from this address go to zenoh
    target: str

    async def dial(self) -> socket.socket:
        server = socket.socket(self.listening.family)
        try:
            server.setblocking(False)
            server.bind((self.source, 0))
            port = self.listening.getsockname()[1]
            await asyncio.get_running_loop().sock_connect(server, (self.target, port))
        except BaseException:
            server.close()
            raise
        return server

    def name_of(self, server: socket.socket) -> str:
        """A connection to zenoh, as zenoh names it."""
        host = self.source if server.family == socket.AF_INET else f"[{self.source}]"
        return f"{host}:{server.getsockname()[1]}"


@dataclass
class Admission:
    """Decides which connections wait, and which of them are passed on."""

    waiting: dict[str, dict[asyncio.Task[None], None]] = field(default_factory=dict)  # by address, oldest first
    turns: list[tuple[str, asyncio.Future[None]]] = field(default_factory=list)  # handshakes begun, oldest first
    unestablished: Counter[str] = field(default_factory=Counter)  # connections passed on, by address
    failures: dict[str, int] = field(default_factory=dict)  # by address
    refused: Counter[str] = field(default_factory=Counter)  # by reason, since the last report
    budget: float = BURST

    def add(self, address: str, task: asyncio.Task[None]) -> None:
        """A connection begins to wait; one of those that wait may have to end."""
        if len(self.waiting.get(address, ())) >= MOST_PER_ADDRESS:
            self.refuse("too many connections from one address")
            self._end_oldest(address)
        elif sum(map(len, self.waiting.values())) >= MOST_WAITING:
            self.refuse("too many connections")
            self._end_oldest(max(self.waiting, key=lambda other: len(self.waiting[other])))
        self.waiting.setdefault(address, {})[task] = None

    def refuse(self, reason: str) -> None:
        self.refused[reason] += 1

    def _end_oldest(self, address: str) -> None:
        task = next(iter(self.waiting[address]))
        task.cancel()
        self.remove(address, task)

    def remove(self, address: str, task: asyncio.Task[None]) -> None:
        """A connection does not wait any longer."""
        self.waiting.get(address, {}).pop(task, None)
        if not self.waiting.get(address, True):
            del self.waiting[address]

    async def turn(self, address: str) -> None:
        """Wait until a connection may be passed on."""
        turn = asyncio.get_running_loop().create_future()
        self.turns.append((address, turn))
        self.grant()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was granted at the same moment
                self.ended(address, False)
            raise
        finally:
            self.turns = [(other, each) for other, each in self.turns if each is not turn]

    def grant(self) -> None:
        """Pass on as many connections as the budget allows."""
        self.turns = [(address, turn) for address, turn in self.turns if not turn.done()]
        while self.budget >= 1 and self.turns:
            self.budget -= 1
            best = min(range(len(self.turns)), key=lambda at: (self._badness(self.turns[at][0]), -at))
            address, turn = self.turns.pop(best)
            self.unestablished[address] += 1
            turn.set_result(None)

    def _badness(self, address: str) -> int:
        return self.failures.get(address, 0) + self.unestablished[address]

    def ended(self, address: str, established: bool) -> None:
        """A connection that was passed on is established, or has failed."""
        self.unestablished[address] -= 1
        if not self.unestablished[address]:
            del self.unestablished[address]
        before = self.failures.pop(address, 0)
        if established:
            self.refill(1.0)
            return
        self.failures[address] = before + 1
        if len(self.failures) > _MOST_FAILURES:
            del self.failures[next(iter(self.failures))]

    def refill(self, more: float) -> None:
        self.budget = min(float(BURST), self.budget + more)
        self.grant()


class AcceptProcess:
    """Accepts connections and relays them."""

    def __init__(self) -> None:
        self._admission = Admission()
        self._passed_on: dict[str, asyncio.Event] = {}  # by the address that zenoh sees

    async def run(self, doors: list[Door]) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(0, self._read_established)
        await asyncio.gather(self._refill(), self._report(), *map(self._accept, doors))

    def _read_established(self) -> None:
        text = os.read(0, 1 << 16)
        if not text:
            os._exit(0)  # the peer has ended
        for address in text.decode().split():  # lines are shorter than what a pipe writes at once
            if (established := self._passed_on.get(address)) is not None:
                established.set()

    async def _refill(self) -> None:
        while True:
            await asyncio.sleep(1 / PER_SECOND)
            self._admission.refill(1.0)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            if self._admission.refused:
                print(json.dumps(self._admission.refused), flush=True)
                self._admission.refused.clear()

    async def _accept(self, door: Door) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0)  # otherwise many connections would leave no time to the others
            try:
                client, name = await loop.sock_accept(door.listening)
            except OSError:  # too many open files
                await asyncio.sleep(0.1)
                continue
            address = source_of(name[0])
            task = loop.create_task(self._serve(door, client, address))
            task.add_done_callback(partial(self._done, client, address))
            self._admission.add(address, task)

    def _done(self, client: socket.socket, address: str, task: asyncio.Task[None]) -> None:
        client.close()
        self._admission.remove(address, task)
        if not task.cancelled():
            task.exception()  # a broken connection is not an error of this process

    async def _serve(self, door: Door, client: socket.socket, address: str) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                hello = await read_hello(client)
        except (TimeoutError, OSError):
            hello = b""
        if not hello:
            self._admission.refuse("connection without a TLS handshake")
            return
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._admission.turn(address)
        except TimeoutError:
            self._admission.refuse("too many connections")
            return
        task = asyncio.current_task()
        assert task is not None
        self._admission.remove(address, task)  # from here on it is not ended for others
        await self._pass_on(door, client, address, hello)

    async def _pass_on(self, door: Door, client: socket.socket, address: str, hello: bytes) -> None:
        established = asyncio.Event()
        try:
            server = await door.dial()
        except OSError:
            self._admission.ended(address, False)
            return
        with server:
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            name = door.name_of(server)
            self._passed_on[name] = established
            ways = [asyncio.create_task(relay(client, server, hello)), asyncio.create_task(relay(server, client))]
            proof = asyncio.create_task(established.wait())
            try:
                await asyncio.wait([proof, *ways], timeout=HANDSHAKE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                del self._passed_on[name]
                self._admission.ended(address, established.is_set())
                if established.is_set():
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                    await asyncio.wait(ways, timeout=CLOSE_SECONDS)
            finally:  # the sockets are closed only after the relays have let them go
                for task in (proof, *ways):
                    task.cancel()
                await asyncio.gather(proof, *ways, return_exceptions=True)


async def read_hello(client: socket.socket) -> bytes:
    """The first message of a TLS handshake, and what came with it; empty if something else comes."""
    loop, data = asyncio.get_running_loop(), b""
    while len(data) < _HELLO_BYTES and (more := await loop.sock_recv(client, _HELLO_BYTES)):
        data += more
        head = data[:1] + data[5:6]
        if not bytes([_HANDSHAKE, _CLIENT_HELLO]).startswith(head):
            return b""
        if len(data) >= 5 and len(data) >= 5 + int.from_bytes(data[3:5]):
            return data
    return b""


async def relay(source: socket.socket, target: socket.socket, first: bytes = b"") -> None:
    """Pass bytes on until the source ends or one of the two fails."""
    loop, buffer = asyncio.get_running_loop(), memoryview(bytearray(_BUFFER))
    try:
        await loop.sock_sendall(target, first)
        while size := await loop.sock_recv_into(source, buffer):
            await loop.sock_sendall(target, buffer[:size])
            await asyncio.sleep(0)  # otherwise a fast connection would leave no time to the others
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def source_of(host: str) -> str:
    """The address that is counted: of IPv6 the network, since a single machine often has all addresses of it."""
    found = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(found, ipaddress.IPv4Address):
        return host
    return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))


def main() -> None:
    """Arguments: descriptor of the listening socket, source and target of each door, as JSON."""
    for number in (signal.SIGINT, signal.SIGTERM):  # which may be sent to all processes at once; the peer decides
        signal.signal(number, signal.SIG_IGN)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    doors = []
    for number, source, target in json.loads(sys.argv[1]):
        listening = socket.socket(fileno=number)
        listening.setblocking(False)
        doors.append(Door(listening, source, target))
    asyncio.run(AcceptProcess().run(doors))


if __name__ == "__main__":
    main()
