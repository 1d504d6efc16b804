"""Strangers' connections to a peer's port, by the hundred: members join, stay connected, and notice nothing."""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zenoh

from homophily.errors import UserError
from homophily.peer.manifest import CHUNK
from homophily.peer.refusals import Refusals
from homophily.peer.transport import LinkHandlers
from tests.patience import eventually
from tests.peer.linked import HOST, QUIET, Pair, Someone, address, free_port, opened
from tests.peer.people import People

NAMES = ("alice", "bob", "carol")
LOG = logging.getLogger("accept layer")
STRANGERS = 300
JOIN_SECONDS = 20.0  # without the layer, 300 failed handshakes keep a member out for 30 s


class Layered(Pair):
    """alice, behind the accept layer, and bob."""

    def __init__(self, people: People) -> None:
        self.people, self.port, self.refusals = people, free_port(), Refusals(LOG)
        self.alice = Someone(replace(address(people, "alice", self.port), allowed=NAMES))
        self.alice.links.bound_strangers(self.refusals, LOG)
        self.bob = self.member("bob")
        assert eventually(lambda: "alice" in self.bob.there and "bob" in self.alice.there)

    def member(self, name: str) -> Someone:
        return Someone(replace(address(self.people, name, free_port(), (self.port,)), allowed=NAMES))


@pytest.fixture
def layered(people: People) -> Layered:
    return Layered(people)


def hello() -> bytes:
    """The first message of a TLS handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


SENT = {
    "idle": b"",
    "not TLS": b"GET / HTTP/1.1\r\n\r\n",
    "part of a handshake": hello()[:40],
    "a handshake that is not continued": hello(),
    "a handshake that fails": hello() + b"nonsense",
}


def strangers(port: int, sent: bytes) -> None:
    for number in range(STRANGERS):
        raw = opened(socket.socket())
        raw.bind((f"127.0.1.{1 + number % 20}", 0))
        raw.connect((HOST, port))
        raw.sendall(sent)


def accept_process() -> int:
    """The process id of the only accept process that this process has started."""
    found = [path.read_text().split() for path in Path("/proc/self/task").glob("*/children")]
    (pid,) = [
        int(pid) for some in found for pid in some if b"accept_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return pid


@pytest.mark.parametrize("kind", SENT)
def test_strangers_neither_keep_a_member_out_nor_disturb_one_that_is_connected(layered: Layered, kind: str) -> None:
    strangers(layered.port, SENT[kind])
    began = time.monotonic()
    carol = layered.member("carol")
    assert eventually(lambda: "alice" in carol.links.neighbours(), JOIN_SECONDS)
    assert time.monotonic() - began < JOIN_SECONDS
    carol.links.close()
    assert eventually(lambda: "carol" not in layered.alice.links.neighbours())
    assert layered.go_on()


def test_descriptors_that_other_threads_open_and_close_make_no_second_door(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that was listed and is free again may be that of a door made meanwhile."""
    listed = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: map(str, range(400)) if path == "/proc/self/fd" else listed(path))
    layered = Layered(people)  # bob joins alice
    (arguments,) = Path(f"/proc/{accept_process()}/cmdline").read_bytes().split(b"\0")[-2:-1]
    assert len(json.loads(arguments)) == 1
    assert layered.go_on()


def test_links_whose_session_does_not_close_in_time_are_closed(layered: Layered, people: People) -> None:
    class Busy:
        def close(self) -> None:
            raise zenoh.ZError("close operation timed out!")

    links, session = layered.alice.links, layered.alice.links._session
    pid = accept_process()
    links._session = Busy()  # type: ignore[assignment]
    links.close()
    links._session = session
    assert not Path(f"/proc/{pid}").exists()


def test_refused_connections_are_counted_by_reason(layered: Layered) -> None:
    strangers(layered.port, SENT["not TLS"])
    assert eventually(lambda: sum(layered.refusals.counts().values()) == STRANGERS)
    assert set(layered.refusals.counts()) <= {
        "connection without a TLS handshake",
        "too many connections from one address",
    }


def test_bytes_pass_unchanged_in_both_directions(layered: Layered) -> None:
    data = [secrets.token_bytes(CHUNK) for _ in range(2)]
    layered.alice._answer = lambda question: question.answer(*data)
    assert [layered.bob.links.request("alice", "data", 10.0, 2) for _ in range(10)] == [data] * 10
    layered.bob.links.broadcast(data[0])
    assert eventually(lambda: data[0] in layered.alice.heard)


def test_peers_learn_each_others_addresses_through_a_third(people: People) -> None:
    """bob and carol dial only alice, and get a link to each other."""
    port, everyone = free_port(), []
    for name in NAMES:
        own, connect = (port, ()) if name == "alice" else (free_port(), (port,))
        everyone.append(Someone(replace(address(people, name, own, connect), allowed=NAMES)))
        everyone[-1].links.bound_strangers(Refusals(LOG), LOG)
    assert eventually(lambda: all(len(one.links.neighbours()) == 2 for one in everyone), 20.0)


def test_links_that_are_renewed_are_bounded_again(layered: Layered) -> None:
    before = accept_process()
    layered.alice.links.renew(replace(address(layered.people, "alice", layered.port), allowed=NAMES))
    assert eventually(lambda: "bob" in layered.alice.there and "alice" in layered.bob.there, 20.0)
    assert accept_process() != before
    strangers(layered.port, SENT["not TLS"])
    assert layered.go_on()
    assert eventually(lambda: sum(layered.refusals.counts().values()) == STRANGERS)


def test_links_that_fail_while_they_are_renewed_can_be_renewed_again(
    layered: Layered, monkeypatch: pytest.MonkeyPatch
) -> None:
    links, again = layered.alice.links, replace(address(layered.people, "alice", layered.port), allowed=NAMES)

    def failing(handlers: LinkHandlers) -> list[Any]:
        raise zenoh.ZError("session closed")

    with monkeypatch.context() as patched:
        patched.setattr(links, "_declare", failing)
        with pytest.raises(UserError, match="session closed"):
            links.renew(again)
    links.renew(again)
    assert eventually(lambda: "bob" in layered.alice.there and "alice" in layered.bob.there, 20.0)


def test_links_that_were_closed_are_not_renewed(layered: Layered) -> None:
    """A peer may stop while another thread is about to renew its links."""
    layered.alice.links.close()
    layered.alice.links.renew(replace(address(layered.people, "alice", layered.port), allowed=NAMES))
    assert is_free(layered.port)


def test_handlers_can_be_replaced_while_links_are_renewed(layered: Layered) -> None:
    """A new membership document renews the links in one thread, and its peer declares new handlers in another."""
    links, again = layered.alice.links, replace(address(layered.people, "alice", layered.port), allowed=NAMES)
    heard: list[bytes] = []
    handlers = LinkHandlers(heard.append, lambda asked: None, lambda name: None, lambda name: None, lambda name: None)
    with ThreadPoolExecutor(1) as pool:
        for _ in range(5):
            renewed = pool.submit(links.renew, again)
            while not renewed.done():
                links.listen(handlers)
            renewed.result()

    def arrives() -> bool:
        layered.bob.links.broadcast(b"from bob")
        return b"from bob" in heard

    assert eventually(arrives, 20.0)


def test_a_member_without_a_valid_certificate_is_told_so(layered: Layered, people: People) -> None:
    context = ssl.create_default_context(cafile=str(people.ca))
    with (
        socket.create_connection((HOST, layered.port), 5) as raw,
        context.wrap_socket(raw, server_hostname=HOST) as wrapped,
        pytest.raises(OSError, match=r"(?i)certificate.required|reset"),
    ):
        wrapped.recv(1)


def test_the_accept_process_is_started_again_if_it_ends(layered: Layered) -> None:
    before = accept_process()
    os.kill(before, signal.SIGKILL)
    assert eventually(lambda: "bob" not in layered.alice.there, 20.0)
    assert eventually(lambda: "bob" in layered.alice.there and "alice" in layered.bob.there, 20.0)
    assert layered.go_on()
    assert accept_process() != before


def test_a_process_that_cannot_be_started_again_is_tried_again(
    layered: Layered, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, tried = subprocess.Popen, list[int]()

    def refused_at_first(*arguments: Any, **options: Any) -> Any:
        tried.append(1)
        if len(tried) == 1:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return started(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", refused_at_first)
    os.kill(accept_process(), signal.SIGKILL)
    assert eventually(lambda: "bob" not in layered.alice.there, 20.0)
    assert eventually(lambda: "bob" in layered.alice.there and "alice" in layered.bob.there, 20.0)


def test_links_can_be_closed_just_when_the_process_is_started_again(
    layered: Layered, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = layered.alice.links._layer
    assert layer is not None
    begun, start = threading.Event(), layer._start

    def slowly() -> Any:
        begun.set()
        time.sleep(QUIET)
        return start()

    monkeypatch.setattr(layer, "_start", slowly)
    os.kill(accept_process(), signal.SIGKILL)
    assert begun.wait(20.0)
    closing = threading.Thread(target=layer.close, daemon=True)
    closing.start()
    closing.join(10.0)
    assert not closing.is_alive()


def test_connections_are_not_bounded_if_no_process_can_be_started(
    people: People, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*arguments: Any, **options: Any) -> Any:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(subprocess, "Popen", refused)
    layered = Layered(people)  # bob joins alice
    assert layered.go_on()
    assert "connections of strangers are not bounded: [Errno 1] Operation not permitted" in caplog.text


def test_signals_that_stop_a_peer_do_not_stop_its_accept_process(layered: Layered) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(accept_process(), number)
    time.sleep(0.2)
    assert layered.go_on()


def test_a_killed_peer_leaves_its_port_free(tmp_path: Path) -> None:
    port = free_port()
    program = f"""
import logging, pathlib, time
from homophily.peer.refusals import Refusals
from homophily.peer.transport import LinkHandlers
from tests.peer.linked import Someone, address
from tests.peer.people import People
one = Someone(address(People(pathlib.Path({str(tmp_path / "authority")!r})), "alice", {port}))
log = logging.getLogger()
one.links.bound_strangers(Refusals(log), log)
print("listens", flush=True)
time.sleep(100)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "listens\n"
        running.kill()
        running.wait()
        assert eventually(lambda: is_free(port), 2.0)


def is_free(port: int) -> bool:
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind((HOST, port))
            held.listen()
        except OSError:
            return False
    return True


def test_a_second_peer_at_the_same_port_is_still_an_error(layered: Layered, people: People) -> None:
    with pytest.raises(UserError, match=r"peer\.listen: cannot listen on"):
        Someone(address(people, "alice", layered.port))
