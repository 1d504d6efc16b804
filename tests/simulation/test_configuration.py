"""The layers of a config: key=value pairs override a file, and a file overrides the defaults."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import homophily
from homophily.config.overlay import nested
from homophily.runs.writer import RunWriter
from homophily.simulation.configuration import load, make
from homophily.simulation.setup import prepare
from homophily.simulation.user_objects import UserObjects


def test_key_value_lies_over_the_file_and_the_file_over_the_defaults(here: Path) -> None:
    file = here / "config.toml"
    file.write_text("rounds = 7\nseed = 3\n[training]\nlr = 0.5\nbatch = 4\n[data]\nangles = [0, 180]\n")
    config = load(file, nested(["rounds=9", "training.lr=0.25", "data.train=5"]))
    assert (config.rounds, config.seed) == (9, 3)
    assert (config.training.lr, config.training.batch, config.training.epochs) == (0.25, 4, 3)
    assert config.data.keys == {"angles": [0, 180]}
    assert (config.data.train, config.data.name) == (5, "digits")


def test_a_name_may_stand_for_its_table() -> None:
    assert make(nested(["method=oracle"])) == make({"method": {"name": "oracle"}}) == make({"method": "oracle"})
    assert make(nested(["method=oracle", "method.k=3"])).method.keys == {"k": 3}
    assert make(nested(["method.k=3", "method=oracle"])).method.name == "oracle"
    assert make(nested(["data=linear"])).data.name == "linear"
    assert make(nested(["topology=full"])).topology.name == "full"


def test_numbers_may_be_numpys() -> None:
    config = make({"peers": np.int64(8), "training": {"lr": np.float32(0.5)}, "data": {"angles": (np.int32(0), 180)}})
    assert config == make({"peers": 8, "training": {"lr": 0.5}, "data": {"angles": [0, 180]}})


def test_strings_on_the_command_line_need_no_quotes() -> None:
    values = nested(["score=after-training", "data.sizes=[1, 2]", "training.lr=1e-2", "data.balanced=true", 'init="x"'])
    assert values == {
        "score": "after-training",
        "data": {"sizes": [1, 2], "balanced": True},
        "training": {"lr": 0.01},
        "init": "x",
    }


LAYERED = [
    pytest.param("[method]\nname='random'\nk=7", ["method=local"], "method", {}, id="local has no k"),
    pytest.param("[method]\nname='random'\nk=7", ["method=oracle"], "method", {"k": 7}, id="oracle has k too"),
    pytest.param("[method]\nk=7", ["method=kin"], "method", {"k": 7}, id="the default, named"),
    pytest.param("[method]\nname='local'", ["method=oracle", "method.k=2"], "method", {"k": 2}, id="with its key"),
    pytest.param("[model]\nname='mlp'\nhidden=[9]", ["model=linear"], "model", {}, id="another model"),
    pytest.param("[model]\nhidden=[9]", ["model=mlp"], "model", {"hidden": [9]}, id="the same model"),
    pytest.param("[data]\nangles=[0, 90]", ["data=linear"], "data", {}, id="another data set"),
    pytest.param("[data]\nangles=[0, 90]", ["data=digits"], "data", {"angles": [0, 90]}, id="the same data set"),
    pytest.param("[data]\nangles=[0, 90]", ["data.shift=iid"], "data", {}, id="another shift"),
    pytest.param("[data]\nangles=[0, 90]", ["data.shift=rotation"], "data", {"angles": [0, 90]}, id="the same shift"),
    pytest.param(
        "[data]\nname='linear'\nfeatures=5\nclusters=2", ["data.shift=iid"], "data", {"features": 5}, id="of the set"
    ),
]


@pytest.mark.parametrize(("text", "words", "table", "keys"), LAYERED)
def test_naming_another_one_drops_the_keys_it_does_not_have(
    text: str, words: list[str], table: str, keys: dict[str, Any], here: Path
) -> None:
    (here / "config.toml").write_text(text)
    assert getattr(load(here / "config.toml", nested(words)), table).keys == keys


def test_naming_another_data_set_drops_the_shift_of_the_one_before(here: Path) -> None:
    (here / "config.toml").write_text("[data]\nname = 'digits'\nshift = 'rotation'\ntrain = 7\n")
    data = load(here / "config.toml", nested(["data=linear"])).data
    assert (data.name, data.shift, data.train) == ("linear", None, 7)


# The whole config

ALL_KEYS = """
seed = 0
peers = 60
rounds = 60
score = "after-merge"        # or "after-training"
merge = "uniform"
topology = "full"            # a table where it has settings: { name = "torus", rows = 10 }
engine = "auto"              # or "vectorised", "one-by-one"
precision = "full"           # or "fast"
init = "common"              # or "independent"
contacts = "all"                 # or how many peers each one knows
evaluate = 1                 # score every so many rounds
checkpoint = 10              # save every so many rounds

[data]
name = "digits"              # a name from `homophily list data`, a folder, or package.module:function
shift = "rotation"
angles = [0, 90, 180, 270]
# sizes = [15, 15, 15, 15]   # peers in each cluster; left out: equal
normalise = "standard"       # per channel over the training set; "half": (x - 0.5) / 0.5; "unit": as it is, 0 to 1
train = 20                   # samples a peer; "all": everything divided
validation = 0
test = 100                   # "all": the whole test set under the cluster's shift

[model]
name = "mlp"
hidden = [32]
personal = []                # name patterns of layers and buffers that are never merged
frozen = []
cache_features = true

[training]
optimizer = "sgd"
lr = 0.05
momentum = 0.9
weight_decay = 0.0
decay = 0.99                 # of the learning rate, a round
batch = 10
epochs = 3
patience = 0                 # early stopping; 0: off

[method]
name = "kin"
k = 4
"""


def test_the_file_with_all_keys_equals_the_defaults(here: Path) -> None:
    (here / "all.toml").write_text(ALL_KEYS)
    configs = [
        prepare(config, UserObjects(), torch.device("cpu"))[1] for config in (load(here / "all.toml"), load(None))
    ]
    for number, config in enumerate(configs):
        RunWriter.create(here / str(number), "").write_config(config)
    from_file, from_nothing = (tomllib.loads((here / str(n) / "config.toml").read_text()) for n in range(2))
    assert from_file == from_nothing
    asked = tomllib.loads(ALL_KEYS) | {"topology": {"name": "full"}}
    tables = ("data", "training", "method")  # these may have more keys, with defaults
    assert {key: from_nothing[key] for key in asked if key not in tables} == {
        key: asked[key] for key in asked if key not in tables
    }
    for table in tables:
        assert {key: from_nothing[table][key] for key in asked[table]} == asked[table]


def test_the_config_in_the_run_folder_makes_the_same_run_again(here: Path) -> None:
    first = homophily.run({"peers": 8, "rounds": 2}, out=here / "first")
    again = homophily.run(first.path / "config.toml", out=here / "again")
    assert again.config == first.config
    assert again.scores == first.scores
    assert (again.path / "models.safetensors").read_bytes() == (first.path / "models.safetensors").read_bytes()
