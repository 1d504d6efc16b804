"""Real links over loopback: who is refused, what is survived. Honest peers go on in every one of these."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import tomli_w
import zenoh

from homophily.errors import UserError
from homophily.peer.identity import Authority
from homophily.peer.links import Address, Ears, Question, Unanswered, ZenohLinks, _config
from homophily.peer.mail import Mail, Parcel
from homophily.peer.manifest import CHUNK
from homophily.peer.members import Announcer, Members, seal
from homophily.peer.play import _joined, play
from homophily.peer.refusals import Refusals
from homophily.peer.settings import load
from tests.peer.people import FEDERATION, MOST, People, Village, question, soon

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


def eventually(true: Callable[[], Any], seconds: float = 15.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


_open: list[Any] = []
T = TypeVar("T")


def opened(links: T) -> T:
    """To be closed when the test is over, however it ends."""
    _open.append(links)
    return links


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _open:
        _open.pop().close()


class Someone:
    """A peer's links, and all that came in over them."""

    def __init__(self, address: Address, asked: Callable[[Question], None] | None = None) -> None:
        self.heard: list[bytes] = []
        self.asked: list[str] = []
        self.there: set[str] = set()
        self.strangers: list[str] = []
        self._answer = asked or (lambda question: question.answer(b"to " + question.path.encode()))
        self.links = opened(ZenohLinks(address))
        self.links.listen(
            Ears(self.heard.append, self._question, self.there.add, self.there.discard, self.strangers.append)
        )

    def _question(self, question: Question) -> None:
        self.asked.append(question.path)
        self._answer(question)


class Pair:
    """alice and bob, linked, and a port where trouble can come in."""

    def __init__(self, people: People, asked: Callable[[Question], None] | None = None, secure: bool = True) -> None:
        self.people, self.port = people, free_port()
        self.alice = Someone(address(people, "alice", self.port, secure=secure), asked)
        self.bob = Someone(address(people, "bob", free_port(), (self.port,), secure=secure))
        assert eventually(lambda: "alice" in self.bob.there and "bob" in self.alice.there)

    def go_on(self) -> bool:
        """Whether the two still talk, in both directions."""
        self.alice.heard.clear()
        self.bob.heard.clear()
        self.alice.links.tell(b"from alice")
        self.bob.links.tell(b"from bob")
        return (
            eventually(lambda: b"from bob" in self.alice.heard and b"from alice" in self.bob.heard)
            and self.bob.links.ask("alice", "still there", 10.0) == b"to still there"
            and self.alice.links.neighbours() == {"bob"}
        )


@pytest.fixture
def pair(people: People) -> Pair:
    return Pair(people)


def session(address: Address, **tls: Any) -> zenoh.Session:
    """Links as someone makes them who leaves out our rules; tls: settings of their own."""
    config = _config(address)
    config.insert_json5("access_control/enabled", "false")
    for key, value in tls.items():
        config.insert_json5(f"transport/link/tls/{key}", json.dumps(value))
    return opened(zenoh.open(config))


def tries(intruder: zenoh.Session) -> None:
    """Says and asks all that an intruder could want to."""
    for key in ("tell/bob", "tell/mallory", "alive/mallory"):
        intruder.put(f"homophily/{FEDERATION}/{key}", b"from an intruder")
    intruder.liveliness().declare_token(f"homophily/{FEDERATION}/alive/mallory")
    assert not list(intruder.get(f"homophily/{FEDERATION}/ask/alice/secret", timeout=QUIET))


def assert_unheard(pair: Pair) -> None:
    assert b"from an intruder" not in pair.alice.heard + pair.bob.heard
    assert "secret" not in pair.alice.asked
    assert "mallory" not in pair.alice.there | pair.bob.there
    assert pair.go_on()


# Who is refused


def test_honest_peers_talk(pair: Pair) -> None:
    assert pair.go_on()
    assert pair.bob.links.neighbours() == {"alice"}
    assert pair.alice.strangers == []


def test_a_certificate_of_an_unknown_authority_gets_no_link(pair: Pair, people: People, strangers: People) -> None:
    for root in (strangers.ca, people.ca):  # also when it trusts ours
        intruder = session(address(strangers, "bob", free_port(), (pair.port,)), root_ca_certificate=str(root))
        tries(intruder)
        assert not list(intruder.info.transports())
        assert_unheard(pair)


def test_without_a_certificate_there_is_no_link(pair: Pair, people: People) -> None:
    intruder = session(address(people, "mallory", free_port(), (pair.port,)), enable_mtls=False)
    tries(intruder)
    assert not list(intruder.info.transports())
    assert_unheard(pair)


def test_who_listens_with_an_unknown_certificate_is_not_talked_to(people: People, strangers: People) -> None:
    port = free_port()
    impostor = session(address(strangers, "alice", port), enable_mtls=False)
    bob = Someone(address(people, "bob", free_port(), (port,)))
    time.sleep(QUIET)
    assert bob.links.neighbours() == frozenset()
    assert not list(impostor.info.transports())


def test_a_name_off_the_list_gets_no_message_in_or_out_and_is_counted(pair: Pair, people: People) -> None:
    intruder = session(address(people, "mallory", free_port(), (pair.port,)))
    told: list[bytes] = []
    intruder.declare_subscriber(f"homophily/{FEDERATION}/**", lambda sample: told.append(sample.payload.to_bytes()))
    assert eventually(lambda: "mallory" in pair.alice.strangers)
    tries(intruder)
    assert_unheard(pair)
    assert set(told) <= {b"from an intruder"}


def test_plain_tcp_gets_nowhere_at_a_tls_port(pair: Pair, people: People) -> None:
    plain = opened(zenoh.open(_config(address(people, "mallory", free_port(), (pair.port,), secure=False))))
    with socket.create_connection((HOST, pair.port), 5) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(range(256)) * 64)
    with socket.create_connection((HOST, pair.port), 5) as raw:
        raw.sendall(b"\x16\x03\x01\xff\xff\x01")  # the beginning of a handshake that promises more than it sends
        tries(plain)
    assert not list(plain.info.transports())
    assert_unheard(pair)


def test_tls_without_a_certificate_ends_with_an_alert(pair: Pair, people: People) -> None:
    context = ssl.create_default_context(cafile=str(people.ca))
    with (
        socket.create_connection((HOST, pair.port), 5) as raw,
        context.wrap_socket(raw, server_hostname=HOST) as wrapped,
        pytest.raises(OSError, match=r"(?i)certificate.required|reset"),
    ):
        wrapped.recv(1)
    assert pair.go_on()


def test_connections_that_say_nothing_keep_nobody_out(pair: Pair, people: People) -> None:
    for _ in range(50):
        opened(socket.create_connection((HOST, pair.port), 5))
    pair.bob.links.close()
    pair.bob = Someone(address(people, "bob", free_port(), (pair.port,)))
    assert eventually(lambda: "alice" in pair.bob.there and "bob" in pair.alice.there)
    assert pair.go_on()


# What is survived


def test_an_oversize_message_vanishes(pair: Pair) -> None:
    for size in (CHUNK + (1 << 19), 8 << 20):
        pair.bob.links.tell(bytes(size))
    time.sleep(QUIET)
    assert pair.alice.heard == []
    assert pair.go_on()


def test_an_oversize_answer_is_no_answer(people: People) -> None:
    answers = {"much": bytes(8 << 20), "still there": b"to still there"}
    pair = Pair(people, lambda question: question.answer(answers[question.path]))
    with pytest.raises(Unanswered):
        pair.bob.links.ask("alice", "much", QUIET)
    assert pair.go_on()


def test_a_refusal_says_why(people: People) -> None:
    pair = Pair(people, lambda question: question.decline("x" * 1000))
    with pytest.raises(Unanswered, match=r"^x{64}$"):
        pair.bob.links.ask("alice", "anything", 10.0)


def test_who_is_not_there_is_no_answer(pair: Pair) -> None:
    with pytest.raises(Unanswered, match="no answer"):
        pair.bob.links.ask("carol", "anything", QUIET)


def test_who_answers_many_times_is_heard_once(people: People) -> None:
    def many(question: Any) -> None:
        if question.path == "many":
            for _ in range(100):
                question._query.reply(question._query.key_expr, b"again")
        question.answer(b"to still there")

    pair = Pair(people, many)
    assert pair.bob.links.ask("alice", "many", 10.0) == b"again"
    assert pair.go_on()


def test_a_flood_of_requests_is_counted_and_survived(people: People) -> None:
    """Malformed ones, and more good ones than there is room for."""
    village = opened(Village(people, [("alice", "bob")], slots=2, waiting=8))
    mail = village.mail["alice"]
    mail.publish("model", 1, b"small")
    pair = Pair(people, mail.asked)
    answered: list[zenoh.Reply] = []
    for _ in range(1000):
        for path in ("alice/model/1/0", "alice/model/1/**", "nobody/model/1/0"):
            pair.bob.links._session.get(f"homophily/{FEDERATION}/ask/alice/{path}", answered.append, timeout=30.0)
    assert eventually(lambda: len(answered) == 3000, 30)
    good = sum(reply.ok is not None for reply in answered)
    counts = mail.refusals.counts()
    assert counts.pop("malformed request") == 1000
    assert counts.pop("nobody by that name") == 1000
    assert counts.pop("too many requests", 0) == 1000 - good
    assert counts == {}
    assert good > 0
    assert pair.bob.links.ask("alice", "alice/model/1/0", 10.0).endswith(b"\nsmall")


@pytest.mark.slow
def test_a_million_requests_are_counted_and_survived(people: People) -> None:
    village = opened(Village(people, [("alice", "bob"), ("bob", "carol")], slots=2, waiting=8))
    mail = village.mail["bob"]
    village.mail["carol"].publish("model", 1, b"small")
    paths = [f"carol/model/{round}/{part}" for round in (1, 2) for part in ("0", "1", "-1", "x")]
    for i in range(1_000_000):
        mail.asked(question(paths[i % 8]))
    counts = mail.refusals.counts()
    assert counts["malformed request"] == 500_000
    assert set(counts) <= {"malformed request", "too many requests"}
    assert village.mail["alice"].fetch(Parcel("carol", "model", 1), soon()) == b"small"


def test_after_the_end_nothing_is_told_and_nobody_answers(people: People) -> None:
    alone = Someone(address(people, "alice", free_port()))
    alone.links.close()
    alone.links.tell(b"to nobody")
    assert alone.links.neighbours() == frozenset()
    with pytest.raises(Unanswered, match="no link"):
        alone.links.ask("bob", "anything", 1.0)


# A mesh where not everyone is linked


class Player:
    """All that a peer is but for training."""

    def __init__(self, people: People, name: str, connect: tuple[int, ...]) -> None:
        self.port, names = free_port(), ("alice", "bob", "carol")
        most: Any = {"model": MOST, "print": MOST}
        keys: Any = {"timeout": 5.0, "slots": 2, "waiting": 8, "pulls": 2, "window": 2, "cache_bytes": 8 << 20}
        identity, authority = people.identity(name), Authority(people.ca, names)
        self.mail = mail = Mail(FEDERATION, identity, authority, most, Refusals(), **keys)
        self.members = mail.members = Members(name, names, False, lambda: mail.links.neighbours())
        self.announcer = Announcer(
            lambda status: mail.links.tell(seal(status, FEDERATION, identity)), lambda: mail.links.neighbours(), 0.1
        )
        where = replace(address(people, name, self.port, connect, full=False), allowed=names)
        self._joined: Any = _joined(self, where, authority)  # type: ignore[arg-type]

    def __enter__(self) -> Player:
        self._joined.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._joined.__exit__(None, None, None)


def test_what_is_told_goes_to_neighbours_and_no_further(people: People) -> None:
    def someone(name: str, *connect: int) -> tuple[Someone, int]:
        port = free_port()
        where = address(people, name, port, connect, full=False)
        return Someone(replace(where, allowed=("alice", "bob", "carol"))), port

    carol, port = someone("carol")
    alice, bob = (someone(name, port)[0] for name in ("alice", "bob"))
    assert eventually(lambda: carol.links.neighbours() == {"alice", "bob"} and "carol" in alice.there & bob.there)
    alice.links.tell(b"hello")
    assert eventually(lambda: b"hello" in carol.heard)
    time.sleep(QUIET)
    assert bob.heard == []


def test_a_stranger_that_links_with_both_ends_of_a_line_cannot_cut_it(people: People) -> None:
    with Player(people, "carol", ()) as carol, Player(people, "alice", (carol.port,)) as alice:
        with Player(people, "bob", (carol.port,)) as bob:
            assert eventually(lambda: alice.members.hops() == {"carol": 1, "bob": 2})
            session(address(people, "mallory", free_port(), (alice.port, bob.port), full=False))
            assert eventually(lambda: "link of a name not allowed (mallory)" in alice.mail.refusals.counts())
            assert eventually(lambda: "link of a name not allowed (mallory)" in bob.mail.refusals.counts())
            bob.mail.publish("model", 1, b"bob's")
            bob.announcer.announce(trained=1)
            assert eventually(lambda: alice.members.status("bob").trained == 1)
            assert alice.mail.fetch(Parcel("bob", "model", 1), soon()) == b"bob's"
            assert list(alice.mail.refusals.counts()) == ["link of a name not allowed (mallory)"]
        assert eventually(lambda: alice.members.hops() == {"carol": 1})


# Plaintext


def settings_of(people: People, folder: Path, **changes: Any) -> Path:
    table = {
        "name": "alice", "allow": list(ALLOWED), "listen": [f"{HOST}:{free_port()}"], "ca": str(people.ca),
        "certificate": str(people.folder / "alice.pem"), "key": str(people.folder / "alice.key"), **changes,
    }  # fmt: skip
    people.identity("alice")
    (folder / "peer.toml").write_text(tomli_w.dumps({"peer": table}))
    return folder / "peer.toml"


@pytest.mark.parametrize("key", ["ca", "certificate", "key"])
@pytest.mark.parametrize("insecure", [[], ["--insecure"]])
def test_a_missing_certificate_is_an_error_and_never_plaintext(
    people: People, tmp_path: Path, command: Callable[..., tuple[int, str, str]], key: str, insecure: list[str]
) -> None:
    file = settings_of(people, tmp_path, **{key: "nowhere.pem"})
    code, _, err = command("peer", str(file), *insecure)
    assert code == 2
    assert "cannot read the" in err
    assert "nowhere.pem" in err
    assert "Traceback" not in err
    assert not (tmp_path / "alice").exists()


@pytest.mark.parametrize("where", [{"listen": ["0.0.0.0:7447"]}, {"connect": ["10.1.2.3:7447"]}])
def test_plaintext_is_refused_off_loopback(
    people: People, tmp_path: Path, command: Callable[..., tuple[int, str, str]], where: dict[str, Any]
) -> None:
    code, _, err = command("peer", str(settings_of(people, tmp_path, **where)), "--insecure")
    assert code == 2
    assert "--insecure is for this machine alone" in err
    assert not (tmp_path / "alice").exists()


def test_a_certificate_that_the_others_would_refuse_is_an_error(
    people: People, strangers: People, tmp_path: Path
) -> None:
    strangers.identity("alice")
    theirs = {"certificate": str(strangers.folder / "alice.pem"), "key": str(strangers.folder / "alice.key")}
    with pytest.raises(UserError, match="will be refused by the others: certificate not of this authority"):
        play(load(settings_of(people, tmp_path, **theirs)))


def test_plaintext_that_was_asked_for_works_on_loopback(people: People) -> None:
    pair = Pair(people, secure=False)
    assert pair.go_on()


def test_a_port_that_is_taken_is_said_in_a_sentence(people: People) -> None:
    with socket.socket() as held:
        held.bind((HOST, 0))
        held.listen()
        with pytest.raises(UserError, match=r"peer\.listen: cannot listen on 127\.0\.0\.1"):
            ZenohLinks(address(people, "alice", held.getsockname()[1]))
