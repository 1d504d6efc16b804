"""The commands of real peers say what they did and how to go on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from homophily.config import make
from homophily.errors import UserError
from homophily.peer.deploy import status, write_files
from homophily.runs import Run


def test_a_stopped_peer_says_how_to_go_on(tmp_path: Path) -> None:
    endless = make({"rounds": 10**6, "peers": 2, "data": {"angles": [0, 180]}})
    file, _ = write_files(endless, 2, tmp_path, "free", wait_for=0)
    peer = subprocess.Popen([sys.executable, "-m", "homophily", "peer", str(file)], stderr=subprocess.PIPE, text=True)
    try:
        while not (tmp_path / "peer-0" / "status.json").exists():
            assert peer.poll() is None, "it ended before its first round"
            time.sleep(0.05)
        os.kill(peer.pid, signal.SIGTERM)
        _, said = peer.communicate(timeout=60)
    finally:
        peer.kill()
    assert peer.returncode == 130
    assert "stopped; the same command goes on where it was" in said
    assert "Traceback" not in said
    assert status(tmp_path / "peer-0")["round"] >= 1
    assert len(Run(tmp_path / "peer-0").metrics()) >= 1


def test_status_needs_a_peer_that_has_played(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not the state folder of a peer that has played a round"):
        status(tmp_path)
