"""The option --live of run: the page is there from the start of the run to its end."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from homophily.cli.live import follow_folder
from homophily.errors import UserError
from homophily.peer import Peer
from homophily.peer.deploy import write_files
from homophily.report.live.following import Following
from homophily.report.live.prometheus import exposition
from homophily.simulation.configuration import make
from tests.patience import PATIENCE


def test_a_signal_ends_the_server_quietly_though_a_page_is_open(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "homophily", "live", str(tmp_path / "later")]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        assert server.stderr.readline() == f"no run has begun in {tmp_path / 'later'}: the page waits for one\n"
        address = server.stderr.readline().removeprefix("live page: ").strip()
        with urlopen(f"{address}events", timeout=PATIENCE) as events:
            assert events.readline() == b"retry: 1000\n"
            server.terminate()
            assert b"event: ended" not in events.read()  # the page tries to reach the next server
        out, err = server.communicate(timeout=PATIENCE)
    finally:
        server.kill()
    assert (server.returncode, out, err) == (-signal.SIGTERM, "", "")


def test_a_run_serves_its_page_and_tells_it_the_end(tmp_path: Path) -> None:
    words = ["run", "peers=8", "rounds=400", "data.test=20", "--out", str(tmp_path / "run"), "--live", "--json"]
    command = [sys.executable, "-m", "homophily", *words]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert run.stderr is not None
        said = run.stderr.readline()
        assert said.startswith("live page: http://127.0.0.1:")
        address = said.removeprefix("live page: ").strip()
        with urlopen(f"{address}events", timeout=PATIENCE) as events:
            with urlopen(f"{address}data", timeout=PATIENCE) as answer:
                assert json.load(answer)["views"][0]["name"] == str(tmp_path / "run")
            heard = events.read().decode()  # until the server ends
        out, _ = run.communicate(timeout=PATIENCE)
    finally:
        run.kill()
    assert run.returncode == 0
    assert json.loads(out.splitlines()[-1])["rounds"] == 400
    assert heard.count("event: changed") >= 2
    assert heard.endswith("event: ended\ndata:\n\n")


def test_a_resumed_run_serves_the_same_address(tmp_path: Path) -> None:
    """So that a page that is open goes on after a kill."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    live = ["--live", "--live-port", str(port)]
    words = ["run", "peers=8", "rounds=4000", "checkpoint=1", "data.test=20", "--out", str(tmp_path / "run"), *live]
    for arguments in (words, ["run", "--resume", str(tmp_path / "run"), *live]):
        run = subprocess.Popen([sys.executable, "-m", "homophily", *arguments], stderr=subprocess.PIPE, text=True)
        try:
            assert run.stderr is not None
            assert run.stderr.readline() == f"live page: http://127.0.0.1:{port}/\n"
            with urlopen(f"http://127.0.0.1:{port}/data", timeout=PATIENCE) as answer:
                assert json.load(answer)["views"][0]["name"] == str(tmp_path / "run")
        finally:
            run.kill()
            run.communicate()


def test_a_folder_of_several_peers_is_refused_with_the_names_of_theirs(
    tmp_path: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    for name in ("peer-10", "peer-2", "simulation"):
        (tmp_path / "deployed" / name).mkdir(parents=True)
        (tmp_path / "deployed" / name / "config.toml").touch()
    inside = f"it holds peer-2, peer-10, simulation: name one of these, such as {tmp_path / 'deployed' / 'peer-2'}\n"
    for words in (["live"], ["report"], ["status"], ["export", "--peer", "0", "model.safetensors"]):
        code, _, err = command(*words[:1], str(tmp_path / "deployed"), *words[3:], *words[1:3])
        assert (code, err.endswith(inside)) == (2, True), err


def test_a_port_without_a_page_is_refused() -> None:
    words = [sys.executable, "-m", "homophily", "run", "--live-port", "8080"]
    refused = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (refused.returncode, refused.stderr) == (2, "error: --live-port is the port of --live: add --live\n")


def test_scores_of_a_private_peer_stay_on_its_machine(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "rounds": 1, "peers": 1, "method": "local", "data": {"train": 40, "test": 10, "angles": [0]},
        "model": "linear", "training": {"batch": 10}, "privacy": {"epsilon": 8.0},
    }  # fmt: skip
    for name, keys in {"private": config, "plain": {key: config[key] for key in config if key != "privacy"}}.items():
        (file,) = write_files(make(keys), 1, tmp_path / name, "free", deadline=1.0, wait_for=0)
        Peer(file).result()
    state = tmp_path / "private" / "peer-0"
    assert "homophily_score" not in exposition(state)
    assert "homophily_epsilon_spent" in exposition(state)
    assert "homophily_score" in exposition(tmp_path / "plain" / "peer-0")
    with pytest.raises(UserError, match=r"--host 0\.0\.0\.0: this peer promises privacy"):
        follow_folder(state, host="0.0.0.0")
    (hidden,) = Following(state, shared=True).snapshot().views  # the peer began after the page
    assert (hidden.state, hidden.facts) == ("unreadable", [])
    assert Following(state).snapshot().views[0].state == "finished"
    assert Following(tmp_path / "plain" / "peer-0", shared=True).snapshot().views[0].state == "finished"
