"""The small networks that the papers use: MLPs, a linear model and CNNs."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Annotated

from pydantic import Field
from torch import nn

from homophily.errors import UserError
from homophily.models.base import image_shape, models


@models("mlp")
def mlp(
    inputs: tuple[int, ...],
    outputs: int,
    hidden: Annotated[list[int], Field(description="units of each hidden layer, each at least 1")] = [32],  # noqa: B006
) -> nn.Module:
    """Fully connected layers of the given hidden sizes, with ReLU."""
    if any(size < 1 for size in hidden):
        raise UserError(f"model.hidden = {hidden}: every layer must have at least 1 unit")
    sizes = [prod(inputs), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


@models("linear")
def linear(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    """One linear layer."""
    return mlp(inputs, outputs, hidden=[])


@models("cnn")
def cnn(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    """For 28x28 images: 3x3 convolutions of 16 and 32 channels with pooling, then 64 hidden units."""
    channels, height, width = image_shape(inputs, "cnn", 10)
    side = [((size - 2) // 2 - 2) // 2 for size in (height, width)]
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * prod(side), 64),
        nn.ReLU(),
        nn.Linear(64, outputs),
    )


@models("dac-cnn")
def dac_cnn(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    """The DAC paper's network for CIFAR: 5x5 convolutions of 6 and 16 channels, then 120 and 84 hidden units."""
    channels, height, width = image_shape(inputs, "dac-cnn", 16)
    side = [((size - 4) // 2 - 4) // 2 for size in (height, width)]
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * prod(side), 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, outputs),
    )


@models("cifar-cnn")
def cifar_cnn(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    """For 32x32 images: 3x3 convolutions of 32, 64 and 64 channels, then 64 hidden units."""
    channels, height, width = image_shape(inputs, "cifar-cnn", 4)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 64),
        nn.ReLU(),
        nn.Linear(64, outputs),
    )
