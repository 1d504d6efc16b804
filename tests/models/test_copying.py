"""Plain tensors in a network's attributes: constants work in every engine, others are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import homophily
from homophily.errors import UserError
from homophily.federation.layout import Layout
from homophily.models.copying import constants, copied, on_device
from homophily.training.stacked.chain import UnsupportedLayer, chain_of
from tests.experiments.test_own import CLASSES, FEATURES, peers, rows, settings


class Scaled(nn.Module):
    """Scales its inputs by constants: plain tensors, or non-persistent buffers."""

    def __init__(self, plain: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(FEATURES, CLASSES)
        scale = torch.linspace(0.5, 1.5, FEATURES)
        self.more: dict[str, Any] = {"shift": [torch.tensor(0.1)], "power": (1, torch.tensor(2.0))}
        if plain:
            self.scale = scale
        else:
            self.register_buffer("scale", scale, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer((x * self.scale + self.more["shift"][0]) * self.more["power"][1])


@pytest.mark.parametrize("engine", ["vectorised", "one-by-one"])
def test_constant_tensors_give_the_same_results_as_buffers_in_every_engine(engine: str, here: Path) -> None:
    plain, kept = (homophily.run(settings(engine=engine), model=Scaled(p), data=peers()) for p in (True, False))
    assert torch.equal(rows(plain), rows(kept))
    assert plain.scores == kept.scores
    x = torch.as_tensor(peers()[1].x)
    assert torch.equal(plain.model(1)(x), kept.model(1)(x))


def test_constant_tensors_move_with_the_network() -> None:
    there = torch.device("meta")
    net = on_device(nn.Sequential(Scaled(), nn.LSTM(2, 2)), there)
    assert [path for path, _ in constants(net)] == ["0.more['shift'][0]", "0.more['power'][1]", "0.scale"]
    assert all(tensor.device == there for _, tensor in constants(net))
    assert all(tensor.device == there for tensor in net.parameters())
    assert net[0].more["power"][0] == 1
    assert all(isinstance(weight, nn.Parameter) for weight in net[1]._flat_weights)


class Holding(nn.Module):
    """A network with a given object in an attribute."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)
        self.held = held(self.layer) if callable(held) else held

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


@pytest.mark.parametrize(
    ("net", "named"),
    [
        (lambda: Holding(torch.ones(2, requires_grad=True)), "held"),
        (lambda: Holding(lambda layer: layer.weight * 2), "held"),
        (lambda: nn.Sequential(Holding(lambda layer: {"of": [layer.weight * 2]})), "0.held['of'][0]"),
    ],
)
def test_an_attribute_that_requires_a_gradient_is_refused(net: Any, named: str, here: Path) -> None:
    says = f"model: the attribute {named!r} is a tensor that requires a gradient but is not a parameter"
    with pytest.raises(UserError) as refused:
        homophily.run(settings(), model=net(), data=peers())
    assert str(refused.value).startswith(says)
    assert not any(here.iterdir())


def test_weights_computed_by_hooks_are_refused_with_an_alternative(here: Path) -> None:
    with pytest.warns(FutureWarning, match="deprecated"):
        old = nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(FEATURES, CLASSES)))
    with pytest.raises(
        UserError, match=r"'0\.weight' is a tensor .* use torch\.nn\.utils\.parametrizations in place of"
    ):
        copied(old)
    new = nn.Sequential(torch.nn.utils.parametrizations.weight_norm(nn.Linear(FEATURES, CLASSES)))
    assert homophily.run(settings(1), model=new, data=peers()).summary["rounds"] == 1


def test_a_network_that_cannot_be_copied_is_refused(here: Path) -> None:
    with pytest.raises(UserError, match=r"model: the network cannot be copied for every peer: cannot pickle"):
        homophily.run(settings(), model=Holding(i for i in range(3)), data=peers())
    (here / "generating.py").write_text(
        "from tests.models.test_copying import Holding\ndef net():\n    return Holding(i for i in range(3))\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(here)
        with pytest.raises(UserError, match=r"model\.name = 'generating:net': the network cannot be copied"):
            homophily.run(settings(model="generating:net"), data=peers())


def test_a_resumed_run_refuses_a_network_that_cannot_be_copied(here: Path) -> None:
    homophily.run(settings(1), model=Holding(None), data=peers(), out=here / "run")
    with pytest.raises(UserError, match=r"model: the attribute 'held' is a tensor that requires a gradient"):
        homophily.resume(here / "run", {"rounds": 2}, model=Holding(torch.ones(2, requires_grad=True)), data=peers())


class Watched(nn.Module):
    """Stores its last outputs in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(FEATURES, CLASSES), torch.zeros(2)

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.layer(x)
        return self.last


def test_reading_a_network_does_not_change_its_attributes() -> None:
    net = Watched()
    chain_of(net, Layout.of(net), (FEATURES,))
    assert torch.equal(net.last, torch.zeros(2))
    with pytest.raises(UnsupportedLayer):
        chain_of(Scaled(), Layout.of(Scaled()), (FEATURES,))


@pytest.mark.parametrize("engine", ["stacked", "vectorised", "one-by-one"])
def test_a_network_that_stores_its_outputs_can_be_trained(engine: str, here: Path) -> None:
    run = homophily.run(settings(engine=engine), model=Watched(), data=peers())
    assert torch.equal(run.model(0).last, torch.zeros(2))
