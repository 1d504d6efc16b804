"""A real peer reads its own table: all rows, or those with its name; classes that are strings must be agreed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from homophily.errors import UserError
from homophily.peer import certificates
from homophily.peer.settings import load
from homophily.peer.setup import PeerSetup, prepare_peer

AGREED = 'scale = { class_names = ["ill", "well"] }'


@pytest.fixture
def clinic(tmp_path: Path) -> Path:
    """The folder of ann: her certificate, a table of her own, and one that she shares with bob."""
    certificates.init(tmp_path / "certs")
    certificates.issue(tmp_path / "certs", "ann", ["127.0.0.1"])
    x = np.random.default_rng(0).normal(size=(40, 2))
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "label": np.arange(40) % 2})
    frame.to_csv(tmp_path / "own.csv", index=False)
    named = frame.assign(label=np.where(frame["label"] == 1, "ill", "well"))
    named.assign(who=["ann", "ann", "ann", "bob"] * 10).to_parquet(tmp_path / "shared.parquet")
    return tmp_path


def prepared(clinic: Path, data: str) -> PeerSetup:
    file = clinic / "ann.toml"
    table = '[peer]\nname = "ann"\nallow = ["ann"]\ndevice = "cpu"\n'
    file.write_text(f'rounds = 1\nmethod = "local"\ndata = {{ {data} }}\n{table}')
    return prepare_peer(load(file))


def test_all_rows_of_an_own_file(clinic: Path) -> None:
    setup = prepared(clinic, 'name = "own.csv", target = "label", train = 30')
    data = setup.training.task.data
    assert (data.names, data.classes, data.train.count.tolist()) == (("own",), 2, [30])
    assert setup.config.data.keys == {"target": "label"}


def test_the_rows_with_the_peers_name(clinic: Path) -> None:
    data = prepared(clinic, f'name = "shared.parquet", target = "label", peer = "who", {AGREED}').training.task.data
    assert (data.names, data.class_names) == (("ann",), ("ill", "well"))
    assert int(data.train.count + data.test.count) == 30


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            'name = "shared.parquet", target = "label", peer = "who"',
            "data: the classes are strings, so data.scale must give class_names",
        ),
        (
            'name = "shared.parquet", target = "label", peer = "who", scale = { class_names = ["ill", "dead"] }',
            "peer 'ann': y contains the class 'well', which class_names of data.scale does not have",
        ),
        ('name = "own.csv", target = "label", peer = "label"', "no row has 'ann' (peer.name) in the column 'label'"),
        ('name = "own.csv"', "data.target is missing and has no default"),
        ('name = "ann.toml"', "data.name = 'ann.toml': must be a .npz, .csv or .parquet file, a folder or"),
    ],
)
def test_mistakes_are_reported(clinic: Path, data: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        prepared(clinic, data)
    assert message in str(error.value)


def test_samples_of_different_lengths_need_an_agreed_length(clinic: Path) -> None:
    tokens = pd.DataFrame({"ids": [[1, 2, 3], [4]] * 10, "y": [0, 1] * 10})
    tokens.to_parquet(clinic / "text.parquet")
    (clinic / "words.py").write_text(
        "from torch import nn\n\ndef words(outputs):\n"
        "    return nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(16, outputs))\n"
    )
    data = 'name = "text.parquet", target = "y"'
    with pytest.raises(UserError, match=r"data\.length is missing: samples differ in length"):
        prepared(clinic, data)
    sys.path.insert(0, str(clinic))
    try:
        setup = prepared(clinic, f'{data}, length = 4 }}\nmodel = {{ name = "words:words"')
    finally:
        sys.path.remove(str(clinic))
    assert setup.training.task.data.inputs == (4,)
