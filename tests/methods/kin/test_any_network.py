"""kin finds the same with any network, since fingerprints are of the data: MLP, CNN and transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import homophily
from homophily.experiments.discovery import Discovery

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
ANGLES = [list(range(first, first + 15)) for first in range(0, 60, 15)]  # the clusters of the default federation


class TextTransformer(nn.Module):
    """Tokens, learned positions, an encoder layer and the mean over the sequence."""

    def __init__(self, tokens: int, length: int, outputs: int, width: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        self.encoder = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(self.tokens(x) + self.position).mean(1))
        return out


class BagOfTokens(nn.Module):
    """The mean of the tokens' vectors, and an MLP."""

    def __init__(self, tokens: int, outputs: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokens, 8)
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, outputs))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(self.tokens(x).mean(1))
        return out


def same(one: Discovery, other: Discovery) -> bool:
    """Whether two answers are identical to the last bit: fingerprints, rank, places and families."""
    first, second = one.kinship, other.kinship
    return (
        torch.equal(one.prints.mean, other.prints.mean)
        and torch.equal(one.prints.factor, other.prints.factor)
        and (first.rank, first.edge) == (second.rank, second.edge)
        and torch.equal(first.squared, second.squared)
        and torch.equal(first.place, second.place)
        and one.families == other.families
    )


MODELS: dict[str, Any] = {
    "linear": "linear",
    "mlp": {"name": "mlp", "hidden": [32]},
    "a deeper mlp": {"name": "mlp", "hidden": [64, 16]},
    "cnn": "cifar-cnn",
    "vision transformer, 4x4 patches": {"name": "kin_transformer:VisionTransformer", "patch": 4},
    "vision transformer, 2x2 patches": {"name": "kin_transformer:VisionTransformer", "patch": 2},
}


@pytest.mark.parametrize("model", MODELS)
def test_the_four_groups_of_digits_are_found_whatever_the_network(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    found, default = homophily.kin({"model": MODELS[model]}), homophily.kin()
    assert found.families == ANGLES
    assert found.summary()["rank"] == 3
    assert found.conclusive
    assert same(found, default)


def test_other_data_gives_another_answer() -> None:
    """So that the comparison above can fail."""
    assert not same(homophily.kin({"seed": 1}), homophily.kin())
    assert not same(homophily.kin({"data": {"train": 19}}), homophily.kin())


def tokens() -> list[homophily.PeerData]:
    """Two groups of peers that have the same tokens as often, and different classes of them."""
    chance, data = np.random.default_rng(0), []
    for peer in range(20):
        x = chance.integers(12, size=(60, 6))
        y = (x < 6).sum(1) > 3 if peer < 10 else (x % 2).sum(1) > 3
        data.append(homophily.PeerData(x=x, y=y.astype(int)))
    return data


def test_a_text_transformer_and_a_bag_of_tokens_give_the_same_answer() -> None:
    networks = [TextTransformer(12, 6, 2), TextTransformer(12, 6, 2, width=8), BagOfTokens(12, 2)]
    first, *others = [homophily.kin(model=network, data=tokens()) for network in networks]
    assert first.families == [list(range(10)), list(range(10, 20))]
    assert all(same(first, other) for other in others)
    assert same(first, homophily.kin(data=tokens()))


@pytest.mark.parametrize("form", ["fields", "pixels"])
def test_without_a_model_no_network_has_to_fit_the_data(form: str) -> None:
    """The default network, an MLP, takes neither inputs with names nor a class for each pixel."""
    chance, data = np.random.default_rng(0), []
    for peer in range(8):
        x = chance.integers(12, size=(60, 6))
        y = (x + peer % 2) % 3
        images = chance.normal(size=(60, 1, 2, 3)), np.where(chance.random((60, 2, 3)) < 0.8, peer % 2, 2)
        named = {"input_ids": x, "attention_mask": np.ones_like(x)}, y
        data.append(homophily.PeerData(*(named if form == "fields" else images)))
    assert homophily.kin(data=data).families == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_frozen_and_personal_parameters_change_nothing() -> None:
    config = {"peers": 24, "data": {"angles": [0, 180]}}
    plain = homophily.kin(config)
    personal = homophily.kin({**config, "model": {"name": "mlp", "personal": ["3"]}})
    assert plain.conclusive
    assert same(plain, personal)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    network[1].requires_grad_(False)
    assert same(plain, homophily.kin(config, model=network))


def test_how_models_start_and_train_changes_nothing() -> None:
    config = {"peers": 24, "data": {"angles": [0, 180]}}
    other = {"init": "independent", "training": {"lr": 0.5, "batch": 3}, "engine": "one-by-one", "rounds": 7}
    assert same(homophily.kin(config), homophily.kin({**config, **other}))
