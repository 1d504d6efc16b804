"""What is to be trained: a network, a loss, everyone's data and the settings. Both engines work from this."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor, nn

from homophily.data.types import FederatedData
from homophily.federation.layout import Kept, Layout
from homophily.training.losses import Loss


@dataclass(frozen=True)
class Settings:
    """How a peer trains in one round."""

    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 0.0
    decay: float = 0.99  # of the learning rate, a round
    batch: int = 10
    epochs: int = 3

    def lr_in(self, round: int) -> float:
        """The learning rate in a round (rounds count from 1)."""
        return self.lr * self.decay ** (round - 1)


@dataclass(frozen=True)
class Task:
    """A federation's learning problem. Engines read the module's structure and frozen tensors, which all peers share,
    never its other weights."""

    module: nn.Module  # dropout layers already keyed
    layout: Layout
    loss: Loss
    data: FederatedData
    seed: Tensor  # [N] int64: the seed of each peer's run
    ids: Tensor  # [N] int64
    settings: Settings
    coupled: bool  # samples of a batch influence one another (BatchNorm)
    draws: bool = False  # the module draws random numbers by itself

    @cached_property
    def counts(self) -> Tensor:
        """[N]: training samples of each, on the CPU: Python can read them without waiting for a GPU."""
        return self.data.train.count.cpu()

    def batch(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Training samples by index [...] in the network's precision: x [..., *inputs], y [...]."""
        return self.cast(self.data.train.x[samples]), self.cast(self.data.train.y[samples])

    def cast(self, values: Tensor) -> Tensor:
        """Floats in the network's precision; integers as they are."""
        return values.to(self.layout.dtype) if values.is_floating_point() else values


class Engine(Protocol):
    """Moves rows of W."""

    name: str

    def train(self, rows: Tensor, kept: Kept, peers: Tensor, round: int) -> None:
        """One round of local training of ``peers`` [P], in place. rows: [N, D]; kept: [N, ...] each."""

    def predict(self, rows: Tensor, kept: Kept, x: Tensor) -> Tensor:
        """Outputs [P, n, ...] of P models (rows [P, D]) on each one's own inputs x [P, n, ...], in evaluation mode."""

    def cross_evaluate(self, rows: Tensor, kept: Kept, model: Tensor, data: Tensor) -> Tensor:
        """Outputs [M, n, ...] of the models in rows ``model`` [M] on the training data of the peers ``data`` [M].

        rows: [N, D]. A peer with fewer than n samples has its last one repeated. Kept tables and personal parameters
        are those of the peer whose data it is.
        """


@runtime_checkable
class Joinable(Engine, Protocol):
    """An engine that can train the peers of several runs in one computation."""

    def on(self, task: Task, chunk: int) -> Engine:
        """The same engine for another task of the same network."""
