"""Real links over loopback that record what they receive."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any, TypeVar

import zenoh

from homophily.peer.transport import Address, LinkHandlers, Request, ZenohLinks, _config
from tests.patience import eventually
from tests.peer.people import FEDERATION, People

HOST = "127.0.0.1"
ALLOWED = ("alice", "bob")
QUIET = 0.5  # seconds in which something that comes would have come


def free_port() -> int:
    with socket.socket() as held:
        held.bind((HOST, 0))
        port: int = held.getsockname()[1]
        return port


def address(
    people: People, name: str, port: int, connect: tuple[int, ...] = (), full: bool = True, secure: bool = True
) -> Address:
    people.identity(name)
    tls = people.ca, people.folder / f"{name}.pem", people.folder / f"{name}.key"
    dialled = tuple(f"{HOST}:{other}" for other in connect)
    return Address(name, FEDERATION, ALLOWED, (f"{HOST}:{port}",), dialled, full, 3.0, tls if secure else None)


_open: list[Any] = []
T = TypeVar("T")


def opened(links: T) -> T:
    """To be closed when the test is over, however it ends."""
    _open.append(links)
    return links


def close_all() -> None:
    while _open:
        _open.pop().close()


class Someone:
    """A peer's links, and all that came in over them."""

    def __init__(self, address: Address, asked: Callable[[Request], None] | None = None) -> None:
        self.heard: list[bytes] = []
        self.asked: list[str] = []
        self.there: set[str] = set()
        self.strangers: list[str] = []
        self._answer = asked or (lambda question: question.answer(b"to " + question.path.encode()))
        self.links = opened(ZenohLinks(address))
        self.links.listen(
            LinkHandlers(self.heard.append, self._question, self.there.add, self.there.discard, self.strangers.append)
        )

    def _question(self, question: Request) -> None:
        self.asked.append(question.path)
        self._answer(question)


class Pair:
    """alice and bob, linked, and a port where trouble can come in."""

    def __init__(self, people: People, asked: Callable[[Request], None] | None = None, secure: bool = True) -> None:
        self.people, self.port = people, free_port()
        self.alice = Someone(address(people, "alice", self.port, secure=secure), asked)
        self.bob = Someone(address(people, "bob", free_port(), (self.port,), secure=secure))
        assert eventually(lambda: "alice" in self.bob.there and "bob" in self.alice.there)

    def go_on(self) -> bool:
        """Whether the two still talk, in both directions."""
        self.alice.heard.clear()
        self.bob.heard.clear()
        self.alice.links.broadcast(b"from alice")
        self.bob.links.broadcast(b"from bob")
        return (
            eventually(lambda: b"from bob" in self.alice.heard and b"from alice" in self.bob.heard)
            and self.bob.links.request("alice", "still there", 10.0) == [b"to still there"]
            and self.alice.links.neighbours() == {"bob"}
        )


def session(address: Address, **tls: Any) -> zenoh.Session:
    """Links as someone makes them who leaves out our rules; tls: settings of their own."""
    config = _config(address)
    config.insert_json5("access_control/enabled", "false")
    for key, value in tls.items():
        config.insert_json5(f"transport/link/tls/{key}", json.dumps(value))
    return opened(zenoh.open(config))
