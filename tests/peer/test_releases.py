"""Real peers under [privacy]: secret noise, a ledger before bytes leave, and what was released is sent as it was."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import homophily
from homophily import Run
from homophily.atomic_io import read_tensors
from homophily.errors import UserError
from homophily.peer import Peer
from homophily.peer.blob_transfer import BlobTransfer
from homophily.peer.deploy import Deployment, start_peer, status, write_files
from homophily.peer.identity import Refused
from homophily.peer.wire import pack_released, unpack_model, unpack_released
from homophily.privacy import accountant
from homophily.runs.backup import back_up, restore
from homophily.simulation.configuration import make

Command = Callable[..., tuple[int, str, str]]
QUICK: dict[str, Any] = {
    "rounds": 3, "method": {"name": "kin", "k": 1}, "data": {"train": 40, "test": 10, "angles": [0]},
    "model": "linear", "training": {"batch": 10}, "privacy": {"epsilon": 20.0},
}  # fmt: skip


def files(folder: Path, peers: int = 2, peer: dict[str, Any] | None = None, **keys: Any) -> list[Path]:
    alone = {"deadline": 1.0, "lease": 0.5, "wait_for": 0}
    return write_files(make({**QUICK, **keys, "peers": peers}), peers, folder, "free", **(peer or alone))


def lines(state: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (state / "released" / "ledger.jsonl").read_text().splitlines()]


def released(state: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (state / "released").glob("*.safetensors")}


def test_a_peer_spends_what_it_promises_and_says_so(tmp_path: Path) -> None:
    file = files(tmp_path)[0]
    summary = Peer(file).result().summary["privacy"]
    state = tmp_path / "peer-0"
    assert [line.get("name") for line in lines(state)] == [None, "fingerprint 0", "round 1", "round 2", "round 3"]
    assert (summary["epsilon_promised"], summary["unit"]) == (20.0, "sample")
    assert 19.8 < summary["epsilon_spent"] <= 20.0
    assert status(state)["privacy"] == summary
    for kept in (state / "released" / f"model-{round:06d}.safetensors" for round in (2, 3)):  # as many as are published
        assert kept.exists()
    assert len(released(state)) == 3


def test_the_simulators_draws_do_not_predict_a_real_peers(tmp_path: Path) -> None:
    """Two real peers with one seed and one data set differ from the simulation, and from each other."""
    config = make({**QUICK, "method": "local", "peers": 2})
    simulated = homophily.run(config, out=tmp_path / "simulated").path
    rows = [read_tensors(simulated / "models.safetensors")["rows"][:1]]
    for folder in ("a", "b"):
        rows.append(
            read_tensors(Peer(files(tmp_path / folder, method="local")[0]).result().path / "models.safetensors")["rows"]
        )
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert float((rows[one] - rows[other]).abs().min()) > 0  # no parameter is predicted
    found = Deployment(tmp_path, [Run(tmp_path / "a" / "peer-0")] * 2, Run(simulated), 1.0).result()
    assert (found["identical"], found["bills_identical"]) == (None, None)


def test_a_killed_peer_sends_again_what_it_has_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kill -9 between the ledger and the first byte of the model of round 2."""
    file, state = files(tmp_path)[0], tmp_path / "peer-0"
    process = start_peer(file, tmp_path / "peer-0.log", killed_before_sending)
    process.join(90)
    assert process.exitcode == -signal.SIGKILL
    assert [line.get("name") for line in lines(state)][-1] == "round 2"
    assert Run(state).metrics()[-1]["round"] == 1  # round 2 is not over
    before, spent = released(state), lines(state)
    sent: list[tuple[str, int, bytes]] = []
    publish = BlobTransfer.publish

    def spy(self: BlobTransfer, kind: Any, round: int, data: bytes) -> None:
        sent.append((kind, round, data))
        publish(self, kind, round, data)

    monkeypatch.setattr(BlobTransfer, "publish", spy)
    with Peer(file) as peer:
        assert [(kind, round) for kind, round, _ in sent] == [("model", 1), ("model", 2)]  # at once, without training
        assert peer.step()["round"] == 2
        (packed,) = {data for kind, round, data in sent if (kind, round) == ("model", 2)}
        message = unpack_model(packed, peer._setup.expected)
    assert released(state) == before  # neither the fingerprint nor the model has fresh noise
    assert lines(state) == spent
    stored = read_tensors(state / "released" / "model-000002.safetensors")
    assert message.row is not None
    assert torch.equal(stored["row"], message.row)
    assert bytes(stored["model"].numpy().tobytes()) == packed
    assert message.samples == 1  # not the number of samples


def killed_before_sending(file: Path, log: Path) -> None:
    publish = BlobTransfer.publish

    def kill(self: BlobTransfer, kind: Any, round: int, data: bytes) -> None:
        if (kind, round) == ("model", 2):
            os.kill(os.getpid(), signal.SIGKILL)
        publish(self, kind, round, data)

    BlobTransfer.publish = kill  # type: ignore[method-assign]
    Peer(file).result()


def test_private_peers_exchange_fingerprints_and_models(tmp_path: Path) -> None:
    first, second = files(tmp_path, peer={"deadline": 10.0, "wait_for": 1})
    with Peer(first) as a, Peer(second) as b:
        for _ in range(3):
            thread = threading.Thread(target=b.step)
            thread.start()
            a.step()
            thread.join()
        notes = a._opened().state.exchange.summary(3)["notes"]
    assert any("family of 2 peers" in note or "count as one family" in note for note in notes)
    assert [status(tmp_path / name)["refused"] for name in ("peer-0", "peer-1")] == [{}, {}]
    merged = [line["merged"] for name in ("peer-0", "peer-1") for line in Run(tmp_path / name).metrics()]
    assert any(merged), "peers that never merge prove nothing"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("rounds = 3", "rounds = 5"), "keeps its promise .* for 3 rounds"),
        (("epsilon = 20.0", "epsilon = 30.0"), "privacy.epsilon = 30.0, but .* holds a state with 20.0"),
        (("train = 40", "train = 44"), "another number of samples|data.train"),
    ],
)
def test_a_promise_is_neither_extended_nor_changed(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    file = files(tmp_path)[0]
    with Peer(file) as peer:
        peer.step()
    before = lines(tmp_path / "peer-0")
    file.write_text(file.read_text().replace(*change))
    with pytest.raises(UserError, match=message):
        Peer(file).result()
    assert lines(tmp_path / "peer-0") == before


def test_the_state_of_a_private_peer_is_not_resumed_as_a_simulation(tmp_path: Path) -> None:
    with Peer(files(tmp_path)[0]) as peer:
        peer.step()
    before = lines(tmp_path / "peer-0"), Run(tmp_path / "peer-0").metrics()
    with pytest.raises(UserError, match=r"is the state of a real peer with .* continue it with `homophily peer`"):
        homophily.resume(tmp_path / "peer-0")
    assert (lines(tmp_path / "peer-0"), Run(tmp_path / "peer-0").metrics()) == before


def test_without_its_ledger_or_a_released_model_a_peer_stops(tmp_path: Path) -> None:
    file, folder = files(tmp_path)[0], tmp_path / "peer-0" / "released"
    with Peer(file) as peer:
        peer.step()
    (folder / "fingerprint-0.safetensors").rename(folder / "hidden")
    with pytest.raises(UserError, match="fingerprint 0 was released and must not be made anew"):
        Peer(file).result()
    (folder / "ledger.jsonl").unlink()
    with pytest.raises(UserError, match="is missing, so what this peer has released is unknown"):
        Peer(file).result()


def test_a_peer_goes_on_with_the_noise_of_its_ledger_on_a_machine_that_computes_other_last_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, state = files(tmp_path)[0], tmp_path / "peer-0"
    with Peer(file) as peer:
        peer.step()
    begun = lines(state)
    solved = accountant.gaussian_noise
    monkeypatch.setattr(accountant, "gaussian_noise", lambda *promise: solved(*promise) * (1 + 1e-13))
    monkeypatch.setattr(accountant, "_RELATIVE", 3e-4)  # another search finds another root
    accountant.solve.cache_clear()
    assert Peer(file).result().summary["privacy"]["epsilon_spent"] <= 20.0
    after = lines(state)
    assert after[:3] == begun
    assert [{**line, "name": ""} for line in after[2:]] == [{**begun[2], "name": ""}] * 3  # one noise in all rounds


def test_a_fingerprint_may_differ_in_the_last_digits_of_its_noise() -> None:
    vector = torch.linspace(-3, 3, 65).double()
    packed = pack_released(vector, 2.0, 7)
    assert torch.allclose(unpack_released(packed, 2.0 * (1 + 1e-13), 7), vector, atol=2e-3)
    with pytest.raises(Refused, match="other noise"):
        unpack_released(packed, 2.001, 7)


def test_too_much_noise_is_refused_before_a_peer_opens_a_link_or_a_folder(tmp_path: Path) -> None:
    (file, _) = files(tmp_path, privacy={"epsilon": 0.1})
    with pytest.raises(UserError, match=r"above privacy\.max_noise = 30; what would do: epsilon = "):
        Peer(file)
    assert not (tmp_path / "peer-0").exists()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"method": {"name": "pens"}}, "compares losses on private data"),
        ({"method": {"name": "dac", "metric": "loss"}, "merge": "fedsim"}, "compares losses on private data"),
        ({"merge": "fedavg"}, "exact sample counts"),
        ({"training": {"batch": 10, "patience": 2}, "data": {**QUICK["data"], "validation": 10}}, "patience"),
        ({"tracker": "wandb"}, "tracker = 'wandb' may send scores"),
        ({"tracker": "mlflow"}, "tracker = 'mlflow' may send scores"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_real_peer_refuses_what_its_account_does_not_cover(
    tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        Peer(files(tmp_path, **keys)[0])
    assert not (tmp_path / "peer-0").exists()


def test_a_tracker_on_this_machine_is_allowed(tmp_path: Path) -> None:
    assert Peer(files(tmp_path, tracker="csv", rounds=1)[0]).result().summary["privacy"]["epsilon_spent"] <= 20.0


def test_noise_hides_the_simulations_model_from_whoever_knows_the_seed(tmp_path: Path) -> None:
    """The displacement of a simulation, all of it noise, tells nothing of a real peer's."""
    keys: dict[str, Any] = {"method": "local", "rounds": 1, "privacy": {"epsilon": 0.5, "max_noise": 1000.0}}
    runs = [homophily.run(make({**QUICK, **keys, "peers": 2}), out=tmp_path / str(i), device="cpu") for i in range(2)]
    real = [Peer(files(tmp_path / name, **keys)[0]).result() for name in ("a", "b")]
    rows = torch.stack([read_tensors(run.path / "models.safetensors")["rows"][0] for run in (*runs, *real)]).double()
    likeness = torch.corrcoef(rows)
    assert float(likeness[0, 1]) == pytest.approx(1.0)
    for one, other in ((0, 2), (0, 3), (2, 3)):
        assert abs(float(likeness[one, other])) < 0.3


def test_a_backup_of_a_private_peer_is_restored_only_if_nothing_was_released_since(tmp_path: Path) -> None:
    file, state = files(tmp_path)[0], tmp_path / "peer-0"
    with Peer(file) as peer:
        peer.step()
        back_up(state, tmp_path / "early.tar")
        peer.step()
    back_up(state, tmp_path / "late.tar")
    with pytest.raises(UserError, match="may have released models after this backup"):
        restore(tmp_path / "early.tar", tmp_path / "again")
    assert not (tmp_path / "again").exists()
    spent = lines(state)
    state.rename(tmp_path / "lost")
    restore(tmp_path / "late.tar", state, nothing_since=True)
    Peer(file).result()
    assert lines(state)[: len(spent)] == spent
    restore_finished = tmp_path / "finished"
    back_up(state, tmp_path / "end.tar")
    restore(tmp_path / "end.tar", restore_finished)
    assert lines(restore_finished) == lines(state)


def test_noise_is_in_no_file_of_the_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the operating system's generator returned is nowhere on disk."""
    drawn: list[bytes] = []
    urandom = os.urandom

    def spy(n: int) -> bytes:
        drawn.append(urandom(n))
        return drawn[-1]

    monkeypatch.setattr(os, "urandom", spy)
    Peer(files(tmp_path)[0]).result()
    long = [data for data in drawn if len(data) >= 8 * 40]
    assert len(long) > 3 * 4
    stored = b"".join(path.read_bytes() for path in (tmp_path / "peer-0").rglob("*") if path.is_file())
    assert not any(data[:16] in stored for data in long)


@pytest.mark.parametrize("log", [["--log-stderr"], []])
def test_the_output_that_a_container_collects_has_no_scores(tmp_path: Path, command: Command, log: list[str]) -> None:
    file = files(tmp_path, rounds=1)[0]
    code, out, err = command("peer", str(file), *log)
    assert code == 0
    assert "epsilon spent" in out
    for word in ("mean over peers", "accuracy"):
        assert (word in out + err) == (not log)
