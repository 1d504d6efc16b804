"""Models of Hugging Face transformers, built from small configs, are trained as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import homophily
from homophily.data import PeerData
from homophily.errors import UserError

transformers = pytest.importorskip("transformers", reason="the extra huggingface is not installed")

WORDS, LENGTH, SAMPLES = 40, 8, 12
BERT = {
    "vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": 16,
}  # fmt: skip
GPT2 = {
    "vocab_size": WORDS,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 16,
    "bos_token_id": 1,
    "eos_token_id": 1,
}


def distilbert() -> Any:
    settings = {"vocab_size": WORDS, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
    config = transformers.DistilBertConfig(**settings, max_position_embeddings=16, num_labels=2)
    return transformers.DistilBertForSequenceClassification(config)


MODELS = {
    "distilbert": distilbert,
    "bert": lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**BERT, num_labels=2)),
    "gpt2": lambda: transformers.GPT2ForSequenceClassification(
        transformers.GPT2Config(**GPT2, num_labels=2, pad_token_id=0)
    ),
}


def tokens(peer: int) -> tuple[Tensor, Tensor]:
    """Sentences of different lengths, padded with 0; the class is whether a word of the first half comes first."""
    torch.manual_seed(peer)
    x = torch.randint(2, WORDS, (SAMPLES, LENGTH))
    x[torch.arange(LENGTH) >= torch.randint(3, LENGTH + 1, (SAMPLES, 1))] = 0
    return x, (x[:, 0] < WORDS // 2).long()


def peers(count: int = 3) -> list[PeerData]:
    return [PeerData(*tokens(i)) for i in range(count)]


def config(**keys: Any) -> dict[str, Any]:
    training = {"epochs": 1, "batch": 5, "lr": 0.01}
    return {"rounds": 2, "method": {"name": "random", "k": 1}, "training": training, **keys}


def alike(runs: list[homophily.Run], atol: float = 1e-4) -> None:
    for peer in range(2):
        first, second = (run.state_dict(peer) for run in runs)
        assert set(first) == set(second)
        assert all(torch.allclose(first[name], second[name], atol=atol) for name in first)


@pytest.mark.parametrize("name", MODELS)
def test_models_with_dropout_and_padding_train_alike_in_both_engines(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    runs = [
        homophily.run(config(engine=engine), model=model, data=peers(), out=tmp_path / engine)
        for engine in ("vectorised", "one-by-one")
    ]
    alike(runs)
    trained: Any = runs[0].model(1)
    x, _ = tokens(1)
    assert trained.config._attn_implementation == model.config._attn_implementation, "the user's own attention"
    with torch.no_grad():
        logits = trained(input_ids=x, attention_mask=(x != 0).long()).logits
    assert logits.shape == (SAMPLES, 2)
    assert not torch.equal(
        trained.state_dict()["score.weight" if name == "gpt2" else "classifier.weight"],
        model.state_dict()["score.weight" if name == "gpt2" else "classifier.weight"],
    )


def test_training_equals_a_plain_loop_with_the_models_own_attention_and_loss(tmp_path: Path) -> None:
    torch.manual_seed(0)
    settings = {**BERT, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 2}
    model: Any = transformers.BertForSequenceClassification(transformers.BertConfig(**settings))
    x, y = tokens(0)
    data = [PeerData(x, y, test_x=x, test_y=y)]
    keys = config(rounds=1, method="local", training={"epochs": 1, "batch": SAMPLES, "lr": 0.1, "momentum": 0.0})
    run = homophily.run(keys, model=model, data=data, out=tmp_path / "run")
    model.train()
    model(input_ids=x, attention_mask=(x != 0).long(), labels=y).loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    found = run.state_dict(0)
    assert all(torch.allclose(found[name], value, atol=1e-5) for name, value in model.state_dict().items())
    with torch.no_grad():
        loss = model.eval()(input_ids=x, attention_mask=(x != 0).long(), labels=y).loss
    assert run.scores["loss"][0] == pytest.approx(float(loss), rel=1e-4)


@pytest.mark.parametrize("engine", ["vectorised", "one-by-one"])
def test_fields_are_passed_by_name(engine: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = MODELS["bert"]()

    def named(i: int, mask: Tensor | None = None) -> PeerData:
        x, y = tokens(i)
        mask = (x != 0).long() if mask is None else mask
        return PeerData({"input_ids": x, "attention_mask": mask, "token_type_ids": torch.zeros_like(x)}, y)

    keys = config(engine=engine)
    run = homophily.run(keys, model=model, data=[named(i) for i in range(3)], out=tmp_path / "named")
    plain = homophily.run(keys, model=model, data=peers(), out=tmp_path / "plain")
    alike([run, plain])
    other = [named(i, torch.ones(SAMPLES, LENGTH, dtype=torch.long)) for i in range(3)]
    unmasked = homophily.run(keys, model=model, data=other, out=tmp_path / "unmasked")
    assert unmasked.summary["loss"] != run.summary["loss"]
    ready: Any = run.prepared(0, {name: value[:2] for name, value in named(0).x.items()})  # type: ignore[union-attr]
    assert ready["input_ids"].shape == (2, LENGTH)
    model_of_peer: Any = run.model(0)
    assert model_of_peer(**ready).logits.shape == (2, 2)
    assert (
        homophily.resume(run.path, {"rounds": 3}, model=model, data=[named(i) for i in range(3)]).summary["rounds"] == 3
    )


def test_models_of_positions_get_a_target_for_each(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tagger = transformers.BertForTokenClassification(transformers.BertConfig(**BERT, num_labels=3))
    language: Any = transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2))
    x, _ = tokens(0)
    tags = torch.where(x > 0, x % 3, -100)
    following = torch.cat([x[:, 1:], torch.full((SAMPLES, 1), -100)], 1)
    for model, y in ((tagger, tags), (language, following)):
        data = [PeerData(x, y, test_x=x, test_y=y)] * 3
        name = type(model).__name__
        runs = [
            homophily.run(config(engine=engine), model=model, data=data, out=tmp_path / f"{name}-{engine}")
            for engine in ("vectorised", "one-by-one")
        ]
        alike(runs)
    trained: Any = runs[0].model(0)
    with torch.no_grad():
        loss = trained(input_ids=x, labels=x).loss  # transformers moves labels itself
    assert runs[0].scores["loss"][0] == pytest.approx(float(loss), rel=1e-4)
    assert torch.equal(trained.lm_head.weight, trained.transformer.wte.weight), "tied"


def test_images_and_lora_on_a_vision_transformer(tmp_path: Path) -> None:
    torch.manual_seed(0)
    settings = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    vit = transformers.ViTConfig(**settings, image_size=8, patch_size=4, num_channels=1, num_labels=10)
    model = transformers.ViTForImageClassification(vit)
    lora = {"rank": 2, "targets": ["attention"], "train": ["classifier"]}
    keys = {"peers": 4, "rounds": 2, "method": {"name": "random", "k": 1}, "model": {"lora": lora}}
    runs = [
        homophily.run({**keys, "engine": engine}, model=model, out=tmp_path / engine)
        for engine in ("vectorised", "one-by-one")
    ]
    alike(runs)


def test_peft_loads_the_adapters_of_a_transformer(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="the extra huggingface is not installed")
    torch.manual_seed(0)
    model = MODELS["gpt2"]()
    lora = {"rank": 2, "targets": ["c_attn"], "train": ["score"]}  # a Conv1D layer
    run = homophily.run(config(model={"lora": lora}), model=model, data=peers(), out=tmp_path / "run")
    folder = run.export_adapter(1, tmp_path / "adapter")
    x, _ = tokens(1)
    mine: Any = run.model(1)
    with torch.no_grad():
        wanted = mine(input_ids=x, attention_mask=(x != 0).long()).logits
        loaded = peft.PeftModel.from_pretrained(model, str(folder)).eval()
        assert torch.allclose(loaded(input_ids=x, attention_mask=(x != 0).long()).logits, wanted, atol=1e-5)


def test_a_transformer_in_peft_is_vectorised(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="the extra huggingface is not installed")
    torch.manual_seed(0)
    settings = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["q_lin", "v_lin"])
    model = peft.get_peft_model(distilbert(), settings)
    runs = [
        homophily.run(config(engine=engine), model=model, data=peers(), out=tmp_path / engine)
        for engine in ("vectorised", "one-by-one")
    ]
    alike(runs)


def test_a_model_without_a_head_is_refused(tmp_path: Path) -> None:
    model = transformers.BertModel(transformers.BertConfig(**BERT))
    with pytest.raises(UserError, match=r"BertModel returns .* without logits"):
        homophily.run(config(), model=model, data=peers(), out=tmp_path / "run")


class TwoInputs(nn.Module):
    """A plain network with two named inputs: an image and a token."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.pixels, self.head = nn.Embedding(5, 4), nn.Linear(9, 4), nn.Linear(8, 2)

    def forward(self, *, image: Tensor, word: Tensor) -> Tensor:
        assert image.shape[1:] == (1, 3, 3)
        assert word.dtype == torch.int64
        out: Tensor = self.head(torch.cat([self.pixels(image.flatten(1)), self.words(word)], 1))
        return out


def two_inputs(i: int) -> dict[str, Any]:
    torch.manual_seed(i)
    return {"image": torch.randint(0, 256, (10, 1, 3, 3), dtype=torch.uint8), "word": torch.randint(0, 5, (10,))}


def test_a_plain_network_takes_fields_of_different_dtypes(tmp_path: Path) -> None:
    data = [PeerData(two_inputs(i), torch.arange(10) % 2) for i in range(3)]
    runs = [
        homophily.run(config(engine=engine, method="kin"), model=TwoInputs(), data=data, out=tmp_path / engine)
        for engine in ("vectorised", "one-by-one")
    ]
    assert runs[0].about["fields"][0] == {"name": "image", "shape": [1, 3, 3], "dtype": "float32"}
    ready: Any = runs[0].prepared(0, two_inputs(0))
    assert float(ready["image"].max()) <= 1.0
    assert runs[0].model(0)(**ready).shape == (10, 2)
