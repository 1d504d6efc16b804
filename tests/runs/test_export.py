"""Exported models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors import safe_open
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
