"""The two networks for environments without homophily; side_by_side.py checks that they are the package's own."""

from __future__ import annotations

import torch
from torch import nn


def network(name: str) -> nn.Module:
    """Return a network for 28x28 images in ten classes, with the same weights every time."""
    torch.manual_seed(0)
    return cnn() if name == "cnn" else mlp()


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 200),
        nn.ReLU(),
        nn.Linear(200, 200),
        nn.ReLU(),
        nn.Linear(200, 10),
    )
