"""Which connections the accept process lets wait, and which of them it passes on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from homophily.peer import accept_process
from homophily.peer.accept_process import (
    BURST,
    MOST_PER_ADDRESS,
    MOST_WAITING,
    AcceptProcess,
    Admission,
    Door,
    source_of,
)

Scene = Callable[[Admission], Awaitable[None]]
HELLO = b"a handshake begins"


def play(scene: Scene) -> Admission:
    """Play a scene in an event loop."""
    admission = Admission()

    async def run() -> None:
        await scene(admission)

    asyncio.run(run())
    return admission


async def passed_on(admission: Admission, *addresses: str) -> list[str]:
    """The addresses in the order in which their connections, all waiting from the beginning, are passed on."""
    order: list[str] = []
    admission.budget = 0

    async def one(address: str) -> None:
        await admission.turn(address)
        order.append(address)

    tasks = [asyncio.create_task(one(address)) for address in addresses]
    await asyncio.sleep(0)
    for _ in addresses:
        admission.refill(1.0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    for task in tasks:
        assert task.done()
    return order


def test_the_newest_connection_is_passed_on_first() -> None:
    async def scene(admission: Admission) -> None:
        assert await passed_on(admission, "a", "b", "c") == ["c", "b", "a"]

    play(scene)


def test_an_address_with_failures_comes_after_the_others() -> None:
    async def scene(admission: Admission) -> None:
        for address in ("c", "c", "b"):
            admission.unestablished[address] += 1
            admission.ended(address, established=False)
        assert await passed_on(admission, "a", "b", "c") == ["a", "b", "c"]

    play(scene)


def test_an_address_with_a_handshake_in_progress_comes_after_the_others() -> None:
    async def scene(admission: Admission) -> None:
        assert await passed_on(admission, "member", "flood", "flood", "flood") == ["flood", "member", "flood", "flood"]

    play(scene)


def test_only_connections_that_are_not_established_use_up_the_budget() -> None:
    async def scene(admission: Admission) -> None:
        for _ in range(10 * BURST):
            await admission.turn("member")
            admission.ended("member", established=True)
        for _ in range(BURST):
            await admission.turn("stranger")
        late = asyncio.create_task(admission.turn("stranger"))
        await asyncio.sleep(0.01)
        assert not late.done()
        late.cancel()

    play(scene)


def test_a_success_clears_the_failures_of_an_address() -> None:
    async def scene(admission: Admission) -> None:
        for established in (False, False, True):
            await admission.turn("member")
            admission.ended("member", established)

    assert play(scene).failures == {}


def test_an_address_ends_its_own_oldest_connection_when_it_has_too_many() -> None:
    async def scene(admission: Admission) -> None:
        tasks = [asyncio.create_task(asyncio.sleep(10)) for _ in range(MOST_PER_ADDRESS + 1)]
        member = asyncio.create_task(asyncio.sleep(10))
        admission.add("member", member)
        for task in tasks:
            admission.add("stranger", task)
        await asyncio.sleep(0)
        assert tasks[0].cancelling()
        assert not any(task.cancelling() for task in [member, *tasks[1:]])

    assert play(scene).refused == {"too many connections from one address": 1}


def test_with_too_many_connections_the_address_with_most_of_them_loses_one() -> None:
    async def scene(admission: Admission) -> None:
        first = asyncio.create_task(asyncio.sleep(10))
        admission.add("member", first)
        for number in range(MOST_WAITING + 100):
            admission.add(f"stranger {number // 2}", asyncio.create_task(asyncio.sleep(10)))
        assert not first.cancelling()
        assert sum(map(len, admission.waiting.values())) == MOST_WAITING

    assert play(scene).refused == {"too many connections": 101}


def test_a_connection_that_ends_while_it_waits_leaves_nothing_behind() -> None:
    async def scene(admission: Admission) -> None:
        admission.budget = 0
        tasks = [asyncio.create_task(admission.turn("stranger")) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()  # while it waits
        await asyncio.sleep(0)
        admission.refill(1.0)
        tasks[2].cancel()  # when it was just granted
        await asyncio.wait(tasks, timeout=0.01)
        tasks[1].cancel()
        await asyncio.wait(tasks)

    found = play(scene)
    assert (found.turns, +found.unestablished) == ([], {})


class DoorTo(Door):
    """A door that leads to a connection that is open already."""

    async def dial(self) -> socket.socket:
        return self.listening

    def name_of(self, server: socket.socket) -> str:
        return "zenoh"


def connected() -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        one = socket.create_connection(listening.getsockname())
        other = listening.accept()[0]
    for each in (one, other):
        each.setblocking(False)
    return one, other


@pytest.mark.parametrize("end", ["established", "not established", "cancelled"])
def test_a_connection_that_ends_leaves_no_relay_and_no_socket(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """zenoh keeps its end open, so that the relay from there has to be cancelled."""
    monkeypatch.setattr(accept_process, "CLOSE_SECONDS", 0.0)
    left: set[asyncio.Task[object]] = set()
    process = AcceptProcess()

    async def serve() -> None:
        others = asyncio.all_tasks()
        try:
            await process._pass_on(DoorTo(server, "", ""), client, "stranger", HELLO)
        finally:
            left.update(asyncio.all_tasks() - others)

    async def run() -> None:
        passing = asyncio.create_task(serve())
        assert await asyncio.get_running_loop().sock_recv(zenoh, 100) == HELLO
        if end == "established":
            process._passed_on["zenoh"].set()
        if end == "cancelled":
            passing.cancel()
        else:
            stranger.shutdown(socket.SHUT_WR)
        await asyncio.wait([passing])

    (stranger, client), (server, zenoh) = connected(), connected()
    with stranger, client, zenoh:
        asyncio.run(run())
    assert left == set()
    assert server.fileno() == -1


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_an_ipv6_network_counts_as_one_address(host: str, counted: str) -> None:
    assert source_of(host) == counted
