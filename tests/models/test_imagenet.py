"""The networks with public ImageNet weights have torchvision's names, and every engine can train them."""

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from homophily import run
from homophily.atomic_io import read_tensors
from homophily.errors import UserError
from homophily.models import models
from homophily.training.one_by_one import OneByOne
from homophily.training.vectorised import Vectorised
from tests.training.nets import shares, task, trained

NAMES = ["mobilenet-v2", "resnet-18"]
MOBILENET_FILE = "mobilenet_v2-imagenet.safetensors"
NORM = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]


def network(name: str, outputs: int = 10, inputs: tuple[int, ...] = (3, 32, 32), **keys: str) -> nn.Module:
    torch.manual_seed(0)
    return models.get(name)(inputs=inputs, outputs=outputs, **keys)


def imagenet_weights() -> Path:
    """The real file; skips the test if HOMOPHILY_DATA does not contain it."""
    for folder in os.environ.get("HOMOPHILY_DATA", "").split(os.pathsep):
        if folder and (Path(folder) / "weights" / MOBILENET_FILE).is_file():
            return Path(folder) / "weights" / MOBILENET_FILE
    pytest.skip(f"HOMOPHILY_DATA leads to no weights/{MOBILENET_FILE}: the real weights were not tested")


# names and sizes


def convolved(*places: str) -> set[str]:
    """A convolution without a bias, then BatchNorm: layers 0 and 1 of each module."""
    return {f"{place}.0.weight" for place in places} | {f"{place}.1.{part}" for place in places for part in NORM}


def mobilenet_names() -> set[str]:
    names = convolved("features.0", "features.18") | {"classifier.1.weight", "classifier.1.bias"}
    for block in range(1, 18):
        inside = 1 if block == 1 else 2  # all but the first block begin with an expansion
        conv = f"features.{block}.conv"
        names |= convolved(*(f"{conv}.{layer}" for layer in range(inside)))
        names |= {f"{conv}.{inside}.weight"} | {f"{conv}.{inside + 1}.{part}" for part in NORM}
    return names


def resnet_names() -> set[str]:
    places = ["", *(f"layer{layer}.{block}." for layer in (1, 2, 3, 4) for block in (0, 1))]
    numbers = {place: (1, 2) if place else (1,) for place in places}
    names = {f"{place}conv{i}.weight" for place in places for i in numbers[place]} | {"fc.weight", "fc.bias"}
    names |= {f"{place}bn{i}.{part}" for place in places for i in numbers[place] for part in NORM}
    return names | convolved(*(f"layer{layer}.0.downsample" for layer in (2, 3, 4)))


@pytest.mark.parametrize(
    ("name", "expected", "parameters"),
    [("mobilenet-v2", mobilenet_names(), 3_504_872), ("resnet-18", resnet_names(), 11_689_512)],
)
def test_tensors_are_named_and_counted_as_in_torchvision(name: str, expected: set[str], parameters: int) -> None:
    made = network(name, outputs=1000)
    assert set(made.state_dict()) == expected
    assert sum(p.numel() for p in made.parameters()) == parameters


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("inputs", [(1, 8, 8), (3, 32, 32), (3, 40, 56)])
def test_images_of_any_size_are_accepted(name: str, inputs: tuple[int, ...]) -> None:
    found = network(name, outputs=7, inputs=inputs).eval()(torch.randn(2, *inputs))
    assert found.shape == (2, 7)
    assert bool(found.isfinite().all())


@pytest.mark.parametrize("name", NAMES)
def test_other_samples_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=rf"{name}.*needs images .* has shape \[6\]"):
        network(name, inputs=(6,))


# pre-trained weights


def test_the_public_weights_classify_a_photograph() -> None:
    made = network("mobilenet-v2", outputs=1000)
    made.load_state_dict(read_tensors(imagenet_weights()))  # every name and shape fits
    monastery, palace, stupa, bell_cote = 663, 698, 832, 442
    seen = made.eval()(photograph_of_a_temple())[0].topk(4).indices.tolist()
    assert set(seen) == {monastery, palace, stupa, bell_cote}


def photograph_of_a_temple() -> Tensor:
    """A photograph of scikit-learn, preprocessed as for ImageNet networks."""
    pytest.importorskip("PIL", reason="Pillow is not here: the real weights were not tried on a photograph")
    from sklearn.datasets import load_sample_image

    pixels = torch.tensor(load_sample_image("china.jpg")).permute(2, 0, 1)[None] / 255
    mean, deviation = (torch.tensor(of)[:, None, None] for of in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    return (interpolate(pixels, size=(224, 336), mode="bilinear", antialias=True) - mean) / deviation


def test_the_classifier_is_replaced_for_the_data() -> None:
    made, given = network("mobilenet-v2", 100, weights=str(imagenet_weights())), read_tensors(imagenet_weights())
    assert made.state_dict()["classifier.1.weight"].shape == (100, 1280)
    features = {name: tensor for name, tensor in made.state_dict().items() if name.startswith("features.")}
    assert all(torch.equal(t, given[n]) for n, t in features.items() if not n.endswith("num_batches_tracked"))


# in a federation


@pytest.mark.parametrize("name", NAMES)
def test_both_engines_agree(name: str) -> None:
    problem = task(network(name, inputs=(3, 16, 16)), shares([9, 4], (3, 16, 16)), optimizer="adam", lr=1e-4, epochs=1)
    plain, kept = trained(OneByOne(problem), problem, rounds=1)
    fast, kept_fast = trained(Vectorised(problem, chunk=2), problem, rounds=1)
    assert bool(((plain - problem.layout.read(problem.module)[0]).abs().amax(1) > 1e-4).all())
    assert torch.allclose(plain, fast, atol=1e-7)
    assert set(kept) == {n for n, _ in problem.module.named_buffers() if n.endswith("num_batches_tracked")}
    assert all(torch.equal(kept[n], kept_fast[n]) for n in kept)


@pytest.mark.parametrize("name", NAMES)
def test_a_federation_trains_it(name: str, here: Path) -> None:
    config = {
        "model": name,
        "peers": 3,
        "rounds": 1,
        "method": {"name": "random", "k": 2},
        "data": {"train": 8, "test": 5, "shift": "iid"},
        "training": {"optimizer": "adam", "lr": 1e-4, "batch": 8, "epochs": 1},
    }
    done = run(config, device="cpu")
    assert done.about["plan"]["engine"] == "one-by-one", "a CPU vectorises only small networks"
    assert done.summary["models_sent_per_peer"] == 2
    assert done.summary["diverged"] == []
