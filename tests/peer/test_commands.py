"""The commands of real peers: what they print, and how to continue."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from homophily.atomic_io import read_metadata
from homophily.cli.peer import compared_communication
from homophily.errors import UserError
from homophily.federation.similarity import MetricCost, Pairs, costs
from homophily.peer import Peer, certificates
from homophily.peer.deploy import deploy, status, write_files
from homophily.peer.setup import peer_method
from homophily.runs.reader import Run
from homophily.simulation.configuration import make
from tests.patience import PATIENCE

Command = Callable[..., tuple[int, str, str]]


@costs(MetricCost(displacement=True))
def aligned(pairs: Pairs) -> Tensor:
    return (pairs.my_displacement * pairs.your_displacement).sum(1).double()


@costs(MetricCost())
def nearness(pairs: Pairs) -> Tensor:
    return -(pairs.mine - pairs.yours).square().sum(1).double()


def undeclared(pairs: Pairs) -> Tensor:
    return -(pairs.mine - pairs.yours).square().sum(1).double()


@contextmanager
def started(file: Path, far_enough: Callable[[], bool], *options: str) -> Iterator[subprocess.Popen[str]]:
    """A peer as a process of its own, which has come far enough; killed at the end."""
    words = [sys.executable, "-m", "homophily", "peer", str(file), *options]
    peer = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    state = file.parent / file.stem
    try:
        while not (state / "status.json").exists() or not far_enough():
            assert peer.poll() is None, "it ended before that"
            time.sleep(0.05)
        yield peer
    finally:
        peer.kill()


def test_a_stopped_peer_says_how_to_resume_it_and_exports_its_model(command: Command, tmp_path: Path) -> None:
    endless = make({"rounds": 10**6, "peers": 2, "data": {"angles": [0, 180]}})
    file, _ = write_files(endless, 2, tmp_path, "free", wait_for=0)
    with started(file, lambda: status(tmp_path / "peer-0")["round"] > 0) as peer:
        with pytest.raises(UserError, match=r"peer-0 is in use by another process"):
            Peer(file).result()
        running = Run(tmp_path / "peer-0").export("peer-0", tmp_path / "running.safetensors")
        assert 1 <= int(read_metadata(running)["round"]) <= status(tmp_path / "peer-0")["round"] + 1
        os.kill(peer.pid, signal.SIGTERM)
        _, said = peer.communicate(timeout=PATIENCE)
    assert peer.returncode == 130
    assert "stopped; the same command resumes it" in said
    assert "Traceback" not in said
    assert status(tmp_path / "peer-0")["round"] >= 1
    assert len(Run(tmp_path / "peer-0").metrics()) >= 1
    with pytest.raises(UserError, match=r"has not finished: its peer must play all rounds first$"):
        _ = Run(tmp_path / "peer-0").summary
    played = len(Run(tmp_path / "peer-0").metrics())
    code, out, _ = command("export", str(tmp_path / "peer-0"), "model.safetensors")  # --peer is not needed
    assert (code, out.splitlines()[0]) == (0, "model.safetensors")
    assert out.splitlines()[1] in (  # the last round may have ended before its checkpoint was written
        f"the model of round {played} of 1000000: the run has not finished",
        f"the model of round {played - 1} of 1000000: the run has not finished",
    )
    data = Run(tmp_path / "peer-0")
    raw = torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8)
    inputs = json.loads(read_metadata(tmp_path / "model.safetensors")["inputs"])
    prepared = (raw / 255 - torch.tensor(inputs["mean"])) * torch.tensor(inputs["factor"])
    assert torch.allclose(data.prepared(0, raw), prepared)
    assert torch.equal(load_file(tmp_path / "model.safetensors")["1.weight"], data.state_dict(0)["1.weight"])


def test_a_peer_serves_its_metrics_and_health(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    endless = make({"rounds": 10**6, "peers": 2, "data": {"angles": [0, 180]}})
    _, file = write_files(endless, 2, tmp_path, "free", wait_for=0)

    def failing() -> bool:  # the other peer is not there
        found = status(tmp_path / "peer-1")
        return found["round"] > 0 and bool(found["failed_connections"])

    with started(file, failing, "--metrics", f"127.0.0.1:{port}"):
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=PATIENCE) as answer:
            assert answer.status == 200
            assert answer.read().startswith(b"round ")
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
            text = answer.read().decode()
        found = status(tmp_path / "peer-1")
    assert 'homophily_neighbours_online{peer="peer-1"' in text
    assert f"{found['certificate_expires']!r}" in text
    assert list(found["failed_connections"].values()) == ["Connection refused (os error 111)"]


def test_status_needs_the_state_folder_of_a_peer(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not the state folder of a peer: it has no status"):
        status(tmp_path)


def test_a_state_folder_resumes_only_with_the_config_it_began_with(tmp_path: Path) -> None:
    config = make({"rounds": 2, "peers": 2, "data": {"angles": [0, 180]}, "method": {"name": "random", "k": 1}})
    file, _ = write_files(config, 2, tmp_path, "free", wait_for=0)
    Peer(file).result()
    state, asked = tmp_path / "peer-0", file.read_text()
    before = (state / "config.toml").read_text()
    for old, new, sentence in (
        ("lr = 0.05", "lr = 0.9", r"training\.lr = 0\.9, but .*peer-0 holds a state with 0\.05"),
        ("seed = 0", "seed = 5", r"seed = 5, but .*peer-0"),
        ("rounds = 2", "rounds = 1", r"rounds = 1, but .*peer-0"),
        ("patience = 0", "patience = 3", r"training\.patience"),
    ):
        assert old in asked
        file.write_text(asked.replace(old, new))
        with pytest.raises(UserError, match=sentence):
            Peer(file).result()
        assert (state / "config.toml").read_text() == before
    file.write_text(asked.replace("rounds = 2", "rounds = 3"))
    assert Peer(file).result().summary["rounds"] == 3


def test_keys_derived_from_the_rounds_stay_when_rounds_are_added(tmp_path: Path) -> None:
    config = make({"rounds": 6, "peers": 2, "data": {"angles": [0, 180]}, "method": {"name": "panm", "l": 1, "k": 1}})
    file, _ = write_files(config, 2, tmp_path, "free", wait_for=0)
    run = Peer(file).result()
    assert run.config.method.keys["t1"] == 2
    assert run.summary["notes"] == ["this peer received no model from any other peer"]
    stored = tmp_path / "peer-0" / "config.toml"
    stored.write_text(stored.read_text().replace("t1 = 2\n", ""))  # as it was before t1 was written down
    file.write_text(file.read_text().replace("rounds = 6", "rounds = 12"))
    assert Peer(file).result().config.method.keys["t1"] == 2
    file.write_text(file.read_text().replace('name = "panm"', 'name = "panm"\nt1 = 3'))
    with pytest.raises(UserError, match=r"method\.t1 = 3, but .*peer-0 holds a state with 2"):
        Peer(file).result()


def test_the_status_of_a_waiting_peer_names_the_peers_that_are_offline(tmp_path: Path) -> None:
    config = make({"rounds": 1, "peers": 2, "data": {"angles": [0, 180]}, "method": "random"})
    file, _ = write_files(config, 2, tmp_path, "free", wait_for=1)
    written = tmp_path / "peer-0" / "status.json"
    with started(file, written.exists) as peer:
        os.kill(peer.pid, signal.SIGTERM)
        peer.communicate(timeout=PATIENCE)
    found = status(written.parent)
    assert (found["round"], found["reachable"], found["unreachable"]) == (0, {}, ["peer-1"])
    log = (written.parent / "peer.log").read_text()
    assert " listens on 127.0.0.1:" in log
    assert log.endswith(" stops: interrupted; the same command resumes it from its state folder\n")


def test_files_that_differ_are_reported(tmp_path: Path) -> None:
    config = make({"rounds": 2, "peers": 2, "data": {"angles": [0, 180]}, "method": "random"})
    first, second = write_files(config, 2, tmp_path, "free", wait_for=1)
    second.write_text(second.read_text().replace("rounds = 2", "rounds = 3"))  # the learning rates may differ
    second.write_text(second.read_text().replace("lr = 0.05", "lr = 0.06"))
    with started(second, (tmp_path / "peer-1" / "config.toml").exists) as other:
        Peer(first).result()
        other.communicate(timeout=PATIENCE)
    log = (tmp_path / "peer-0" / "peer.log").read_text()
    assert log.count(" peer-1 has rounds = 3, but peer-0 has 2: give both the same value\n") == 1
    assert log.count(": give both ") == 1
    assert " peer-0 connected" not in log  # itself


def test_a_peer_killed_before_its_state_folder_was_complete_starts_again(tmp_path: Path) -> None:
    config = make({"rounds": 1, "peers": 2, "data": {"angles": [0, 180]}, "method": "random"})
    file, _ = write_files(config, 2, tmp_path, "free", wait_for=0)
    (tmp_path / "peer-0").mkdir()
    for name in ("run.json", "config.toml.part"):
        (tmp_path / "peer-0" / name).write_text("{}")
    assert Peer(file).result().summary["rounds"] == 1


def test_a_deployment_compares_weights_and_communication(command: Command, tmp_path: Path) -> None:
    words = ["rounds=1", "data.train=10", "data.angles=[0]", "model=linear", "method=random", "method.k=1"]
    code, out, _ = command("deploy", "--local", "2", *words, "--out", str(tmp_path / "both"))
    assert code == 0
    assert (
        "weights are identical, bit for bit; communication is identical, 1.00 models and 2600 bytes per peer; "
        "accuracy: real " in out
    )


def test_communication_that_differs_is_shown_for_both() -> None:
    bills = [{"models_sent_per_peer": models, "bytes_sent_per_peer": 100.0 * models} for models in (2.5, 3.0)]
    phrase = compared_communication({"bills_identical": False, "bill": bills[0], "simulated_bill": bills[1]})
    real, simulated = "2.50 models and 250 bytes per peer", "3.00 models and 300 bytes per peer"
    assert phrase == f"communication differs, real {real}, simulated {simulated}"


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"method": "oracle"}, r"method\.name = 'oracle': needs the true clusters, which real peers do not know"),
        ({"method": "fedavg"}, r"method\.name = 'fedavg': needs a server"),
        ({"contacts": 2}, r"contacts = 2: must be 'all'"),
        ({"method": {"name": "dac", "on": "peer"}}, r"method\.on = 'peer'"),
        ({"peers": 5}, r"peers = 5: must be 4"),
        (
            {"init": "independent", "method": {"name": "dac", "metric": "cosine-gradients"}},
            r"init = 'independent': must be 'common' for metric 'cosine-gradients', which compares displacements",
        ),
        (
            {"init": "independent", "method": {"name": "dac", "metric": f"{__name__}:aligned"}},
            r"init = 'independent': must be 'common' for metric '.*:aligned', which compares displacements",
        ),
        (
            {"init": "independent", "method": {"name": "dac", "metric": f"{__name__}:undeclared"}},
            r"for metric '.*:undeclared', which does not declare its cost and may compare displacements",
        ),
    ],
)
def test_unsupported_configs_are_reported_before_anything_runs(
    tmp_path: Path, keys: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        deploy(make({"rounds": 1, **keys}), 4, tmp_path)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("init", ["common", "independent"])
def test_a_metric_that_declares_to_compare_weights_only_needs_no_common_start(init: str) -> None:
    method = {"name": "dac", "metric": f"{__name__}:nearness"}
    assert peer_method(make({"init": init, "method": method}), 4).metric == method["metric"]
    for other in ("aligned", "undeclared", "nearness"):
        peer_method(make({"init": "common", "method": {"name": "dac", "metric": f"{__name__}:{other}"}}), 4)


@pytest.mark.parametrize("text", ["[1]", "5"])
def test_a_damaged_status_file_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "status.json").write_text(text)
    with pytest.raises(UserError, match=r"status\.json is damaged"):
        status(tmp_path)


@pytest.fixture
def clinic(tmp_path: Path) -> Path:
    """The folder of ann, who is alone, with her certificate and data."""
    folder = tmp_path / "clinic"
    (folder / "site").mkdir(parents=True)
    certificates.init(folder / "certs")
    certificates.issue(folder / "certs", "ann", ["127.0.0.1"], 1)
    patients(folder, seed=0)
    return folder


def patients(clinic: Path, seed: int) -> None:
    x, y = np.random.default_rng(seed).normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2
    np.savez(clinic / "site" / "ann.npz", x=x, y=y)


def test_a_peer_that_restarts_with_other_data_has_a_new_fingerprint_number(clinic: Path) -> None:
    """Others ask for a fingerprint again where its number has grown."""
    numbers = []
    for rounds, seed in ((1, 0), (2, 0), (3, 1)):
        patients(clinic, seed)
        asked = f'rounds = {rounds}\ndata = {{ name = "site" }}\nmethod = "kin"\n'
        (clinic / "ann.toml").write_text(asked + '[peer]\nname = "ann"\nallow = ["ann"]\n')
        folder = Peer(clinic / "ann.toml").result().path
        state = json.loads((folder / "checkpoints" / f"round-{rounds:06d}" / "state.json").read_text())
        numbers.append(state["printed"])
    assert numbers == [0, 0, 1]


def test_the_data_of_a_peer_may_be_a_folder_but_not_a_text_file(clinic: Path) -> None:
    folder = clinic
    (folder / "site.txt").write_text("x,y\n")
    file = folder / "ann.toml"
    table = '[peer]\nname = "ann"\nallow = ["ann"]\n'
    file.write_text('rounds = 1\ndata = { name = "site" }\n' + table)
    assert Peer(file).result().summary["rounds"] == 1
    log = (folder / "ann" / "peer.log").read_text()
    assert f" the certificate {folder}/certs/ann.pem expires on 20" in log
    file.write_text('rounds = 1\ndata = { name = "site.txt" }\n' + table)
    with pytest.raises(UserError, match=r"data\.name = 'site\.txt': must be a \.npz, \.csv or \.parquet file"):
        Peer(file).result()
