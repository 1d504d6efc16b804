"""Features of frozen layers are computed once, and results stay those of the whole network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import homophily
from homophily.data.types import Split
from homophily.models.keyed_dropout import KeyedDropout
from homophily.training.features import _pieces


def backbone() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5))


class Named(nn.Module):
    """A network with a backbone and a head that forward calls by name."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = backbone(), head

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


class Skipping(Named):
    """Its output does not depend on the head alone."""

    def forward(self, x: Tensor) -> Tensor:
        features = self.body(x)
        out: Tensor = self.head(features) + features[:, :10]
        return out


class Flat(nn.Module):
    """Its forward method calls two trained layers, with dropout and a frozen layer between them."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = backbone(), nn.LayerNorm(16)
        self.first, self.drop, self.last = nn.Linear(144, 16), nn.Dropout(0.2), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.drop(self.norm(self.first(self.body(x))).relu()))
        return out


class Residual(Flat):
    """The output depends on the features also past the first trained layer."""

    def forward(self, x: Tensor) -> Tensor:
        features = self.body(x)
        out: Tensor = self.last(self.first(features).relu() + features[:, :16])
        return out


class Parallel(Flat):
    """Two trained layers take features."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(144, 10)

    def forward(self, x: Tensor) -> Tensor:
        features = self.body(x)
        out: Tensor = self.last(features) + self.first(features)[:, :10]
        return out


class Pooled(nn.Module):
    """A mask, which is made of the samples themselves, reaches the outputs past the first trained layer."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.first, self.last = body, nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        found = self.first(self.body(x)).relu()
        padded = x == 0 if x.dim() == 2 else (x == 0).all(-1)
        return self.pooled(found, padded)

    def pooled(self, found: Tensor, padded: Tensor) -> Tensor:
        out: Tensor = self.last(found.masked_fill(padded[..., None], 0.0).sum(1) / 5)
        return out


class PooledInPlace(Pooled):
    def pooled(self, found: Tensor, padded: Tensor) -> Tensor:
        found = found.clone()
        found[padded] = 0.0
        out: Tensor = self.last(found.sum(1) / 5)
        return out


class PooledIfAny(Pooled):
    def pooled(self, found: Tensor, padded: Tensor) -> Tensor:
        out: Tensor = self.last(found.sum(1) / (5 - int(padded.sum()) / len(padded)))
        return out


class Squeezing(Named):
    """Its features of a single sample lack an axis."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x).squeeze()).view(len(x), -1)
        return out


class Late(Flat):
    """The frozen layers come last."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 16), nn.Linear(16, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.last(self.first(x.flatten(1))).view_as(x))[:, :10]  # type: ignore[no-any-return]


def head() -> nn.Module:
    return nn.Sequential(nn.Linear(144, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 10))


def config(**keys: Any) -> dict[str, Any]:
    model = {"frozen": ["body"], **keys.pop("model", {})}
    return {"peers": 4, "rounds": 3, "method": {"name": "dac", "k": 2}, "model": model, **keys}


def both(net: nn.Module, tmp_path: Path, model: dict[str, Any] | None = None, **keys: Any) -> list[homophily.Run]:
    """Runs with and without cached features."""
    return [
        homophily.run(
            config(model={**(model or {}), "cache_features": cache}, **keys), model=net, out=tmp_path / str(cache)
        )
        for cache in (True, False)
    ]


def check(runs: list[homophily.Run]) -> None:
    cached, whole = runs
    assert cached.about["plan"]["features"] > 0
    assert "features of frozen layers are kept" in cached.about["plan"]["why"]
    assert whole.about["plan"]["features"] == 0
    assert cached.about["layout"] == whole.about["layout"]
    assert cached.about["frozen"] == whole.about["frozen"]
    for peer in range(4):
        one, other = cached.state_dict(peer), whole.state_dict(peer)
        assert set(one) == set(other)
        assert all(torch.allclose(one[name], other[name], atol=1e-4) for name in one)
    assert cached.summary["accuracy"] == pytest.approx(whole.summary["accuracy"], abs=1.0)
    assert (cached.merges() == whole.merges()).all()


@pytest.mark.parametrize("engine", ["vectorised", "one-by-one"])
def test_a_head_with_dropout_trains_as_in_the_whole_network(engine: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    check(both(Named(head()), tmp_path, engine=engine))


@pytest.mark.parametrize("engine", ["one-by-one", "vectorised"])
def test_several_trained_layers_that_forward_calls_one_after_the_other(engine: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    runs = both(Flat(), tmp_path, model={"frozen": ["body", "norm"]}, engine=engine)
    check(runs)
    assert runs[0].model(1).norm.weight.shape == (16,)


def test_the_two_last_layers_of_a_transformer(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    shape = {"vocab_size": 50, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 8}
    net = transformers.DistilBertForSequenceClassification(transformers.DistilBertConfig(**shape))
    peers = [homophily.PeerData(torch.randint(0, 50, (24, 6)), torch.randint(0, 2, (24,))) for _ in range(4)]
    keys = {"rounds": 2, "method": "local", "data": {"test": 8}}
    runs = []
    for cache in (True, False):
        model = {"frozen": ["distilbert"], "cache_features": cache}
        runs.append(homophily.run({**keys, "model": model}, model=net, data=peers, out=tmp_path / str(cache)))
    check(runs)
    assert runs[0].about["plan"]["features"] == 4 * 24 * 16 * 4, "the output at the first token of each text"


def test_a_chain_of_linear_layers_is_trained_by_the_stacked_engine(tmp_path: Path) -> None:
    torch.manual_seed(0)
    runs = both(Named(nn.Linear(144, 10)), tmp_path)
    check(runs)
    assert [run.about["plan"]["engine"] for run in runs] == ["stacked", "vectorised"]


def test_the_first_layers_of_a_sequential_network(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10))
    runs = both(net, tmp_path, model={"frozen": ["1"]})
    check(runs)
    samples = 4 * (20 + 100)  # of training and testing
    assert runs[0].about["plan"]["features"] <= samples * 32 * 4, "the input of layer 3"


@pytest.mark.parametrize(
    ("net", "model"),
    [
        (Skipping(nn.Linear(144, 10)), {}),  # the output depends on more than the head
        (Named(head()), {"frozen": ["head"]}),  # the trained layers come first
        (Residual(), {"frozen": ["body", "norm"]}),
        (Parallel(), {"frozen": ["body", "norm"]}),
        (Late(), {"frozen": ["body", "norm"]}),
    ],
)
def test_other_networks_are_trained_whole(net: nn.Module, model: dict[str, Any], tmp_path: Path) -> None:
    run = homophily.run(config(model=model), model=net, out=tmp_path / "run")
    assert run.about["plan"]["features"] == 0


@pytest.mark.parametrize("form", [Pooled, PooledInPlace, PooledIfAny])
@pytest.mark.parametrize("body", [nn.Embedding(20, 8), nn.Linear(3, 8)])
def test_a_mask_of_the_inputs_prevents_it_though_the_first_samples_have_none(
    form: type[Pooled], body: nn.Module, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    x = torch.randint(1, 20, (20, 5)) if isinstance(body, nn.Embedding) else torch.randn(20, 5, 3)
    x[8:, 2:] = 0
    peers = [homophily.PeerData(x, torch.randint(0, 2, (20,)), x, torch.randint(0, 2, (20,))) for _ in range(2)]
    keys = {"rounds": 1, "method": "local", "model": {"frozen": ["body"]}}
    run = homophily.run(keys, model=form(body), data=peers, out=tmp_path / "run")
    assert run.about["plan"]["features"] == 0


def test_samples_without_features_prevent_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    peers = [homophily.PeerData(torch.randn(21, 6), torch.randint(0, 2, (21,))) for _ in range(2)]
    keys = {"rounds": 1, "method": "local", "model": {"frozen": ["body"]}, "data": {"test": 4}}
    net = Squeezing(nn.Linear(8, 2))
    net.body = nn.Sequential(nn.Linear(6, 8))
    run = homophily.run(keys, model=net, data=peers, out=tmp_path / "run")
    assert run.about["plan"]["features"] == 0, "17 training samples are a piece of 16 and one of 1"


def test_dropout_that_stays_active_in_frozen_layers_prevents_it(tmp_path: Path) -> None:
    net = Named(nn.Linear(144, 10))
    net.body.requires_grad_(False)  # unlike model.frozen, this does not switch off dropout
    run = homophily.run(config(model={"frozen": []}), model=net, out=tmp_path / "run")
    assert run.about["plan"]["features"] == 0


def test_inputs_that_change_from_batch_to_batch_prevent_it(tmp_path: Path) -> None:
    keys = config(data={"transform": ["flip"]})
    run = homophily.run(keys, model=Named(nn.Linear(144, 10)), out=tmp_path / "run")
    assert run.about["plan"]["features"] == 0


def test_a_run_resumes_with_features_and_finds_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Named(head())
    whole = homophily.run(config(rounds=4), model=net, out=tmp_path / "whole")
    part = homophily.run(config(rounds=2), model=net, out=tmp_path / "part")
    more = homophily.resume(part.path, {"rounds": 4}, model=net)
    assert all(run.about["plan"]["features"] > 0 for run in (whole, part, more))
    for peer in range(4):
        one, other = whole.state_dict(peer), more.state_dict(peer)
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_models_of_a_run_are_whole_and_kin_sees_the_inputs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    runs = both(Named(nn.Linear(144, 10)), tmp_path, method="kin", peers=8)
    assert runs[0].summary["notes"] == runs[1].summary["notes"]
    x = torch.rand(3, 1, 8, 8)
    assert torch.allclose(runs[0].model(1)(x), runs[1].model(1)(x), atol=1e-3)
    assert not any(isinstance(layer, KeyedDropout) for layer in runs[0].model(1).modules())


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([(0, 20), (20, 5)], [(0, 16), (16, 20), (20, 25)]),
        ([(0, 3), (0, 3), (3, 2)], [(0, 3), (3, 5)]),  # two peers share a test set
        ([(0, 3), (1, 3)], [(0, 1), (1, 2), (2, 3), (3, 4)]),
    ],
)
def test_pieces_belong_to_one_peer(ranges: list[tuple[int, int]], expected: list[tuple[int, int]]) -> None:
    start, count = torch.tensor(ranges).T
    x = torch.zeros(int((start + count).max()), 2)
    pieces = [(piece.start, piece.stop) for piece in _pieces(Split(x, x, start, count))]
    assert pieces == expected
