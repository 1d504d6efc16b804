"""The preprocessing of the training samples is stored with the models and applied to new samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
def test_a_model_on_prepared_raw_samples_reproduces_its_score(tmp_path: Path, normalise: str, missing: bool) -> None:
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
        inputs = json.loads(file.metadata()["inputs"])
    assert inputs.pop("raw") == "numbers"
    statistics = {name: torch.tensor(values) for name, values in inputs.items()}
    raw = torch.as_tensor(peers[1].x)
    scaled = (raw - statistics["mean"]) * statistics["factor"]
    assert torch.allclose(torch.where(scaled.isnan(), statistics["fill"], scaled), ended.prepared(1, raw), atol=1e-6)


def test_pixels_are_scaled_as_in_training(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(12, 3, 4, 4), dtype=np.uint8)
    one = homophily.PeerData(x=images, y=np.arange(12) % 2, test_x=images, test_y=np.arange(12) % 2)
    ended = run(tmp_path / "run", "standard", one, one)
    ready = ended.prepared(0, images)
    assert torch.allclose(ready.mean((0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(ready.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5)


def test_a_feature_that_no_peer_observed_is_null_in_the_file(tmp_path: Path) -> None:
    one = peer(5.0, missing=False)
    one.x[:, 2] = NAN
    ended = run(tmp_path / "run", "standard", one, one)
    with safe_open(ended.export(0, tmp_path / "one.safetensors"), framework="pt") as file:
        assert json.loads(file.metadata()["inputs"], parse_constant=pytest.fail)["mean"][2] is None
    assert ended.prepared(0, one.x)[:, 2].tolist() == [0.0] * 20


def test_integers_are_accepted_if_training_samples_were_floats(tmp_path: Path) -> None:
    ended = run(tmp_path / "run", "standard", *[peer(5.0, missing=False)] * 2)
    whole = np.arange(8).reshape(2, 4)
    for dtype in (np.int64, np.uint8, np.float64):
        assert torch.equal(ended.prepared(0, whole.astype(dtype)), ended.prepared(0, whole.astype(np.float32)))


def test_a_float64_network_gets_float64_inputs(tmp_path: Path) -> None:
    one = peer(5.0, missing=False)
    ended = homophily.run({"rounds": 1}, data=[one, one], model=torch.nn.Linear(4, 2).double(), out=tmp_path / "run")
    assert ended.model(0)(ended.prepared(0, one.x)).shape == (20, 2)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((3, 5)), r"x: must have the shape \[n, 4\], not \[3, 5\]"),
        (np.zeros(4), r"x: must have the shape \[n, 4\], not \[4\]"),
        (np.zeros((3, 1)), r"x: must have the shape \[n, 4\], not \[3, 1\]"),
        (np.zeros((3, 4), dtype=complex), "x: the training samples were real numbers, but these are torch.complex128"),
        ([[1.0], [1.0, 2.0]], "x: cannot be made a tensor: "),
        ("text", "x: cannot be made a tensor: "),
        (None, "x: cannot be made a tensor: "),
        (np.array([[1.0, NAN, 2.0, 3.0]]), r"x has missing values \(NaN\), but the training samples had none"),
    ],
)
def test_invalid_samples_are_reported(tmp_path: Path, x: Any, message: str) -> None:
    ended = run(tmp_path / "run", "unit", *[peer(5.0, missing=False)] * 2)
    with pytest.raises(homophily.UserError, match=message):
        ended.prepared(0, x)
    assert ended.prepared(np.int64(1), np.zeros((1, 4))).shape == (1, 4)  # type: ignore[arg-type]
    for nobody in (2, -1, "1"):
        with pytest.raises(homophily.UserError, match=f"peer {nobody!r}: this run has peers 0 to 1"):
            ended.prepared(nobody, np.zeros((1, 4)))  # type: ignore[arg-type]


def test_pixels_outside_0_to_255_are_refused(tmp_path: Path) -> None:
    images = np.zeros((12, 1, 4, 4), dtype=np.uint8)
    one = homophily.PeerData(x=images, y=np.arange(12) % 2, test_x=images, test_y=np.arange(12) % 2)
    ended = run(tmp_path / "run", "half", one, one)
    assert torch.equal(ended.prepared(0, images.astype(np.int64)), ended.prepared(0, images))
    with pytest.raises(homophily.UserError, match="the training samples were whole numbers from 0 to 255, but these"):
        ended.prepared(0, images.astype(np.float32))
    with pytest.raises(homophily.UserError, match="pixels are whole numbers from 0 to 255, but these are 300 to 300"):
        ended.prepared(0, images.astype(np.int64) + 300)
