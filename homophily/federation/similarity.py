"""How alike two peers are, from their models: one number a pair, larger is more alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import torch
from torch import Tensor

from homophily.plugins.registry import Registry

_FLOOR = 1e-6  # of losses and distances, before they are inverted


class Pairs(Protocol):
    """M pairs of peers, me and you. Rows hold the shared parameters: [M, d]."""

    @property
    def mine(self) -> Tensor:
        """My model."""

    @property
    def yours(self) -> Tensor:
        """Your model."""

    @property
    def my_update(self) -> Tensor:
        """What this round's training changed in my model."""

    @property
    def your_update(self) -> Tensor: ...

    @property
    def my_path(self) -> Tensor:
        """The way my model has gone since its own initialisation."""

    @property
    def your_path(self) -> Tensor: ...

    def loss(self, on: Literal["own", "peer"]) -> Tensor:
        """[M] float64: mean loss of your model on my training data, or of mine on yours."""


Metric = Callable[..., Tensor]

metrics: Registry[Metric] = Registry("metric")


@metrics("loss")
def inverse_loss(pairs: Pairs, on: Literal["own", "peer"] = "own") -> Tensor:
    """Inverse loss of the peer's model on one's own training data (on = "peer": of one's own on the peer's)."""
    return 1.0 / pairs.loss(on).clamp(min=_FLOOR)


@metrics("l2")
def inverse_distance(pairs: Pairs) -> Tensor:
    """Inverse Euclidean distance of the weights."""
    return 1.0 / (pairs.mine - pairs.yours).square().sum(1, dtype=torch.float64).sqrt().clamp(min=_FLOOR)


@metrics("cosine-weights")
def cosine_of_weights(pairs: Pairs) -> Tensor:
    """Cosine of the weights."""
    return cosine(pairs.mine, pairs.yours)


@metrics("cosine-gradients")
def cosine_of_paths(pairs: Pairs) -> Tensor:
    """Cosine of the ways the weights have gone since each one's own initialisation."""
    return cosine(pairs.my_path, pairs.your_path)


@metrics("panm")
def panm(pairs: Pairs, alpha: float = 0.5) -> Tensor:
    """alpha times the cosine of this round's updates plus 1 - alpha times that of the ways since the start."""
    return alpha * cosine(pairs.my_update, pairs.your_update) + (1.0 - alpha) * cosine(pairs.my_path, pairs.your_path)


def needs_updates(metric: str) -> bool:
    """Whether it asks what this round's training changed. A user's own may."""
    return metric not in ("loss", "l2", "cosine-weights", "cosine-gradients")


def needs_path(metric: str) -> bool:
    """Whether it asks how far the other has come since its own start."""
    return metric in ("panm", "cosine-gradients")


def models_for_each(metric: str, on: str) -> int:
    """Models that travel for each peer met in a comparison: on the peer's data, one's own goes there too."""
    return 2 if metric == "loss" and on == "peer" else 1


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of rows [M, d]: [M] float64; 0 where a row is zero."""
    length = a.square().sum(1, dtype=torch.float64).sqrt() * b.square().sum(1, dtype=torch.float64).sqrt()
    dot = (a * b).sum(1, dtype=torch.float64)
    return torch.where(length > 0, dot / length.clamp(min=torch.finfo(torch.float64).tiny), 0.0)
