"""Bring your own, of any kind: tokens, regression, networks of all sorts, and models that become NaN."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

import homophily
from tests.experiments.test_own import CLASSES, FEATURES, SAMPLES, network, outputs_of, peers, rows, settings

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
    assert run.summary["accuracy_by_cluster"] == {
        "all": pytest.approx(run.summary["accuracy"])
    }  # no clusters are known


def test_float_targets_are_a_regression(here: Path) -> None:
    data = peers(regression=True)
    run = homophily.run(settings(20), model=network(outputs=1), data=data)
    outputs, targets = outputs_of(run, data, 4)
    error = float((outputs[:, 0] - targets).square().mean())
    assert run.scores["mse"][4] == pytest.approx(error, rel=1e-4) == pytest.approx(run.scores["loss"][4], rel=1e-4)
    assert {"mse", "mse_over_clusters", "mse_by_cluster"} <= set(run.summary)
    assert "accuracy" not in run.summary


SEQUENCES = '''
import torch
import homophily

def sequences(seed):
    """Inputs [6], and two numbers at each of five times to be predicted from them."""
    x = torch.randn(120, 6, generator=torch.Generator().manual_seed(seed))
    y = torch.stack([x[:, :5], x[:, 1:]], dim=2)
    return homophily.Source("sequences", homophily.Samples(x, y), None, None, defaults={"shift": "iid", "peers": 4})
'''


@pytest.mark.parametrize("engine", ["stacked", "vectorised", "one-by-one"])
def test_float_sequences_are_a_regression(engine: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "own_sequences.py").write_text(SEQUENCES)
    monkeypatch.syspath_prepend(here)
    data = {"name": "own_sequences:sequences", "train": 15, "test": 15}
    bundled = homophily.run(settings(20, data=data, model="linear", engine=engine, training={"lr": 0.2}))
    assert bundled.summary["mse"] < 0.1
    if engine == "stacked":
        return
    net = nn.Sequential(bundled.model(0), nn.Unflatten(1, (5, 2)))
    run = homophily.run(settings(1, data=data, engine=engine), model=net)
    assert run.summary["mse"] < 0.1


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
    assert runs["auto"].about["plan"]["engine"] == "vectorised"
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
    assert first.about["plan"]["engine"] == "one-by-one"
    assert first.about["plan"]["why"] == "it draws random numbers itself"
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


# Frozen parameters


def with_frozen(wide: int = 64) -> nn.Sequential:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(FEATURES, wide), nn.ReLU(), nn.Linear(wide, FEATURES)).requires_grad_(False)
    return nn.Sequential(body, nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))


@pytest.mark.parametrize("init", ["common", "independent"])
@pytest.mark.parametrize("engine", ["vectorised", "one-by-one"])
def test_frozen_parameters_are_the_given_ones_to_the_bit_for_everyone(engine: str, init: str, here: Path) -> None:
    net = with_frozen()
    run = homophily.run(settings(engine=engine, init=init, training={"weight_decay": 0.1}), model=net, data=peers())
    for peer in range(6):
        state = run.state_dict(peer)
        assert set(state) == set(net.state_dict())
        assert all(torch.equal(state[f"0.{name}"], value) for name, value in net[0].state_dict().items())
        assert not torch.equal(state["1.weight"], net[1].weight)
        outputs, targets = outputs_of(run, peers(), peer)
        assert float(F.cross_entropy(outputs, targets)) == pytest.approx(run.scores["loss"][peer], rel=1e-4)


@pytest.mark.parametrize("metric", ["l2", "cosine-weights", "cosine-gradients", "panm", "loss"])
def test_frozen_layers_in_front_change_no_decision_and_no_bill(metric: str, here: Path) -> None:
    """The same head on the same features: once they are computed by frozen layers, once they are the data."""
    net, data = with_frozen(), peers()
    with torch.no_grad():
        features = [
            replace(peer, x=net[0](torch.as_tensor(peer.x)), test_x=net[0](torch.as_tensor(peer.test_x)))
            for peer in data
        ]
    config = settings(
        rounds=4, engine="one-by-one", data={"normalise": "unit"}, method={"name": "dac", "k": 2, "metric": metric}
    )
    both = [
        homophily.run(config, model=net, data=data),
        homophily.run(config, model=nn.Sequential(*net[1:]), data=features),
    ]
    assert np.array_equal(both[0].merges(), both[1].merges())
    assert both[0].summary["bytes_sent_per_peer"] == both[1].summary["bytes_sent_per_peer"]
    assert both[0].summary["accuracy"] == pytest.approx(both[1].summary["accuracy"])


def test_a_run_goes_on_only_with_the_frozen_weights_it_began_with(tmp_path: Path) -> None:
    run = homophily.run(settings(rounds=2), model=with_frozen(), data=peers(), out=tmp_path / "run")
    other = with_frozen()
    with torch.no_grad():
        other[0][0].weight.add_(1.0)
    more = homophily.resume(run.path, {"rounds": 4}, model=other, data=peers())  # goes on with the stored weights
    whole = homophily.run(settings(rounds=4), model=with_frozen(), data=peers())
    assert torch.equal(rows(more), rows(whole))
    assert more.about["frozen"] == whole.about["frozen"] != ""


class Routed(nn.Module):
    """Two experts; the second is asked only for samples whose first feature is large."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(FEATURES, CLASSES), nn.Linear(FEATURES, CLASSES)])

    def forward(self, x: Tensor) -> Tensor:
        out = self.experts[0](x)
        if bool((large := x[:, 0] > 1.0).any()):
            out = torch.where(large[:, None], self.experts[1](x), out)
        return out


def test_a_layer_that_only_some_samples_use_is_trained(here: Path) -> None:
    data = [replace(peer, x=peer.x[order], y=peer.y[order]) for peer in peers() if len(order := peer.x[:, 0].argsort())]
    net = Routed()
    run = homophily.run(settings(data={"normalise": "unit"}), model=net, data=data)
    assert run.about["plan"]["engine"] == "one-by-one"
    assert not torch.equal(run.state_dict(0)["experts.1.weight"], net.experts[1].weight)


# Gradient hooks


def clip_by_hook(net: nn.Module) -> None:
    net[0].weight.register_hook(lambda grad: grad.clamp(-1e-3, 1e-3))


def prune_after_accumulation(net: nn.Module) -> None:
    mask = torch.arange(FEATURES) % 2

    def masked(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(mask)

    net[0].weight.register_post_accumulate_grad_hook(masked)


@pytest.mark.parametrize("attach", [clip_by_hook, prune_after_accumulation])
def test_gradient_hooks_act_as_in_plain_pytorch(attach: Callable[[nn.Module], None], here: Path) -> None:
    net, data = network(), peers(1)
    attach(net)
    config = settings(
        rounds=1, method="local", data={"normalise": "unit"}, training={"batch": SAMPLES, "epochs": 1, "lr": 0.1}
    )
    run = homophily.run(config, model=net, data=data)
    assert run.about["plan"]["engine"] == "one-by-one"
    assert "'0.weight' has a gradient hook" in run.about["plan"]["why"]
    plain = network()
    attach(plain)
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    F.cross_entropy(plain(torch.as_tensor(data[0].x)), torch.as_tensor(data[0].y)).backward()
    optimiser.step()
    for name, value in plain.state_dict().items():
        assert torch.allclose(run.state_dict(0)[name], value, atol=1e-6)
    unhooked = homophily.run(config, model=network(), data=data)
    assert not torch.allclose(unhooked.state_dict(0)["0.weight"], plain.state_dict()["0.weight"], atol=1e-4)


def test_gradient_hooks_act_again_after_a_resume(here: Path) -> None:
    def hooked() -> nn.Module:
        net = network()
        prune_after_accumulation(net)
        return net

    first = homophily.run(settings(rounds=1), model=hooked(), data=peers())
    more = homophily.resume(first.path, {"rounds": 2}, model=hooked(), data=peers())
    assert torch.equal(rows(more), rows(homophily.run(settings(rounds=2), model=hooked(), data=peers())))


@pytest.mark.parametrize("engine", ["vectorised", "stacked"])
def test_engines_that_cannot_call_gradient_hooks_refuse_them(engine: str, here: Path) -> None:
    net = network()
    clip_by_hook(net)
    with pytest.raises(homophily.UserError, match=r"engine = .*parameter '0\.weight' has a gradient hook"):
        homophily.run(settings(engine=engine), model=net, data=peers())


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
def test_a_diverged_peer_is_left_out_until_merging_repairs_it(engine: str, here: Path) -> None:
    torch.manual_seed(0)
    run = homophily.run(diverging(engine=engine), model=nn.Linear(FEATURES, 1), data=linear_peers())
    assert [line["diverged"] for line in run.metrics()] == [[2], [], [], []]
    assert run.summary["ever_diverged"] == [2]
    assert run.summary["diverged"] == []
    assert run.scores["diverged_rounds"] == [0, 0, 1, 0, 0, 0]
    assert run.merges()[:, 2].tolist() == [3, 3, 0, 3, 3, 3]  # from round 2 on
    assert run.merges()[2].tolist() == [4, 4, 0, 4, 4, 4]  # it took the others' models even while it was diverged
    assert rows(run).isfinite().all()
    assert run.summary["mse"] is not None


def test_a_diverged_peer_without_partners_stays_diverged_and_the_others_go_on(here: Path) -> None:
    torch.manual_seed(0)
    run = homophily.run(diverging(method="local"), model=nn.Linear(FEATURES, 1), data=linear_peers())
    assert [line["diverged"] for line in run.metrics()] == [[2]] * 4
    assert (run.summary["ever_diverged"], run.summary["diverged"]) == ([2], [2])
    assert run.scores["mse"][2] is None
    assert sum(value is not None for value in run.scores["mse"]) == 5
    assert run.summary["mse"] is None, "a mean over the others would be a reward"
    assert not rows(run)[2].isfinite().all()
    assert rows(run)[[0, 1, 3, 4, 5]].isfinite().all()


def test_a_regression_of_which_one_peer_diverged_has_no_mean(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = {"small": 1.0, "small too": 1.0, "large": 1e6}
    data = [
        homophily.PeerData(size * rng.normal(size=(20, 2)), rng.normal(size=(20, 1)), cluster=name)
        for name, size in sizes.items()
    ]
    keys = {"rounds": 3, "data": {"normalise": "unit"}, "method": {"name": "local"}}
    found = homophily.run(keys, model=nn.Linear(2, 1), data=data, out=tmp_path / "run")
    by_cluster = found.summary["mse_by_cluster"]
    assert (by_cluster["large"], found.summary["mse"], found.summary["mse_over_clusters"]) == (None, None, None)
    assert by_cluster["small"] < 10
