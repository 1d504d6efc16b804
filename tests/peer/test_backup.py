"""A peer whose state folder is lost continues from a backup that was taken while it ran."""

from __future__ import annotations

import shutil
from pathlib import Path

from homophily.peer import Peer
from homophily.peer.deploy import write_files
from homophily.runs.backup import back_up, restore
from homophily.simulation.configuration import make

QUICK = {
    "peers": 2,
    "rounds": 4,
    "method": {"name": "random", "k": 1},
    "data": {"train": 20, "test": 10, "angles": [0]},
    "model": "linear",
}


def test_a_peer_continues_from_a_backup_without_its_folder(tmp_path: Path) -> None:
    config = make(QUICK)
    file, _ = write_files(config, 2, tmp_path, "free", deadline=1.0, lease=0.5, wait_for=0)
    with Peer(file) as peer:
        peer.step()
        peer.step()
        state = peer.settings.state
        made = back_up(state, tmp_path / "state.tar")  # the peer holds the folder's lock
        assert (made.round, made.left_out) == (2, ())
        peer.step()
    shutil.rmtree(state)
    assert restore(tmp_path / "state.tar", state) == made
    with Peer(file) as peer:
        assert peer.round == 2
        assert peer.result().summary["rounds"] == 4
