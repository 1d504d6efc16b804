"""The settings that a real peer takes from its own file."""

from pathlib import Path

import pytest

from homophily.errors import UserError
from homophily.peer.settings import load
from homophily.peer.setup import PeerSetup, prepare_peer


def prepared(clinic: Path, training: str) -> PeerSetup:
    table = '[peer]\nname = "ann"\nallow = ["bob", "ann"]\ndevice = "cpu"\n'
    file = clinic / "ann.toml"
    file.write_text(f'method = "local"\ndata = {{ name = "whole.npz" }}\n[training]\n{training}\n{table}')
    return prepare_peer(load(file))


def test_a_peer_takes_its_own_rate_and_epochs_from_those_of_all_peers(clinic: Path) -> None:
    setup = prepared(clinic, "lr_by_peer = [0.1, 0.2]\nepochs_by_peer = { ann = 7 }")
    settings = setup.training.task.settings
    assert (settings.lr, settings.epochs) == (0.2, 7)
    assert (setup.config.training.lr, setup.config.training.lr_by_peer) == (0.2, None)
    assert prepared(clinic, "lr_by_peer = { bob = 0.1 }").training.task.settings.lr == 0.05
    with pytest.raises(UserError, match="no peer or cluster is called 'eve'; there are bob, ann"):
        prepared(clinic, "lr_by_peer = { eve = 0.1 }")
