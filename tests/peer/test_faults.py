"""Peers that die, freeze, return or join late: the others continue, and only the round in progress is lost."""

import json
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import homophily
from homophily.federation.layout import Layout
from homophily.peer.transport import Address, LinkHandlers, ZenohLinks
from tests.patience import until
from tests.peer.field import Field

FINGERPRINT = 2 * (512 + sum(512 - row for row in range(19))) + 16  # bytes, of 20 samples
Fields = Callable[..., Field]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def field(tmp_path: Path) -> Iterator[Fields]:
    """Makes a field whose processes are gone after the test."""
    made: list[Field] = []

    def make(peers: int, **keys: Any) -> Field:
        made.append(Field(tmp_path / "field", peers, **keys))
        return made[-1]

    yield make
    for each in made:
        each.close()


def rounds(field: Field, peer: int) -> list[int]:
    return [line["round"] for line in field.lines(peer)]


def fingerprints(field: Field, peer: int) -> float:
    """How many a peer has counted: all bytes that came to it but for those of models. Everyone is one hop away."""
    field.go_on(peer, rounds=2)  # a status is written after the line of its round
    status = field.status(peer)
    models = next(line["models_sent_per_peer"] for line in field.lines(peer) if line["round"] == status["round"])
    one_model = Layout.from_json(field.run(peer).about["layout"]).model_bytes
    return float((status["bytes_received"] - models * one_model) / FINGERPRINT)


def met_since(field: Field, peer: int, line: int) -> set[str]:
    """Whom a peer has met after so many lines."""
    return {name for entry in field.lines(peer)[line:] for name in entry["met"]}


def test_a_killed_peer_is_dropped_and_resumes_from_its_state_folder(field: Fields) -> None:
    peers = field(4)
    peers.start(0, 1, 2, 3)
    peers.all_meet(0, 1, 2, 3)
    peers.kill(3)
    peers.all_meet(0, 1, 2)
    peers.go_on(0, 1, 2)
    before, current = rounds(peers, 3), peers.round(0)
    peers.start(3)
    peers.all_meet(0, 1, 2, 3)
    after = rounds(peers, 3)
    assert after[: len(before) - 1] == before[:-1], "what was played before is still there"
    assert after == sorted(set(after))
    new = next(r for r in after[len(before) - 1 :] if r > before[-1] + 1)
    assert new >= current, "it goes on where the others are"
    assert "peer-3" in peers.status(0)["reachable"]


def test_a_frozen_peer_does_not_delay_others_and_catches_up(field: Fields) -> None:
    peers = field(3)
    peers.start(0, 1, 2)
    peers.all_meet(0, 1, 2)
    peers.signal(2, signal.SIGSTOP)
    peers.all_meet(0, 1)
    peers.go_on(0, 1, rounds=10)
    frozen, current = peers.round(2), peers.round(0)
    peers.signal(2, signal.SIGCONT)
    peers.all_meet(0, 1, 2)
    skipped = [r for r in rounds(peers, 2) if frozen + 2 < r < current]
    assert not skipped, "rounds that the others are through with are not played again"


def test_a_late_peer_starts_at_the_round_of_the_others(field: Fields) -> None:
    peers = field(3, method={"name": "kin", "k": 2})
    peers.start(0, 1)
    peers.all_meet(0, 1)
    peers.go_on(0, 1, rounds=10)
    assert [fingerprints(peers, i) for i in (0, 1)] == [1, 1]
    current = peers.round(0)
    peers.start(2)
    peers.all_meet(0, 1, 2)
    assert rounds(peers, 2)[0] >= current
    assert [fingerprints(peers, i) for i in (0, 1, 2)] == [2, 2, 2], "one more is counted once"
    peers.kill(2)
    peers.all_meet(0, 1)
    peers.start(2)
    peers.go_on(2)
    peers.all_meet(0, 1, 2)
    assert [fingerprints(peers, i) for i in (0, 1, 2)] == [2, 2, 4], "who comes back asks for all of them again"


def test_when_a_relay_dies_models_take_another_route(field: Fields) -> None:
    """On a ring of five: what came over peer 1 comes the long way round."""
    peers = field(5, method={"name": "random", "k": 4, "hops": 3}, topology="ring")
    peers.start(0, 1, 2, 3, 4)
    peers.all_meet(0, 1, 2, 3, 4)
    assert peers.status(0)["reachable"] == {"peer-1": 1, "peer-2": 2, "peer-3": 2, "peer-4": 1}
    peers.kill(1)
    peers.all_meet(0, 2, 3, 4)
    until(lambda: peers.status(0)["reachable"] == {"peer-2": 3, "peer-3": 2, "peer-4": 1}, "the long way round")


def test_in_lockstep_the_others_continue_when_a_peer_dies(field: Fields) -> None:
    peers = field(3, pace="lockstep", peer={"wait_for": 2}, rounds=30)
    peers.start(0, 1, 2)
    until(lambda: peers.round(2) >= 3, "a few rounds")
    peers.kill(2)
    assert [peers.end(0), peers.end(1)] == [0, 0]
    assert rounds(peers, 0) == rounds(peers, 1) == list(range(1, 31))
    assert peers.met(0) == {"peer-1"}


def test_a_peer_stopped_by_sigterm_leaves_a_complete_folder_and_resumes(field: Fields) -> None:
    peers = field(2)
    peers.start(0, 1)
    peers.all_meet(0, 1)
    peers.signal(0, signal.SIGTERM)
    assert peers.end(0) == 130
    folder = peers.folder / "peer-0"
    assert not list(folder.rglob("*.part"))
    kept = [int(path.name.removeprefix("round-")) for path in (folder / "checkpoints").iterdir()]
    assert len(kept) in (1, 2)  # an older one goes only once the new one is whole
    assert peers.round(0) - max(kept) in (0, 1)
    assert "Traceback" not in peers.files[0].with_suffix(".log").read_text()
    peers.start(0)
    peers.go_on(0)
    peers.all_meet(0, 1)


def test_the_state_folder_is_a_run_folder_with_a_status(field: Fields, command: Command) -> None:
    peers = field(2, peer={"wait_for": 1}, rounds=4)
    peers.start(0, 1)
    assert [peers.end(0), peers.end(1)] == [0, 0]
    run = homophily.Run(peers.folder / "peer-0")
    assert run.finished
    assert [line["round"] for line in run.metrics()] == [1, 2, 3, 4]
    assert run.metrics()[-1]["accuracy"] == run.summary["accuracy"]
    assert run.model(0) is not None
    code, out, _ = command("status", str(run.path), "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["peer"], found["round"], found["rounds"]) == ("peer-0", 4, 4)
    assert found["refused"] == {}
    assert found["bytes_received"] > 0
    code, out, _ = command("status", str(run.path))
    assert code == 0
    assert "peer-0" in out
    assert command("status", str(peers.folder))[0] == 2


def test_a_peer_does_not_receive_its_own_broadcasts() -> None:
    """One who passes news on while it hears them would, with many of them, wait for itself."""
    heard: list[bytes] = []
    links = ZenohLinks(Address("alice", "hospitals", ("alice",), (), (), False, 2.0, None))
    links.listen(LinkHandlers(heard.append, *[lambda given: None] * 4))
    for _ in range(100):
        links.broadcast(b"news")
    time.sleep(0.5)
    links.close()
    assert heard == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_kills_and_restarts_do_not_grow_memory_or_threads(field: Fields) -> None:
    """Peer 0 stays throughout: its memory and threads after all of it are what they were after a fifth."""
    peers, draw = field(16, method={"name": "random", "k": 15}), random.Random(0)
    peers.start(*range(16))
    peers.all_meet(*range(16))
    sizes = []
    for _ in range(100):
        dead = [i for i in range(16) if i not in peers.running]
        alive = [i for i in peers.running if i]
        if dead and (len(dead) >= 8 or draw.random() < 0.5):
            peers.start(draw.choice(dead))
        else:
            peers.kill(draw.choice(alive))
        peers.go_on(0, rounds=5)
        assert all(process.is_alive() for process in peers.running.values())
        sizes.append(peers.size(0))
    peers.start(*(i for i in range(16) if i not in peers.running))
    before = [len(peers.lines(i)) for i in range(16)]
    for i in range(16):
        others = {name for name in peers.names if name != peers.names[i]}
        until(lambda i=i, others=others: met_since(peers, i, before[i]) == others, f"peer {i} meets all others again")
    assert not any("Traceback" in file.with_suffix(".log").read_text() for file in peers.files)
    memory, threads = zip(*sizes, strict=True)
    assert max(memory[-10:]) < 1.1 * max(memory[10:20])
    assert max(threads[-10:]) <= max(threads[10:20]) + 12, "8 that answer and 4 that pull come and go, and no more"
