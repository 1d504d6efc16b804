"""Exported models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import homophily


def test_an_exported_model_names_its_classes_if_targets_were_strings(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(3, 12, 2)).astype(np.float32)
    labels = np.where(np.arange(12) % 2 == 0, "well", "ill").tolist()
    named = [homophily.PeerData(each, labels) for each in x]
    numbered = [homophily.PeerData(each, [0, 1] * 6) for each in x]
    for name, peers, expected in (("named", named, ["ill", "well"]), ("numbered", numbered, None)):
        run = homophily.run({"rounds": 1}, model=nn.Linear(2, 2), data=peers, out=tmp_path / name)
        with safe_open(run.export(0, tmp_path / f"{name}.safetensors"), framework="pt") as file:
            metadata = file.metadata()
        assert "inputs" in metadata
        assert (json.loads(metadata["class_names"]) if "class_names" in metadata else None) == expected


@pytest.fixture
def named(tmp_path: Path) -> homophily.Run:
    """Two peers; the name of the second is a number, and not its own."""
    x = np.random.default_rng(0).normal(size=(2, 12, 2)).astype(np.float32)
    peers = {name: homophily.PeerData(each, [0, 1] * 6) for name, each in zip(("north", "0"), x, strict=True)}
    return homophily.run({"rounds": 1, "method": "local"}, model=nn.Linear(2, 2), data=peers, out=tmp_path / "run")


def test_a_peer_is_exported_by_its_name_or_its_number(
    named: homophily.Run, command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    for peer, number in (("north", 0), ("0", 1), ("1", 1)):
        file = tmp_path / "model.safetensors"
        assert command("export", str(named.path), str(file), "--peer", peer)[0] == 0
        assert torch.equal(load_file(file)["weight"], named.state_dict(number)["weight"])


def test_an_unknown_peer_is_refused_with_those_that_exist(named: homophily.Run, tmp_path: Path) -> None:
    for peer in ("south", 2, -1):
        with pytest.raises(homophily.UserError, match=f"peer {peer!r}: this run has peers 0 to 1, named north, 0$"):
            named.export(peer, tmp_path / "model.safetensors")
