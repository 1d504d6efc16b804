"""Objects of a wrong type or content that a Python caller passes: an error names the argument and what is allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import homophily


class Hasty(homophily.Method):
    metric = "loss"
    compares = False


def peer(**over: Any) -> homophily.PeerData:
    return homophily.PeerData(**{"x": np.eye(6), "y": np.arange(6) % 2, **over})


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"data": 3}, "data=: must be a list with the data of each peer, or a dict by peer name, not int"),
        (
            {"data": {"a": 3}},
            "data=: must be a list with the data of each peer, or a dict by peer name, and peer 'a' is",
        ),
        ({"data": [peer(x=np.zeros((6, 0)))]}, "peer 0: x and y must not be empty"),
        ({"data": [peer(y=np.zeros((6, 0)))]}, "peer 0: x and y must not be empty"),
        (
            {"data": [peer(x=np.eye(6, dtype=int))] * 3},
            "model: the network fails on integer inputs of shape [4, 6], which count as tokens",
        ),
        (
            {"model": "mlp"},
            "model=: must be one nn.Module, from which every peer starts, not 'mlp'; a name goes into the config as "
            "model.name",
        ),
        (
            {"model": nn.Linear},
            "model=: must be one nn.Module, from which every peer starts, not the class Linear; call it to make one",
        ),
        (
            {"model": [nn.Linear(6, 2), nn.Linear(6, 2)]},
            "model=: must be one nn.Module, from which every peer starts, not list",
        ),
        ({"model": nn.Sequential(nn.LazyLinear(2))}, "model: the network has lazy layers"),
        (
            {"method": "kin"},
            "method=: must be a homophily.Method object, not 'kin'; a name goes into the config as method.name",
        ),
        ({"method": Hasty}, "method=: must be a homophily.Method object, not the class Hasty; call it to make one"),
        ({"method": [Hasty()]}, "method=: must be a homophily.Method object, not list"),
        ({"loss": "mse"}, "loss=: must be a function of (outputs, targets), not 'mse'; a name goes into the config"),
        ({"loss": 3}, "loss=: must be a function of (outputs, targets), not int"),
        ({"method": Hasty()}, "method: Hasty.compares must be a function of (now), not False"),
        ({"extra_metrics": [len]}, "extra_metrics=: must be functions by name"),
        ({"config": [1]}, "config: must be a TOML file"),
        ({"config": {3: 1}}, "config: must be a TOML file"),
        ({"loss": lambda outputs, targets: 0.5}, "training.loss: must return a tensor with one loss per sample"),
    ],
)
def test_objects_of_another_kind_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(homophily.UserError) as refused:
        homophily.run(**{"config": {"rounds": 1}, "data": [peer()] * 3, **given})
    assert str(refused.value).startswith(sentence)


@pytest.mark.usefixtures("here")
def test_weights_that_are_nan_make_diverged_peers_and_no_traceback() -> None:
    net = nn.Sequential(nn.Linear(6, 2))
    with torch.no_grad():
        net[0].weight.fill_(torch.nan)
    found = homophily.run({"rounds": 1}, model=net, data=[peer()] * 3)
    assert found.summary["diverged"] == [0, 1, 2]
