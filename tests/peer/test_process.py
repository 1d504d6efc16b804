"""One real peer as an object: run step by step or to the end, with callbacks, on loopback addresses."""

from __future__ import annotations

import json
import logging
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from homophily import Callback, Run
from homophily.errors import UserError
from homophily.experiments.callbacks import RunHandle
from homophily.federation.layout import Layout
from homophily.peer import Peer
from homophily.peer.deploy import status, write_files
from homophily.peer.logs import peer_logger
from homophily.peer.process import _report_divergence
from homophily.peer.settings import load
from homophily.simulation.configuration import make

QUICK: dict[str, Any] = {
    "rounds": 3,
    "method": {"name": "random", "k": 1},
    "data": {"train": 20, "test": 10, "angles": [0]},
    "model": "linear",
}
PATIENCE = {"deadline": 10.0, "wait_for": 1}


def files(folder: Path, peers: int = 2, pace: str = "free", peer: dict[str, Any] = PATIENCE, **keys: Any) -> list[Path]:
    """The files of peers with certificates, on this machine."""
    return write_files(make({**QUICK, **keys, "peers": peers}), peers, folder, pace, **peer)


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """The file of a peer that waits for nobody."""
    return files(tmp_path, peer={"deadline": 1.0, "lease": 0.5, "wait_for": 0})[0]


class Watching(Callback):
    """Writes down what it is called with; may stop the run after a round."""

    def __init__(self, last: int | None = None) -> None:
        self.calls: list[tuple[str, int]] = []
        self._last = last

    def on_start(self, run: RunHandle) -> None:
        self.calls.append(("start", run.round))

    def on_round(self, run: RunHandle, metrics: dict[str, Any]) -> None:
        self.calls.append(("round", metrics["round"]))
        metrics["layers"] = len(run.state_dict(0))
        if metrics["round"] == self._last:
            run.stop()

    def on_end(self, run: RunHandle, summary: dict[str, Any]) -> None:
        self.calls.append(("end", summary["rounds"]))


class StatusInRound(Callback):
    """Reads the status before the first round ends."""

    def on_round(self, run: RunHandle, metrics: dict[str, Any]) -> None:
        if metrics["round"] == 1:
            self.read = json.loads((run.path / "status.json").read_text(encoding="utf-8"))


def test_a_peer_in_its_first_round_does_not_wait_any_more(alone: Path) -> None:
    """A first round may take long, and /health must not answer 503 until its end."""
    seen = StatusInRound()
    Peer(alone, callbacks=[seen]).result()
    assert (seen.read["round"], seen.read["waiting"]) == (0, False)


# Two peers


@pytest.mark.parametrize("insecure", [False, True], ids=["certificates", "insecure"])
def test_two_peers_are_played_step_by_step(tmp_path: Path, insecure: bool) -> None:
    first, second = files(tmp_path)
    with Peer(first, insecure=insecure) as a, Peer(second, insecure=insecure) as b:
        assert (a.round, b.round) == (0, 0)
        for round in (1, 2, 3):
            lines = a.step(), b.step()
            assert [line["round"] for line in lines] == [round, round] == [a.round, b.round]
            assert "accuracy" in lines[0]
        assert a.finished
        assert b.finished
    for name, other in (("peer-0", "peer-1"), ("peer-1", "peer-0")):
        stored = Run(tmp_path / name).metrics()
        assert [line["round"] for line in stored] == [1, 2, 3]
        assert [other] in [line["merged"] for line in stored], "peers that never merge prove nothing"
        assert not Run(tmp_path / name).finished  # nobody asked for a result
        assert status(tmp_path / name)["reachable"] == {other: 1}


def test_two_peers_are_played_to_the_end_in_turns(tmp_path: Path) -> None:
    first, second = files(tmp_path)
    with Peer(first) as a, Peer(second) as b:
        for ours, theirs in zip(a, b, strict=True):
            assert ours["round"] == theirs["round"]
        thread = threading.Thread(target=b.result)  # each stays until the other has its last model
        thread.start()
        found = a.result()
        thread.join()
        assert [found.summary["rounds"], b.result().summary["rounds"]] == [3, 3]
    assert Run(tmp_path / "peer-0").finished
    assert Run(tmp_path / "peer-1").finished


@pytest.mark.parametrize(("metric", "models"), [("cosine-weights", 1), ("panm", 2)])
def test_a_metric_that_compares_updates_fetches_the_model_before_training_too(
    tmp_path: Path, metric: str, models: int
) -> None:
    method = {"name": "dac", "k": 1, "metric": metric}
    first, second = files(tmp_path, pace="lockstep", rounds=1, method=method)
    with Peer(first) as a, Peer(second) as b:
        thread = threading.Thread(target=b.step)  # in lockstep each waits for the other's model
        thread.start()
        a.step()
        thread.join()
    received = [status(tmp_path / name)["bytes_received"] for name in ("peer-0", "peer-1")]
    size = Layout.from_json(Run(tmp_path / "peer-0").about["layout"]).model_bytes
    assert received == [models * size, models * size]


# Logs


def test_two_peers_in_one_process_log_under_their_own_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = files(tmp_path, rounds=1)
    with Peer(first) as a, Peer(second) as b:
        a.step()
        b.step()
    for name, other in (("peer-0", "peer-1"), ("peer-1", "peer-0")):
        said = [record.getMessage() for record in caplog.records if record.name == f"homophily.peer.{name}"]
        lines = (tmp_path / name / "peer.log").read_text().splitlines()
        assert [line.split(" ", 2)[2] for line in lines] == said
        assert any(line.startswith(f"{name} listens on ") for line in said)
        assert f"{other} connected" in said
        assert not any(line.startswith((f"{other} listens on ", f"{name} connected")) for line in said)


def test_a_real_peer_logs_that_it_diverged_and_that_it_recovered(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "homophily.peer.me")
    was = False
    for line in (
        {"round": 1, "diverged": []},
        {"round": 2, "diverged": [0]},
        {"round": 3, "diverged": [0]},
        {"round": 4, "diverged": []},
    ):
        _report_divergence(peer_logger("me"), line, was)
        was = bool(line["diverged"])
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("the model of this peer diverged in round 2")
    assert second == "the model of this peer recovered in round 4"


# Use


def test_a_result_is_the_same_run_when_asked_for_again(alone: Path) -> None:
    peer = Peer(alone)
    found = peer.result()
    assert found.finished
    assert found.path == alone.parent / "peer-0"
    assert peer.result() is found
    with Peer(alone) as again:
        assert again.finished
        assert again.result() is again.result()
        assert again.result().summary["rounds"] == 3


def test_settings_may_be_given_as_loaded_or_by_the_name_of_their_file(alone: Path) -> None:
    assert Peer(str(alone)).settings == Peer(alone).settings == Peer(load(alone)).settings


@pytest.mark.parametrize("use", [Peer.step, lambda peer: peer.round, lambda peer: peer.finished, list], ids=str)
def test_a_peer_that_has_not_joined_says_how_to_join(alone: Path, use: Callable[[Peer], Any]) -> None:
    peer = Peer(alone)
    for _ in range(2):
        with pytest.raises(UserError, match=r"^this peer has not joined: use it as `with Peer\(settings\) as peer`"):
            use(peer)
        with peer:
            assert peer.round == 0  # and after it has left, it is refused again


def test_after_the_last_round_there_is_no_step(alone: Path) -> None:
    with Peer(alone) as peer:
        assert len(list(peer)) == 3
        with pytest.raises(UserError, match=r"peer-0 has finished: increase rounds in the peer's file"):
            peer.step()


def test_a_peer_goes_on_where_it_left(alone: Path) -> None:
    with Peer(alone) as peer:
        peer.step()
    with Peer(alone) as peer:
        assert peer.round == 1
        assert [metrics["round"] for metrics in peer] == [2, 3]
    run = Run(alone.parent / "peer-0")
    assert [line["round"] for line in run.metrics()] == [1, 2, 3]
    assert (run.history.rounds.tolist(), run.history.peers.tolist()) == ([1, 2, 3], [0])
    assert run.history.names == {0: "peer-0", 1: "peer-1"}
    assert {name: ids.tolist() for name, ids in run.history.contacts(3).items()} == {"met": [], "unreachable": []}
    assert set(run.frame().metric) >= {"accuracy", "loss", "models_sent_per_peer"}


def test_a_state_folder_has_one_user_at_a_time(alone: Path) -> None:
    with Peer(alone) as peer:
        with pytest.raises(UserError, match="peer-0 is in use"):
            Peer(alone).result()
        assert peer.step()["round"] == 1


def test_a_damaged_checkpoint_is_reported_and_nothing_is_changed(alone: Path) -> None:
    with Peer(alone) as peer:
        peer.step()
    state = alone.parent / "peer-0"
    (state / "checkpoints" / "round-000001" / "state.json").write_text("{}")
    config = (state / "config.toml").read_text()
    alone.write_text(alone.read_text().replace("rounds = 3", "rounds = 5"))
    with pytest.raises(UserError, match=r"round-000001 is damaged, or of another version"):
        Peer(alone).result()
    assert (state / "config.toml").read_text() == config
    assert "is damaged" in (state / "peer.log").read_text().splitlines()[-1]


def test_an_error_in_the_with_block_leaves_the_state_folder_whole(alone: Path) -> None:
    def fail() -> None:
        with Peer(alone) as peer:
            peer.step()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with Peer(alone) as peer:
        assert peer.round == 1


def test_a_peer_leaves_signals_as_they_were_and_may_be_used_by_any_thread(alone: Path) -> None:
    before, found = signal.getsignal(signal.SIGTERM), []
    thread = threading.Thread(target=lambda: found.append(Peer(alone).result()))
    thread.start()
    thread.join()
    assert found[0].summary["rounds"] == 3
    with Peer(alone):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_plaintext_is_for_loopback_addresses(alone: Path) -> None:
    alone.write_text(alone.read_text().replace("127.0.0.1", "0.0.0.0"))
    with pytest.raises(UserError, match=r"--insecure is allowed only if .* loopback addresses, not 0\.0\.0\.0:"):
        Peer(alone, insecure=True)


# Callbacks


def test_callbacks_see_every_round_and_add_metrics(alone: Path) -> None:
    watching = Watching()
    run = Peer(alone, callbacks=[watching]).result()
    assert watching.calls == [("start", 0), ("round", 1), ("round", 2), ("round", 3), ("end", 3)]
    assert [line["layers"] for line in run.metrics()] == [2, 2, 2]


def test_a_callback_stops_a_peer(alone: Path) -> None:
    watching = Watching(last=2)
    peer = Peer(alone, callbacks=[watching])
    run = peer.result()
    assert watching.calls == [("start", 0), ("round", 1), ("round", 2), ("end", 2)]
    assert run.finished
    assert run.summary["rounds"] == 2
    assert json.loads((run.path / "status.json").read_text())["round"] == 2
    with Peer(alone, callbacks=[Watching()]) as again:
        assert [metrics["round"] for metrics in again] == [3]


def test_what_is_not_a_callback_is_refused(alone: Path) -> None:
    with pytest.raises(UserError, match=r"callbacks=: must be a list of homophily\.Callback objects"):
        Peer(alone, callbacks=[print])  # type: ignore[list-item]


def test_a_peer_logs_its_own_metrics_in_a_tracker(alone: Path) -> None:
    alone.write_text('tracker = "csv"\n' + alone.read_text())
    with Peer(alone) as peer:
        peer.step()
    run = Peer(alone).result()
    header, *rows = (run.path / "csv" / "metrics.csv").read_text(encoding="utf-8").splitlines()
    accuracy = header.split(",").index("accuracy")
    assert [float(row.split(",")[accuracy]) for row in rows] == [line["accuracy"] for line in run.metrics()]
    assert [row.split(",")[0] for row in rows] == ["1", "2", "3"]
