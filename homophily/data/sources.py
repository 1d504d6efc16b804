"""The bundled data sets, by name, before they are partitioned among peers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from homophily.data.files import find_files
from homophily.data.formats import read_cifar, read_idx, read_numbers
from homophily.data.generated import Generator, linear_teachers
from homophily.data.types import Samples, Source
from homophily.errors import UserError
from homophily.plugins.registry import Registry
from homophily.randomness import Purpose, normal, permutation, uniform

sources: Registry[Callable[..., Source | Generator]] = Registry("data set", passed=("seed",))


def load_source(name: str, seed: int, keys: Mapping[str, Any]) -> Source:
    """Return the data set called ``name``. keys: its config keys; seed: for data sets that are drawn at random."""
    make = sources.get(name)
    parameters = inspect.signature(make).parameters
    allowed = [key for key in parameters if key != "seed"]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for key in keys:
        if key == "seed" or (key not in allowed and not takes_any):
            known = f"its keys are {', '.join(allowed)}" if allowed else "it has no keys"
            raise UserError(f"data.{key}: the data set {name!r} does not have this key; {known}")
    source = make(**keys, seed=seed) if "seed" in parameters else make(**keys)
    if not isinstance(source, Source):
        raise UserError(f"data set {name!r} must return a Source, not {type(source).__name__}")
    return source


# Images


@sources("digits")
def digits() -> Source:
    """Handwritten digits, 8x8 pixels, 1,200 for training and 597 for testing; comes with scikit-learn, no download."""
    from sklearn.datasets import load_digits

    bundled = load_digits()
    # scikit-learn's grey values are 0 to 16; they are scaled to the usual 0 to 255
    pixels = torch.from_numpy(bundled.images * (255 / 16)).round().to(torch.uint8)[:, None]
    labels = torch.from_numpy(bundled.target).to(torch.int64)
    order = permutation(len(labels), Purpose.SOURCE)  # independent of the seed: the test set is always the same
    x, y = pixels[order], labels[order]
    train, test = Samples(x[:1200], y[:1200]), Samples(x[1200:], y[1200:])
    return Source("digits", train, test, classes=10, defaults={"shift": "rotation", "normalise": "standard"})


@sources("mnist")
def mnist() -> Source:
    """MNIST handwritten digits, 28x28 pixels, 60,000 for training and 10,000 for testing."""
    return _idx_source("mnist")


@sources("fashion-mnist")
def fashion_mnist() -> Source:
    """Fashion-MNIST clothes, 28x28 pixels, 10 classes, 60,000 for training and 10,000 for testing."""
    return _idx_source("fashion-mnist")


def _idx_source(name: str) -> Source:
    files = [f"{part}-{what}-ubyte.gz" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")]
    *train, test_images, test_labels = find_files(name, files)
    return Source(name, _read(_idx_samples, train), _read(_idx_samples, [test_images, test_labels]), classes=10)


def _idx_samples(files: tuple[Path, ...]) -> Samples:
    images, labels = files
    x, y = read_idx(images), read_idx(labels)
    if x.dim() != 3 or y.dim() != 1 or len(x) != len(y):
        raise UserError(f"{images} of shape {list(x.shape)} and {labels} of shape {list(y.shape)} do not fit together")
    if int(y.max()) > 9:
        raise UserError(f"{labels}: contains the label {int(y.max())}, but there are 10 classes, from 0")
    return Samples(x[:, None], y.to(torch.int64))


@sources("cifar-10")
def cifar_10() -> Source:
    """CIFAR-10 photographs, 32x32 pixels in colour, 10 classes, 50,000 for training and 10,000 for testing."""
    *train, test = find_files("cifar-10", [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"])
    return Source("cifar-10", _read(_cifar_samples, train, (10,)), _read(_cifar_samples, [test], (10,)), classes=10)


@sources("cifar-100")
def cifar_100() -> Source:
    """CIFAR-100 photographs, 32x32 pixels in colour, 100 classes in 20 superclasses, from all files train*.bin."""
    *train, test = find_files("cifar-100", ["train*.bin", "test.bin"])
    train_samples, test_samples = (_read(_cifar_samples, files, (20, 100)) for files in (train, [test]))
    return Source("cifar-100", train_samples, test_samples, classes=100)


def _cifar_samples(files: tuple[Path, ...], classes: tuple[int, ...]) -> Samples:
    """Return the samples of several files; the last label byte is the class, the one before it the superclass."""
    images, labels = zip(*(read_cifar(file, classes) for file in files), strict=True)
    fine_last = torch.cat(labels)
    return Samples(torch.cat(images), fine_last[:, -1], coarse=fine_last[:, 0] if len(classes) == 2 else None)


def _read(reader: Callable[..., Samples], files: list[Path], *more: tuple[int, ...]) -> Samples:
    """Return what a reader reads from some files, from a cache as long as the files do not change."""
    status = [file.stat() for file in files]
    return _read_cached(reader, tuple(files), tuple((one.st_mtime_ns, one.st_size) for one in status), *more)


@lru_cache(maxsize=4)
def _read_cached(
    reader: Callable[..., Samples], files: tuple[Path, ...], stamps: tuple[tuple[int, int], ...], *more: tuple[int, ...]
) -> Samples:
    return reader(files, *more)


# Synthetic regression

_TRAIN, _TEST, _THETA = range(3)  # what is drawn: different random keys, so that the draws are independent


@sources("linear")
def linear(
    seed: int,
    features: Annotated[int, Field(description="features of a sample, from 1 to 1,000,000")] = 10,
    noise: Annotated[float, Field(description="standard deviation of the noise of the targets, at least 0")] = 3.0,
    samples: Annotated[
        int, Field(description="training samples, at least 6; the test set has a sixth as many")
    ] = 60_000,
) -> Source:
    """Synthetic linear regression, y = <x, theta> + noise, with x uniform in [-10, 10] and theta in [-5, 5].

    ``samples``: for training, with a sixth as many for testing; ``noise``: the standard deviation of the normal noise.
    """
    _check_number("features", features, int, 1, 10**6)
    _check_number("noise", noise, (int, float), 0, 1e30)
    _check_number("samples", samples, int, 6, 10**9 // features)
    theta = coefficients(seed, 0, features)

    def drawn(part: int, n: int) -> Samples:
        i = torch.arange(n)
        x = (20.0 * uniform(seed, Purpose.SOURCE, part, 0, i[:, None], torch.arange(features)) - 10.0).to(torch.float32)
        y = x.to(torch.float64) @ theta + noise * normal(seed, Purpose.SOURCE, part, 1, i)
        return Samples(x, y.to(torch.float32)[:, None])

    defaults = {"shift": "concept", "normalise": "unit"}
    return Source("linear", drawn(_TRAIN, samples), drawn(_TEST, samples // 6), classes=None, defaults=defaults)


def _check_number(key: str, value: object, kind: type | tuple[type, ...], least: int, most: float) -> None:
    if not isinstance(value, kind) or not least <= value <= most:  # type: ignore[operator]
        word = "whole number" if kind is int else "number"
        raise UserError(f"data.{key} must be a {word} of at least {least} and at most {most:g}, not {value!r}")


def coefficients(seed: int, concept: int, features: int) -> Tensor:
    """Return the theta of a concept, float64 [features]; ``linear`` draws its targets with concept 0."""
    return 10.0 * uniform(seed, Purpose.SOURCE, _THETA, concept, torch.arange(features)) - 5.0


# Synthetic classification


@sources("synthetic")
def synthetic(
    seed: int,
    features: Annotated[int, Field(ge=1, description="features of a sample")] = 16,
    classes: Annotated[int, Field(ge=2, description="classes")] = 4,
    clusters: Annotated[int, Field(ge=1, description="clusters of peers, of equal size")] = 4,
) -> Generator:
    """Synthetic classification for any number of peers: each cluster labels uniform inputs by its own linear map.

    A peer's samples are drawn by its own number, so nothing is divided among peers.
    """
    return linear_teachers(seed, features, classes, clusters)


# Hospitals

HOSPITALS = {
    "Cleveland": "processed.cleveland.data",
    "Hungary": "processed.hungarian.data",
    "Switzerland": "processed.switzerland.data",
    "Long Beach": "processed.va.data",
}

# Mean and standard deviation of each feature over the observed values of all four hospitals. They are constants, so
# that peers scale their features alike without exchanging statistics.
HEART_FEATURES = {
    "age": (53.51087, 9.419562),
    "sex": (0.78913, 0.407926),
    "cp": (3.25, 0.930463),
    "trestbps": (132.286047, 18.525395),
    "chol": (246.832869, 58.48629),
    "fbs": (0.166265, 0.372318),
    "restecg": (0.604575, 0.805388),
    "thalach": (137.545665, 25.911286),
    "exang": (0.389595, 0.487659),
    "oldpeak": (0.878788, 1.09059),
    "slope": (1.770867, 0.618749),
    "ca": (0.676375, 0.934138),
    "thal": (5.087558, 1.916862),
}


def read_hospital(path: Path) -> tuple[Tensor, Tensor]:
    """Return one hospital's features, float64 [n, 13], unscaled, NaN if missing, and targets, int64 [n], 1: disease."""
    table = read_numbers(path, len(HEART_FEATURES) + 1)
    if bool(table[:, -1].isnan().any()):
        raise UserError(f"{path}: a diagnosis (the last column) is missing")
    x = table[:, :-1].clone()
    for name in ("chol", "trestbps"):  # 0 is impossible: the hospitals used it for values not measured
        column = x[:, list(HEART_FEATURES).index(name)]
        column[column == 0] = torch.nan
    return x, (table[:, -1] > 0).to(torch.int64)


@sources("heart-disease")
def heart_disease() -> Source:
    """Heart disease at four hospitals (UCI), 13 standardised features, 920 patients, 2 classes: disease or not.

    Missing values are NaN: question marks in the files, and 0 for cholesterol or blood pressure.
    """
    hospitals = [read_hospital(path) for path in find_files("heart-disease", list(HOSPITALS.values()))]
    mean, deviation = torch.tensor(list(HEART_FEATURES.values()), dtype=torch.float64).unbind(dim=1)
    x = (torch.cat([x for x, _ in hospitals]) - mean) / deviation
    y = torch.cat([y for _, y in hospitals])
    owner = torch.cat([torch.full_like(y, i) for i, (_, y) in enumerate(hospitals)])
    return Source(
        "heart-disease",
        Samples(x.to(torch.float32), y, owner=owner),
        test=None,
        classes=2,
        owners=tuple(HOSPITALS),
        defaults={"shift": "natural", "normalise": "unit", "peers": 29, "train": 20, "test": 10},
    )
