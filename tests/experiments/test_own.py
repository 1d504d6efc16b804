"""Bring your own: networks, data, losses, methods, metrics, shifts and scores, as objects or as package.module:name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

import homophily

FEATURES, CLASSES, SAMPLES = 6, 3, 24


def peers(count: int = 6, regression: bool = False, scale: Callable[[int], float] = lambda peer: 1.0) -> list[Any]:
    """Peers of two clusters, whose labels follow different features; 10 test samples each."""
    out = []
    for peer in range(count):
        rng = np.random.default_rng(peer)
        x = rng.normal(size=(SAMPLES + 10, FEATURES)).astype(np.float32) * scale(peer)
        side = x[:, 0] if peer < count // 2 else x[:, 1]
        y: Any = side.astype(np.float32) if regression else (side > -0.5).astype(int) + (side > 0.5)
        cluster = "a" if peer < count // 2 else "b"
        out.append(
            homophily.PeerData(x[:SAMPLES], y[:SAMPLES], test_x=x[SAMPLES:], test_y=y[SAMPLES:], cluster=cluster)
        )
    return out


def network(outputs: int = CLASSES) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, outputs))


def settings(rounds: int = 2, **more: Any) -> dict[str, Any]:
    return {"rounds": rounds, "method": {"name": "random", "k": 2}, **more}


def outputs_of(run: homophily.Run, data: list[Any], peer: int) -> tuple[Tensor, Tensor]:
    """A peer's model on the peer's own test samples, and their targets."""
    with torch.no_grad():
        return run.model(peer)(torch.as_tensor(data[peer].test_x)), torch.as_tensor(data[peer].test_y)


def rows(run: homophily.Run) -> Tensor:
    return load_file(run.path / "models.safetensors")["rows"]


OWN = '''
"""What a user might write."""
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

import homophily

def data(seed, count: int = 5, noise: float = 0.0):
    """A list of peers."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 30, 6)) + noise
    return [homophily.PeerData(part, (part[:, 0] > 0).astype(int)) for part in x]

def source(seed):
    """A data set still to be shared out."""
    x = torch.rand(200, 6, generator=torch.Generator().manual_seed(seed))
    samples = homophily.Samples(x, (x[:, 0] > x[:, 1]).long())
    return homophily.Source("mine", samples, None, classes=2, defaults={"shift": "iid", "peers": 5, "train": 12})

def answering(seed, key: str, value: str):
    """A data set with a default of its own."""
    return homophily.Source("mine", source(seed).train, None, classes=2, defaults={"shift": "iid", key: value})

def flip(source, peers, seed, *, by: int = 1):
    """Labels counted from somewhere else."""
    everything = torch.arange(len(source.train))
    none = torch.zeros(0, dtype=torch.int64)
    change = lambda x, y: (x, (y + by) % 2)
    plain = homophily.ClusterSpec("plain", everything, none)
    flipped = homophily.ClusterSpec("flipped", everything, none, change)
    return homophily.PartitionPlan([plain, flipped], source)

def no_plan(source, peers, seed):
    return "none"

def seedless(source, peers):
    return "none"

class Net(nn.Module):
    def __init__(self, inputs: tuple, outputs: int, width: int = 4, activation=nn.Tanh):
        super().__init__()
        self.body, self.act, self.head = nn.Linear(*inputs, width), activation(), nn.Linear(width, outputs)

    def forward(self, x):
        return self.head(self.act(self.body(x)))

def squared(outputs, targets):
    return (outputs.softmax(1) - F.one_hot(targets, outputs.shape[1])).square().sum(1)

def mean_of_all(outputs, targets):
    return F.cross_entropy(outputs, targets)

@dataclass(frozen=True)
class Nearest(homophily.Method):
    """Merges with the most similar of all."""
    partners: int = 1
    metric: str = "own_things:closeness"
    power: float = 2.0

    def meet(self, now):
        return now.known

    def choose(self, now, met, similarity):
        best = similarity.topk(self.partners, dim=1).indices
        return torch.zeros_like(met).scatter(1, best, True) & met

powers = []

def closeness(pairs, power: float = 1.0):
    powers.append(power)
    return -(pairs.mine - pairs.yours).double().abs().pow(power).sum(1)

class NoMethod:
    pass

def confidence(outputs, targets):
    return outputs.softmax(1).amax(1).mean()
'''


@pytest.fixture
def own_things(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of that name that can be imported."""
    (here / "own_things.py").write_text(OWN)
    monkeypatch.syspath_prepend(here)
    import importlib

    yield importlib.import_module("own_things")
    del sys.modules["own_things"]


# Objects in Python


def test_own_network_and_arrays_in_and_models_and_scores_out(here: Path) -> None:
    data, net = peers(), network()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    run = homophily.run(settings(), model=net, data=data)
    assert run.config.peers == 6
    assert run.scores["cluster"] == ["a"] * 3 + ["b"] * 3
    assert list(run.summary["accuracy_by_cluster"]) == ["a", "b"]
    for peer in range(6):
        outputs, targets = outputs_of(run, data, peer)
        assert 100 * float((outputs.argmax(1) == targets).double().mean()) == pytest.approx(
            run.scores["accuracy"][peer]
        )
        assert float(F.cross_entropy(outputs, targets)) == pytest.approx(run.scores["loss"][peer], rel=1e-5)
    assert run.summary["accuracy"] == pytest.approx(np.mean(run.scores["accuracy"]))
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert not torch.equal(run.model(0)[0].weight, net[0].weight)  # it did train


def test_arrays_tensors_and_lists_are_the_same_data(here: Path) -> None:
    arrays = [homophily.PeerData(peer.x, peer.y) for peer in peers()]
    tensors = [homophily.PeerData(torch.tensor(peer.x), torch.tensor(peer.y)) for peer in arrays]
    lists = [homophily.PeerData(peer.x.tolist(), peer.y.tolist()) for peer in arrays]
    first, second, third = (homophily.run(settings(), model=network(), data=d) for d in (arrays, tensors, lists))
    assert first.scores == second.scores == third.scores


def test_objects_must_be_handed_over_again_on_resume(here: Path) -> None:
    def squared(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - F.one_hot(targets, CLASSES)).square().sum(1)

    class Everybody(homophily.Method):
        def meet(self, now: homophily.RoundContext) -> Tensor:
            return now.known

    objects: dict[str, Any] = {"model": network(), "data": peers(), "loss": squared, "method": Everybody()}
    run = homophily.run({"rounds": 1}, **objects, out=here / "run")
    assert run.summary["models_sent_per_peer"] == 5
    for missing in objects:
        rest = {name: thing for name, thing in objects.items() if name != missing}
        with pytest.raises(homophily.UserError, match=f"given in Python; hand it over again as {missing}=..."):
            homophily.resume(here / "run", {"rounds": 2}, **rest)
    extended = homophily.resume(here / "run", {"rounds": 2}, **objects)
    whole = homophily.run({"rounds": 2}, **objects, out=here / "whole")
    assert extended.scores == whole.scores
    with pytest.raises(homophily.UserError, match="hand it over again as model="):
        homophily.Run(here / "run").model(0)
    again = homophily.Run(here / "run", network()).model(2)
    assert torch.equal(again[0].weight, extended.model(2)[0].weight)


def test_extra_metrics_are_scored_for_every_peer(here: Path) -> None:
    data = peers()
    extra = {"largest": lambda outputs, targets: outputs.max(), "seen": lambda outputs, targets: float(len(targets))}
    run = homophily.run(settings(), model=network(), data=data, extra_metrics=extra)
    assert run.scores["seen"] == [10.0] * 6
    assert run.summary["seen"] == 10.0
    assert [line["seen"] for line in run.metrics()] == [10.0, 10.0]
    for peer in range(6):
        assert run.scores["largest"][peer] == pytest.approx(float(outputs_of(run, data, peer)[0].max()), rel=1e-5)


@pytest.mark.parametrize("name", ["accuracy", "loss", "value", "rounds"])
def test_an_extra_metric_cannot_take_the_name_of_a_score(name: str, here: Path) -> None:
    with pytest.raises(homophily.UserError, match=f"extra_metrics: '{name}' .* another name"):
        homophily.run(settings(), model=network(), data=peers(), extra_metrics={name: lambda outputs, targets: 0.0})


# Names in the config


def test_a_folder_of_npz_files_is_the_same_as_arrays(here: Path) -> None:
    data = peers()
    (here / "hospitals").mkdir()
    for number, peer in enumerate(data):
        parts = {"x": peer.x, "y": peer.y, "test_x": peer.test_x, "test_y": peer.test_y, "cluster": peer.cluster}
        np.savez(here / "hospitals" / f"peer-{number}.npz", **parts)
    named = homophily.run(settings(data="./hospitals", model={"name": "mlp", "hidden": [8]}))
    given = homophily.run(settings(model={"name": "mlp", "hidden": [8]}), data=data)
    assert named.scores == {**given.scores, "peer": [f"peer-{number}" for number in range(len(data))]}
    assert given.scores["peer"] is None
    assert torch.equal(rows(named), rows(given))
    assert named.path.name == "random-hospitals-0"
    assert homophily.Run(named.path).model(3)(torch.as_tensor(data[3].x)).shape == (SAMPLES, CLASSES)


def test_own_data_function(own_things: Any) -> None:
    run = homophily.run(settings(seed=3, data={"name": "own_things:data", "count": 4}))
    assert run.config.peers == 4
    assert run.config.data.keys == {"count": 4, "noise": 0.0}
    arrays = homophily.run(settings(seed=3), data=own_things.data(seed=3, count=4))
    assert run.scores == arrays.scores
    assert homophily.resume(run.path, {"rounds": 3}).summary["rounds"] == 3


WRONG_DATA = [
    ({"conut": 4}, r"unknown key data\.conut \(did you mean count\?\): .*, pad, count, noise$"),
    ({"count": 1.5}, r"data\.count = 1\.5: must be a whole number"),
    ({"shift": "rotation"}, r"data\.shift = 'rotation': your own data is already divided"),
    ({"sizes": [2, 3]}, r"data\.sizes: your own data is already divided"),
    ({"train": 100}, r"peer 0 has 30 samples in x, too few for data\.train = 100"),
]


@pytest.mark.parametrize(("keys", "says"), WRONG_DATA)
def test_a_mistake_about_own_data_is_reported(keys: dict[str, Any], says: str, own_things: Any) -> None:
    with pytest.raises(homophily.UserError, match=says):
        homophily.run(settings(data={"name": "own_things:data", **keys}))
    with pytest.raises(homophily.UserError, match=r"peers = 9: the data has 5 peers"):
        homophily.run(settings(peers=9, data="own_things:data"))


def test_own_source_and_own_shift(own_things: Any) -> None:
    run = homophily.run(settings(data={"name": "own_things:source", "shift": "own_things:flip", "test": 10}))
    assert run.config.peers == 5  # the source's own default
    assert run.scores["cluster"] == ["plain"] * 3 + ["flipped"] * 2
    assert run.config.data.keys == {"by": 1}
    same = homophily.run(settings(data={"name": "own_things:source", "shift": "own_things:flip", "by": 2, "test": 10}))
    assert same.scores["accuracy"][:3] != run.scores["accuracy"][:3]  # now nothing is flipped, and all help
    with pytest.raises(homophily.UserError, match=r"unknown key data\.bye \(did you mean by\?\)"):
        homophily.run(settings(data={"name": "own_things:source", "shift": "own_things:flip", "bye": 1}))
    with pytest.raises(homophily.UserError, match=r"data\.by = \"x\": must be a whole number"):
        homophily.run(settings(data={"name": "own_things:source", "shift": "own_things:flip", "by": "x"}))
    with pytest.raises(
        homophily.UserError, match=r"data\.shift = 'own_things:no_plan': must return a PartitionPlan, not str"
    ):
        homophily.run(settings(data={"name": "own_things:source", "shift": "own_things:no_plan"}))
    with pytest.raises(homophily.UserError, match=r"seedless' must take \(source, peers, seed\), not \(source, pe"):
        homophily.run(settings(data={"name": "own_things:source", "shift": "own_things:seedless"}))


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("sift", "iid", r"unknown key defaults\.sift \(did you mean shift\?\): data set 'mine' may have peers"),
        ("peers", "many", r"data set 'mine': defaults\.peers must be a whole number of at least 1, not 'many'"),
        ("train", "12", r"data\.train must be at least 1, not '12'"),
    ],
)
def test_a_mistake_about_the_defaults_of_an_own_source_is_reported(
    own_things: Any, key: str, value: str, says: str
) -> None:
    with pytest.raises(homophily.UserError, match=says):
        homophily.run(settings(data={"name": "own_things:answering", "key": key, "value": value}))


def test_own_network_by_name(own_things: Any) -> None:
    data = peers()
    run = homophily.run(settings(init="independent", model={"name": "own_things:Net", "width": 5}), data=data)
    model = homophily.Run(run.path).model(1)  # no object needed: the folder says how to build it
    assert isinstance(model, own_things.Net)
    assert model.body.weight.shape == (5, FEATURES)
    outputs, targets = outputs_of(run, data, 1)
    assert float(F.cross_entropy(outputs, targets)) == pytest.approx(run.scores["loss"][1], rel=1e-5)
    assert run.config.model.keys == {"width": 5}  # a class has no place in a file, and is the default again
    whole = homophily.run(settings(4, init="independent", model={"name": "own_things:Net", "width": 5}), data=data)
    assert homophily.resume(run.path, {"rounds": 4}, data=data).scores == whole.scores
    with pytest.raises(homophily.UserError, match=r"unknown key model\.widht \(did you mean width\?\)"):
        homophily.run(settings(model={"name": "own_things:Net", "widht": 5}), data=data)
    with pytest.raises(homophily.UserError, match=r"model\.name = 'own_things:Net': fails with .*width = -1"):
        homophily.run(settings(model={"name": "own_things:Net", "width": -1}), data=data)


def test_annotations_that_only_a_type_checker_can_resolve_are_no_obstacle(own_things: Any, here: Path) -> None:
    (here / "typed_things.py").write_text(
        "from __future__ import annotations\n"
        "from typing import TYPE_CHECKING\n"
        "import own_things\n"
        "if TYPE_CHECKING:\n    from somewhere import Shape\n"
        "def net(inputs: Shape, outputs: int, width: Shape = 3):\n    return own_things.Net(inputs, outputs, width)\n"
    )
    run = homophily.run(settings(model={"name": "typed_things:net", "width": 2}), data=peers())
    assert run.model(0).body.out_features == 2


def test_own_loss_by_name(own_things: Any) -> None:
    data = peers()
    run = homophily.run(settings(training={"loss": "own_things:squared"}), model=network(), data=data)
    outputs, targets = outputs_of(run, data, 2)
    assert float(own_things.squared(outputs, targets).mean()) == pytest.approx(run.scores["loss"][2], rel=1e-5)
    other = homophily.run(settings(), model=network(), data=data)
    assert not torch.equal(rows(run), rows(other))  # it was trained with, not only scored
    with pytest.raises(homophily.UserError, match=r"training\.loss: must return one loss per sample"):
        homophily.run(settings(training={"loss": "own_things:mean_of_all"}), model=network(), data=data)


def test_own_method_with_its_own_keys_and_own_metric(own_things: Any) -> None:
    method = {"name": "own_things:Nearest", "partners": 2, "power": 1.5}
    run = homophily.run({"rounds": 3, "method": method}, model=network(), data=peers())
    assert run.config.method.keys == {"partners": 2, "metric": "own_things:closeness", "power": 1.5}
    assert run.merges().sum(1).tolist() == [2 * 3] * 6
    assert run.summary["models_sent_per_peer"] == 5 * 3  # it asked everybody
    assert set(own_things.powers) == {1.5}  # a metric gets those settings of the method that it knows

    trained = homophily.run({"rounds": 1, "method": "local"}, model=network(), data=peers())
    distance = torch.cdist(rows(trained).double(), rows(trained).double(), p=1.5).fill_diagonal_(torch.inf)
    first = homophily.run({"rounds": 1, "method": method}, model=network(), data=peers())
    nearest = torch.zeros(6, 6, dtype=torch.bool).scatter(1, distance.topk(2, largest=False).indices, True)
    assert torch.equal(torch.as_tensor(first.merges() > 0), nearest)


def test_a_bundled_metric_is_named_in_the_same_key(own_things: Any) -> None:
    run = homophily.run(
        settings() | {"method": {"name": "own_things:Nearest", "metric": "cosine-weights"}}, data=peers()
    )
    assert run.merges().sum() == 6 * 2
    assert own_things.powers == []


WRONG_METHODS = [
    ({"name": "own_things:Nearest", "partner": 2}, r"unknown key method\.partner \(did you mean partners\?\)"),
    ({"name": "own_things:Nearest", "partners": "two"}, r"method\.partners = \"two\": must be a whole number"),
    ({"name": "own_things:Nearest", "power": True}, r"method\.power = true: must be a number"),
    ({"name": "own_things:Nearest", "metric": "colour"}, r"unknown metric 'colour'; there are .*cosine-weights"),
    ({"name": "own_things:Nearest", "metric": "own_things:x"}, r"metric 'own_things:x': 'own_things' has no 'x'"),
    ({"name": "own_things:NoMethod"}, r"method\.name = 'own_things:NoMethod': must be a homophily\.Method"),
    ({"name": "own_things:Farthest"}, r"method 'own_things:Farthest': 'own_things' has no 'Farthest'"),
]


@pytest.mark.parametrize(("method", "says"), WRONG_METHODS)
def test_a_mistake_about_an_own_method_is_reported(
    method: dict[str, Any], says: str, own_things: Any, here: Path
) -> None:
    with pytest.raises(homophily.UserError, match=says):
        homophily.run({"rounds": 1, "method": method}, model=network(), data=peers())
    assert not (here / "runs").exists()


def test_own_extra_metric_by_name(own_things: Any) -> None:
    data = peers()
    run = homophily.run(settings(extra_metrics=["own_things:confidence"]), model=network(), data=data)
    for peer in range(6):
        expected = own_things.confidence(*outputs_of(run, data, peer))
        assert run.scores["confidence"][peer] == pytest.approx(float(expected), rel=1e-5)
    assert run.summary["confidence"] == pytest.approx(np.mean(run.scores["confidence"]))
