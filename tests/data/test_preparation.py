"""What training samples went through is kept with the models, and done again to new samples."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

import homophily

NAN = float("nan")


def peer(shift: float, missing: bool) -> homophily.PeerData:
    rng = np.random.default_rng(int(shift))
    x = rng.normal(shift, 3.0, size=(20, 4)).astype(np.float32)
    if missing:
        x[::3, 1] = NAN
    return homophily.PeerData(x=x, y=np.arange(20) % 2, test_x=x, test_y=np.arange(20) % 2)


def run(folder: Path, normalise: str, *peers: homophily.PeerData) -> homophily.Run:
    config = {"rounds": 1, "data": {"normalise": normalise}, "method": {"name": "local"}}
    return homophily.run(config, data=peers, out=folder, device="cpu")


@pytest.mark.parametrize("normalise", ["unit", "half", "standard"])
@pytest.mark.parametrize("missing", [False, True])
def test_a_model_gives_on_raw_samples_what_it_was_scored_with(tmp_path: Path, normalise: str, missing: bool) -> None:
    peers = [peer(5.0, missing), peer(9.0, missing)]
    ended = run(tmp_path / "run", normalise, *peers)
    for number, one in enumerate(peers):
        outputs = ended.model(number)(ended.prepared(number, one.x))
        right = (outputs.argmax(1) == torch.as_tensor(one.y)).double().mean()
        assert ended.scores["accuracy"][number] == pytest.approx(100 * float(right))


def test_an_exported_file_says_how_to_prepare_inputs(tmp_path: Path) -> None:
    peers = [peer(5.0, missing=True), peer(9.0, missing=True)]
    ended = run(tmp_path / "run", "standard", *peers)
    with safe_open(ended.export(1, tmp_path / "one.safetensors"), framework="pt") as file:
        told = {name: torch.tensor(values) for name, values in json.loads(file.metadata()["inputs"]).items()}
    raw = torch.as_tensor(peers[1].x)
    scaled = (raw - told["mean"]) * told["factor"]
    assert torch.allclose(torch.where(scaled.isnan(), told["fill"], scaled), ended.prepared(1, raw), atol=1e-6)


def test_pixels_are_scaled_as_in_training(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(12, 3, 4, 4), dtype=np.uint8)
    one = homophily.PeerData(x=images, y=np.arange(12) % 2, test_x=images, test_y=np.arange(12) % 2)
    ended = run(tmp_path / "run", "standard", one, one)
    ready = ended.prepared(0, images)
    assert torch.allclose(ready.mean((0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(ready.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5)


def test_what_never_was_missing_cannot_be_filled_in(tmp_path: Path) -> None:
    ended = run(tmp_path / "run", "unit", *[peer(5.0, missing=False)] * 2)
    with pytest.raises(homophily.UserError, match="x: it has missing values, and in training nothing was missing"):
        ended.prepared(0, np.array([[1.0, NAN, 2.0, 3.0]]))
    with pytest.raises(homophily.UserError, match="peer 2: this run has peers 0 to 1"):
        ended.prepared(2, np.zeros((1, 4)))
