"""Similarity metrics of two peers' models: one number per pair, larger is more similar."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor

from homophily.plugins.registry import Registry

LossSamples = Literal["train", "validation"]  # the samples of a peer on which losses are computed
_FLOOR = 1e-6  # of losses and distances, before they are inverted


class Pairs(Protocol):
    """M pairs of peers, "me" and "you". Rows contain the shared parameters: [M, d]."""

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
    def my_displacement(self) -> Tensor:
        """My model minus its own initial weights."""

    @property
    def your_displacement(self) -> Tensor: ...

    def loss(self, on: Literal["own", "peer"], samples: LossSamples = "train") -> Tensor:
        """[M] float64: mean loss of your model on my training or validation samples, or of mine on yours."""


Metric = Callable[..., Tensor]

metrics: Registry[Metric] = Registry("metric")


@dataclass(frozen=True)
class MetricCost:
    """What a metric needs besides the two models, which decides what is sent for each peer met."""

    models: int = 1  # models sent: 2 for a loss on the peer's data, because one's own model is sent there too
    updates: bool = False  # this round's updates: the model before training is sent as well
    displacement: bool = False  # the models' displacements from their initial weights
    common_start: bool = False  # the metric is meaningful only if all peers start from the same model
    losses: Literal["own", "peer"] | None = None  # the metric uses only losses, on one's own or on the peer's data
    samples: LossSamples = "train"  # with models = 2: the samples of the peer that the loss is of

    @property
    def own_model(self) -> bool:
        """Whether the metric uses one's own model, so that it is undefined if that model has diverged."""
        return self.losses != "own"


_UNDECLARED = MetricCost(updates=True, displacement=True)  # a metric that declares nothing may use anything


def costs(cost: MetricCost | Callable[..., MetricCost]) -> Callable[[Metric], Metric]:
    """Decorator: declare what a metric needs, as a MetricCost or a function from the metric's keys to one."""

    def declare(metric: Metric) -> Metric:
        metric.cost = cost  # type: ignore[attr-defined]
        return metric

    return declare


def declares_cost(metric: Metric) -> bool:
    """Whether a metric says what it asks for; one that does not may ask for anything."""
    return hasattr(metric, "cost")


def cost_of(metric: Metric, keys: Mapping[str, Any]) -> MetricCost:
    """Return what a metric needs with these keys."""
    cost = metric.cost if declares_cost(metric) else _UNDECLARED  # type: ignore[attr-defined]
    return cost if isinstance(cost, MetricCost) else cost(**keys)


def _cost_of_losses(on: Literal["own", "peer"] = "own", losses: LossSamples = "train") -> MetricCost:
    return MetricCost(models=2 if on == "peer" else 1, losses=on, samples=losses)


@metrics("loss")
@costs(_cost_of_losses)
def inverse_loss(
    pairs: Pairs,
    on: Annotated[
        Literal["own", "peer"],
        Field(description="whose data: the peer's model is tested on one's own, or one's own model on the peer's"),
    ] = "own",
    losses: Annotated[
        LossSamples, Field(description="which samples: those for training, or those held out for validation")
    ] = "train",
) -> Tensor:
    """Inverse loss of the peer's model on one's own samples (on = "peer": of one's own model on the peer's)."""
    return 1.0 / pairs.loss(on, losses).clamp(min=_FLOOR)


@metrics("l2")
@costs(MetricCost())
def inverse_distance(pairs: Pairs) -> Tensor:
    """Inverse Euclidean distance between the weights."""
    return 1.0 / (pairs.mine - pairs.yours).square().sum(1, dtype=torch.float64).sqrt().clamp(min=_FLOOR)


@metrics("cosine-weights")
@costs(MetricCost())
def cosine_of_weights(pairs: Pairs) -> Tensor:
    """Cosine similarity of the weights."""
    return cosine(pairs.mine, pairs.yours)


@metrics("cosine-gradients")
@costs(MetricCost(displacement=True))
def cosine_of_displacements(pairs: Pairs) -> Tensor:
    """Cosine similarity of the displacements, each from its model's own initial weights."""
    return cosine(pairs.my_displacement, pairs.your_displacement)


@metrics("panm")
@costs(MetricCost(updates=True, displacement=True, common_start=True))
def panm(
    pairs: Pairs,
    alpha: Annotated[
        float, Field(description="the weight of this round's updates; the displacements have the rest")
    ] = 0.5,
) -> Tensor:
    """alpha times the cosine of this round's updates plus 1 - alpha times that of the displacements."""
    return alpha * cosine(pairs.my_update, pairs.your_update) + (1.0 - alpha) * cosine(
        pairs.my_displacement, pairs.your_displacement
    )


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosine similarity of rows [M, d]: [M] float64; 0 if a row is zero."""
    length = a.square().sum(1, dtype=torch.float64).sqrt() * b.square().sum(1, dtype=torch.float64).sqrt()
    dot = (a * b).sum(1, dtype=torch.float64)
    return torch.where(length > 0, dot / length.clamp(min=torch.finfo(torch.float64).tiny), 0.0)
