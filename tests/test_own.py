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

def flip(source, peers, seed, *, by: int = 1):
    """Labels counted from somewhere else."""
    everything = torch.arange(len(source.train))
    none = torch.zeros(0, dtype=torch.int64)
    change = lambda x, y: (x, (y + by) % 2)
    kinds = [homophily.Kind("plain", everything, none), homophily.Kind("flipped", everything, none, change)]
    return homophily.Plan(kinds, source)

def no_plan(source, peers, seed):
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
        def meet(self, now: homophily.Now) -> Tensor:
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
    assert named.scores == given.scores
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
    ({"conut": 4}, r"unknown key data\.conut"),
    ({"count": 1.5}, r"data\.count = 1\.5: must be a whole number"),
    ({"shift": "rotation"}, r"data\.shift = 'rotation': own data is already divided"),
    ({"sizes": [2, 3]}, r"data\.sizes: own data is already divided"),
    ({"train": 100}, r"peer 0 has 30 samples in x, too few for data\.train = 100"),
]


@pytest.mark.parametrize(("keys", "says"), WRONG_DATA)
def test_a_mistake_about_own_data_is_told(keys: dict[str, Any], says: str, own_things: Any) -> None:
    with pytest.raises(homophily.UserError, match=says):
        homophily.run(settings(data={"name": "own_things:data", **keys}))
    with pytest.raises(homophily.UserError, match=r"peers = 9: the data in 'own_things:data' is of 5 peers"):
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
    with pytest.raises(homophily.UserError, match=r"data\.shift = 'own_things:no_plan': must return a Plan, not str"):
        homophily.run(settings(data={"name": "own_things:source", "shift": "own_things:no_plan"}))


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
def test_a_mistake_about_an_own_method_is_told(method: dict[str, Any], says: str, own_things: Any, here: Path) -> None:
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


# Kinds of data


class Words(nn.Module):
    """Means of word vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors, self.out = nn.Embedding(11, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.vectors(x).mean(1))


@pytest.mark.parametrize("engine", ["vectorised", "one-by-one"])
def test_integer_inputs_are_tokens(engine: str, here: Path) -> None:
    rng = np.random.default_rng(0)
    data = []
    for _ in range(4):
        x = rng.integers(0, 11, size=(40, 7))
        y = ((x == 3).sum(1) > 0).astype(int)
        data.append(homophily.PeerData(x[:30], y[:30], test_x=x[30:], test_y=y[30:]))
    torch.manual_seed(0)
    run = homophily.run(settings(30, engine=engine, training={"lr": 0.5}), model=Words(), data=data)
    assert run.summary["accuracy"] > 80
    outputs, targets = outputs_of(run, data, 0)
    assert float(F.cross_entropy(outputs, targets)) == pytest.approx(run.scores["loss"][0], rel=1e-4)
    assert run.summary["accuracy_by_cluster"] == {"all": pytest.approx(run.summary["accuracy"])}  # nobody told


def test_float_targets_are_a_regression(here: Path) -> None:
    data = peers(regression=True)
    run = homophily.run(settings(20), model=network(outputs=1), data=data)
    outputs, targets = outputs_of(run, data, 4)
    error = float((outputs[:, 0] - targets).square().mean())
    assert run.scores["mse"][4] == pytest.approx(error, rel=1e-4) == pytest.approx(run.scores["loss"][4], rel=1e-4)
    assert {"mse", "mse_over_clusters", "mse_by_cluster"} <= set(run.summary)
    assert "accuracy" not in run.summary


def test_the_linear_data_is_learnt_within_its_clusters(here: Path) -> None:
    data = {"name": "linear", "samples": 600, "noise": 0.1, "train": 20, "test": 20}
    small = {"peers": 9, "rounds": 20, "data": data, "model": "linear", "training": {"lr": 0.002}}
    alike, anyone = (homophily.run({**small, "method": {"name": m, "k": 2}}) for m in ("oracle", "random"))
    assert alike.summary["mse"] < 1.0 < anyone.summary["mse"]
    assert list(alike.summary["mse_by_cluster"]) == ["concept 0", "concept 1", "concept 2"]


# Kinds of networks


class Everything(nn.Module):
    """Attention over two halves of the input, BatchNorm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.bn = nn.Linear(FEATURES // 2, 4), nn.BatchNorm1d(8)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.drop, self.head = nn.Dropout(0.25), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        halves = self.body(x.unflatten(1, (2, FEATURES // 2)))
        seen, _ = self.attention(halves, halves, halves, need_weights=False)
        return self.head(self.drop(self.bn(seen.flatten(1)).relu()))


def everything() -> nn.Module:
    torch.manual_seed(0)
    return Everything()


def test_batchnorm_dropout_and_attention_run_in_both_engines_and_agree(here: Path) -> None:
    runs = {
        engine: homophily.run(settings(3, engine=engine), model=everything(), data=peers())
        for engine in ("vectorised", "one-by-one", "auto")
    }
    assert runs["auto"].about["resolved"]["engine"] == "vectorised"
    assert torch.allclose(rows(runs["vectorised"]), rows(runs["one-by-one"]), atol=1e-4)
    assert torch.equal(rows(runs["vectorised"]), rows(runs["auto"]))
    counted = load_file(runs["auto"].path / "models.safetensors")["kept/bn.num_batches_tracked"]
    assert counted.tolist() == [3 * 3 * 3] * 6  # rounds, epochs, batches
    data = peers()
    outputs, targets = outputs_of(runs["auto"], data, 5)
    assert float(F.cross_entropy(outputs, targets)) == pytest.approx(runs["auto"].scores["loss"][5], rel=1e-4)


@pytest.mark.parametrize("engine", ["vectorised", "one-by-one"])
@pytest.mark.parametrize("pattern", ["bn*", "head*"])
def test_personal_layers_are_never_merged(engine: str, pattern: str, here: Path) -> None:
    config = {"rounds": 2, "engine": engine, "method": {"name": "random", "k": 5}}
    whole = homophily.run(config, model=everything(), data=peers())
    run = homophily.run({**config, "model": {"personal": [pattern]}}, model=everything(), data=peers())
    states = [run.state_dict(peer) for peer in range(6)]
    prefix = pattern.rstrip("*")
    for name, tensor in states[0].items():
        others = [state[name] for state in states[1:]]
        if name.startswith(prefix):
            assert name == "bn.num_batches_tracked" or not any(torch.equal(tensor, other) for other in others), name
        elif name != "bn.num_batches_tracked":
            assert all(torch.equal(tensor, other) for other in others), name
    kept = sum(t.numel() for name, t in states[0].items() if name.startswith(prefix) and t.is_floating_point())
    assert kept > 0
    sent = whole.summary["bytes_sent_per_peer"] - run.summary["bytes_sent_per_peer"]
    assert sent == 2 * 5 * 4 * kept  # rounds, partners, bytes


class Drawing(nn.Module):
    """Draws by itself: no layer that could be given a key."""

    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.only(F.dropout(x, 0.4, self.training))


def test_a_network_that_draws_by_itself_runs_one_by_one_and_the_same_again(here: Path) -> None:
    torch.manual_seed(0)
    net = Drawing()
    torch.manual_seed(1)
    first = homophily.run(settings(), model=net, data=peers())
    assert first.about["resolved"]["engine"] == "one-by-one"
    assert first.about["resolved"]["why"] == "it draws random numbers by itself"
    state = torch.get_rng_state()
    torch.manual_seed(2)
    second = homophily.run(settings(), model=net, data=peers())
    assert torch.equal(rows(first), rows(second))
    other = homophily.run(settings(seed=1), model=net, data=peers())
    assert not torch.equal(rows(first), rows(other))
    torch.set_rng_state(state)
    with pytest.raises(homophily.UserError, match="engine = 'vectorised': this network cannot be vectorised: it draws"):
        homophily.run(settings(engine="vectorised"), model=net, data=peers())


class Tied(nn.Module):
    """The way out is the way in, turned round."""

    def __init__(self) -> None:
        super().__init__()
        self.way_in, self.way_out = nn.Linear(FEATURES, CLASSES), nn.Linear(CLASSES, FEATURES)
        self.last = nn.Linear(FEATURES, CLASSES, bias=False)
        self.last.weight = self.way_in.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.way_out(self.way_in(x).tanh()))


def test_tied_weights_stay_tied(here: Path) -> None:
    torch.manual_seed(0)
    net = Tied()
    runs = [homophily.run(settings(engine=e), model=net, data=peers()) for e in ("vectorised", "one-by-one")]
    assert torch.allclose(rows(runs[0]), rows(runs[1]), atol=1e-4)
    assert rows(runs[0]).shape[1] == sum(p.numel() for p in net.parameters())  # once, not twice
    for run in runs:
        run.export(1, here / "tied.safetensors")
        state = load_file(here / "tied.safetensors")
        assert set(state) == set(net.state_dict())
        assert torch.equal(state["last.weight"], state["way_in.weight"])
        assert not torch.equal(state["last.weight"], net.way_in.weight)
        outputs, targets = outputs_of(run, peers(), 1)
        assert float(F.cross_entropy(outputs, targets)) == pytest.approx(run.scores["loss"][1], rel=1e-4)


@pytest.mark.parametrize("engine", ["vectorised", "one-by-one"])
def test_frozen_parameters_stay(engine: str, here: Path) -> None:
    net = network()
    net[0].weight.requires_grad_(False)
    config = settings(engine=engine, training={"weight_decay": 0.1})
    alone = homophily.run({**config, "method": "local"}, model=net, data=peers())
    merged = homophily.run(config, model=net, data=peers())
    for peer in range(6):
        assert torch.equal(alone.state_dict(peer)["0.weight"], net[0].weight)
        assert torch.allclose(merged.state_dict(peer)["0.weight"], net[0].weight, atol=1e-6)
        assert not torch.equal(alone.state_dict(peer)["0.bias"], net[0].bias)


# A model that becomes NaN


def diverging(**more: Any) -> dict[str, Any]:
    """The peer with a thousand times larger inputs diverges in round 1; from then on the learning rate is tiny."""
    return {
        "rounds": 4,
        "training": {"lr": 0.02, "decay": 1e-9, "epochs": 4},
        "method": {"name": "random", "k": 5},
        **more,
    }


def linear_peers() -> list[Any]:
    return peers(regression=True, scale=lambda peer: 1000.0 if peer == 2 else 1.0)


@pytest.mark.parametrize("engine", ["vectorised", "one-by-one"])
def test_a_sick_peer_is_left_out_until_its_partners_heal_it(engine: str, here: Path) -> None:
    torch.manual_seed(0)
    run = homophily.run(diverging(engine=engine), model=nn.Linear(FEATURES, 1), data=linear_peers())
    assert [line["sick"] for line in run.metrics()] == [[2], [], [], []]
    assert run.summary["sick_peers"] == [2]
    assert run.summary["still_sick"] == []
    assert run.scores["sick_rounds"] == [0, 0, 1, 0, 0, 0]
    assert run.merges()[:, 2].tolist() == [3, 3, 0, 3, 3, 3]  # from round 2 on
    assert run.merges()[2].tolist() == [4, 4, 0, 4, 4, 4]  # it took the others' models even while it was sick
    assert rows(run).isfinite().all()
    assert run.summary["mse"] is not None


def test_a_sick_peer_without_partners_stays_sick_and_the_others_go_on(here: Path) -> None:
    torch.manual_seed(0)
    run = homophily.run(diverging(method="local"), model=nn.Linear(FEATURES, 1), data=linear_peers())
    assert [line["sick"] for line in run.metrics()] == [[2]] * 4
    assert (run.summary["sick_peers"], run.summary["still_sick"]) == ([2], [2])
    assert run.scores["mse"][2] is None
    healthy = [value for value in run.scores["mse"] if value is not None]
    assert len(healthy) == 5
    assert run.summary["mse"] == pytest.approx(np.mean(healthy))
    assert not rows(run)[2].isfinite().all()
    assert rows(run)[[0, 1, 3, 4, 5]].isfinite().all()
