"""LoRA adapters: what is trained and sent, how they are merged, and that peft loads what is exported."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import homophily
from homophily.config.schema import Lora
from homophily.errors import UnsuitableError, UserError
from homophily.models.lora import add_adapters, freeze_base

KEYS: dict[str, Any] = {"rank": 2, "targets": ["1"], "train": ["3"]}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def config(lora: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    return {
        "peers": 4, "rounds": 3, "method": {"name": "random", "k": 2}, "training": {"epochs": 1},
        "model": {"lora": {**KEYS, **(lora or {})}}, **keys,
    }  # fmt: skip


def test_an_adapter_adds_the_product_of_its_factors() -> None:
    net, x = network(), torch.randn(5, 64)
    lora = Lora(rank=2, alpha=6, targets=["1"])
    freeze_base(net, lora)
    before = net[1](x)
    add_adapters(net, lora)
    assert torch.equal(net[1](x), before), "B is zero"
    with torch.no_grad():
        net[1].lora_B.normal_()
    full = net[1].weight + 3 * net[1].lora_B @ net[1].lora_A
    assert torch.allclose(net[1](x), nn.functional.linear(x, full, net[1].bias), atol=1e-5)
    assert [name for name, p in net.named_parameters() if p.requires_grad] == ["1.lora_A", "1.lora_B"]


def test_attention_layers_of_torch_use_their_adapters_in_evaluation_too() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0).eval()
    lora = Lora(rank=2, targets=["linear1"])
    freeze_base(layer, lora)
    add_adapters(layer, lora)
    x = torch.randn(3, 4, 8)
    with torch.no_grad():
        before = layer(x)
        layer.linear1.lora_B.normal_()
        assert not torch.allclose(before, layer(x))


@pytest.mark.parametrize("merge", ["factors", "freeze-a", "product"])
def test_engines_agree_and_only_adapters_and_trained_layers_are_sent(merge: str, tmp_path: Path) -> None:
    runs = [
        homophily.run(config({"merge": merge}, engine=engine), model=network(), out=tmp_path / engine)
        for engine in ("vectorised", "one-by-one")
    ]
    sent = {"factors": 2 * (64 + 16), "product": 2 * (64 + 16), "freeze-a": 2 * 16}[merge] + 16 * 10 + 10
    models = runs[0].summary["models_sent_per_peer"]
    assert runs[0].summary["bytes_sent_per_peer"] == models * sent * 4
    assert torch.equal(runs[0].state_dict(0)["1.weight"], network()[1].weight)
    for name, value in runs[0].state_dict(1).items():
        assert torch.allclose(value, runs[1].state_dict(1)[name], atol=2e-4), name


@pytest.mark.parametrize("init", ["common", "independent"])
def test_initial_factors_are_drawn_from_the_seed(init: str, tmp_path: Path) -> None:
    keys = {"init": init, "method": "local", "training": {"lr": 1e-9}, "rounds": 1}
    runs = [homophily.run(config(**keys, seed=seed), model=network(), out=tmp_path / str(seed)) for seed in (1, 2)]
    a = [[run.state_dict(peer)["1.lora_A"] for peer in (0, 1)] for run in runs]
    assert torch.allclose(a[0][0], a[0][1], atol=1e-6) == (init == "common")
    assert not torch.allclose(a[0][0], a[1][0], atol=1e-3)


def test_bundled_networks_and_the_server_take_adapters(tmp_path: Path) -> None:
    keys = config({"merge": "product"}, method="fedavg")
    run = homophily.run(keys, out=tmp_path / "run")
    assert run.about["layout"]["frozen"] == ["1.weight", "1.bias"]
    assert torch.equal(run.state_dict(0)["1.lora_B"], run.state_dict(1)["1.lora_B"])
    again = homophily.resume(run.path, {"rounds": 4})
    assert again.summary["rounds"] == 4


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ({"targets": ["2"]}, r"model\.lora\.targets: no linear layer matches '2'; the names are 1, 3"),
        ({"targets": []}, r"model\.lora\.targets: name at least one layer; the linear layers are 1, 3"),
        ({"train": ["head"]}, r"model\.lora\.train: no layer matches 'head'"),
        ({"targets": ["3"]}, r"model\.lora\.targets: no layer gets adapters, because model\.lora\.train trains all"),
        ({"rank": 0}, r"model\.lora\.rank = 0"),
        ({"ranks": 4}, r"model\.lora\.ranks"),
        ({"merge": "mean"}, r"model\.lora\.merge"),
    ],
)
def test_mistakes_name_the_key(lora: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        homophily.run(config(lora), model=network(), out=tmp_path / "run")


def test_a_merge_without_weights_and_personal_factors_cannot_merge_products(tmp_path: Path) -> None:
    with pytest.raises(UnsuitableError, match="merge = 'median' has no weights for products"):
        homophily.run(config({"merge": "product"}, merge="median"), out=tmp_path / "one")
    keys = config({"merge": "product"})
    keys["model"]["personal"] = ["lora_B"]
    with pytest.raises(UserError, match=r"model\.personal: 1\.lora_B is a LoRA factor"):
        homophily.run(keys, out=tmp_path / "two")
    keys["model"]["lora"]["merge"] = "factors"  # FedSA-LoRA: A is shared, B is personal
    run = homophily.run(keys, out=tmp_path / "three")
    assert not torch.equal(run.state_dict(0)["1.lora_B"], run.state_dict(1)["1.lora_B"])


class Bypassing(nn.Module):
    """Uses the weight of a layer without calling the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(nn.functional.linear(x.flatten(1), self.inner.weight))
        return out


def test_a_target_that_is_never_called_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not call the layer 'inner'"):
        homophily.run(config({"targets": ["inner"], "train": ["head"]}), model=Bypassing(), out=tmp_path / "run")


def test_peft_loads_the_exported_adapters_with_equal_outputs(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="the extra huggingface is not installed")
    run = homophily.run(config(), model=network(), out=tmp_path / "run")
    folder = run.export_adapter(2, tmp_path / "adapter")
    loaded = peft.PeftModel.from_pretrained(network(), str(folder)).eval()
    x = torch.randn(4, 1, 8, 8)
    assert torch.allclose(loaded(x), run.model(2)(x), atol=1e-5)
    with pytest.raises(UserError, match=r"has no table \[model\.lora\]"):
        homophily.run({"peers": 4, "rounds": 1, "method": "local"}, out=tmp_path / "none").export_adapter(0, tmp_path)


class Named(nn.Module):
    """Layers whose names end alike, and parameters outside of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))
        self.first = nn.Linear(64, 16)
        self.norm = nn.LayerNorm(16)
        self.norm.extra = nn.Linear(16, 16)
        self.pre_head, self.head = nn.Linear(16, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm.extra(self.norm(self.first(x.flatten(1) * self.scale)).relu())  # type: ignore[operator]
        found: Tensor = self.head(self.pre_head(x).relu())
        return found


@pytest.mark.parametrize("train", [["head"], ["norm.weight"], ["head", "norm"]])
def test_peft_loads_layers_whose_names_end_alike_and_modules_with_frozen_parts(
    train: list[str], tmp_path: Path
) -> None:
    """peft saves whole modules: all whose names end with a given name."""
    peft = pytest.importorskip("peft", reason="the extra huggingface is not installed")
    torch.manual_seed(0)
    net = Named()
    run = homophily.run(config({"targets": ["first"], "train": train}), model=net, out=tmp_path / "run")
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(net), str(run.export_adapter(2, tmp_path / "adapter"))).eval()
    x = torch.randn(4, 1, 8, 8)
    assert torch.allclose(loaded(x), run.model(2)(x), atol=1e-5)


@pytest.mark.parametrize(("train", "which"), [(["scale"], "the network itself"), (["first.bias"], "module 'first'")])
def test_what_peft_cannot_hold_is_refused(train: list[str], which: str, tmp_path: Path) -> None:
    run = homophily.run(config({"targets": ["first"], "train": train}), model=Named(), out=tmp_path / "run")
    with pytest.raises(UserError, match=rf"{which} has parameters that are trained in full, and adapters in 'first'"):
        run.export_adapter(2, tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()


@pytest.mark.parametrize("merge", ["factors", "product"])
def test_a_peft_model_is_trained_as_it_is(merge: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="the extra huggingface is not installed")

    def wrapped() -> nn.Module:
        torch.manual_seed(0)
        settings = peft.LoraConfig(r=2, target_modules=["1"], modules_to_save=["3"], lora_dropout=0.1)
        found: nn.Module = peft.get_peft_model(network(), settings)
        return found

    keys = config(model={"lora": {"merge": merge}})
    runs = [
        homophily.run({**keys, "engine": engine}, model=wrapped(), out=tmp_path / engine)
        for engine in ("vectorised", "one-by-one")
    ]
    assert all("base_layer" in name or "original" in name for name in runs[0].about["layout"]["frozen"])
    for name, value in runs[0].state_dict(1).items():
        assert torch.allclose(value, runs[1].state_dict(1)[name], atol=2e-4), name
    folder = runs[0].export_adapter(1, tmp_path / "adapter")
    loaded = peft.PeftModel.from_pretrained(network(), str(folder)).eval()
    x = torch.randn(4, 1, 8, 8)
    assert torch.allclose(loaded(x), runs[0].model(1)(x), atol=1e-5)
    with pytest.raises(UserError, match=r"model\.lora\.rank: the model is a peft model"):
        homophily.run(config(model={"lora": {"rank": 4}}), model=wrapped(), out=tmp_path / "two")
