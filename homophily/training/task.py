"""The training task that engines work on (network, loss, data, settings), and the interface of an engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from math import cos, pi
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from homophily.data.transforms import BatchTransform
from homophily.data.types import FederatedData, Split
from homophily.errors import UserError
from homophily.federation.layout import Column, Kept, Layout
from homophily.federation.similarity import LossSamples
from homophily.training.losses import Loss
from homophily.training.objectives import PLAIN, Objective, Trains, check_phases
from homophily.training.private import Private

Precision = Literal["full", "fast", "bf16"]


@dataclass(frozen=True)
class Settings:
    """How a peer trains in one round."""

    optimizer: str = "sgd"  # "sgd", "adam", "adamw", or the name of a class
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)  # of the class
    lr: float = 0.05
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    clip: float | None = None  # largest norm of a peer's gradient; None: any
    schedule: Literal["exponential", "cosine", "constant"] = "exponential"
    decay: float = 0.99  # factor of the learning rate per round, if it is exponential
    warmup: int = 0  # rounds
    rounds: int = 60  # over which a cosine falls
    batch: int = 10
    epochs: int = 3

    def lr_factor(self, round: int) -> float:
        """Return the factor of the learning rate in a round (rounds count from 1)."""
        if round <= self.warmup:
            return round / (self.warmup + 1)
        over = round - 1 - self.warmup
        if self.schedule == "cosine":
            return (1 + cos(pi * over / (self.rounds - self.warmup))) / 2
        return self.decay**over if self.schedule == "exponential" else 1.0


@dataclass(frozen=True)
class Task:
    """The learning task of a federation.

    Engines use the module's structure and its frozen tensors, which are the same for all peers; its other weights are
    not used.
    """

    module: nn.Module  # dropout layers already keyed
    layout: Layout
    loss: Loss
    data: FederatedData
    seed: Tensor  # [N] int64: the seed of each peer's run
    ids: Tensor  # [N] int64
    settings: Settings
    coupled: bool  # samples of a batch influence one another (BatchNorm)
    draws: bool = False  # the module draws random numbers itself
    precision: Precision = "full"
    lr_by_peer: Tensor | None = None  # [N] float64; None: settings.lr for all
    epochs_by_peer: Tensor | None = None  # [N] int64 on the CPU; None: settings.epochs for all
    objective: Objective = PLAIN
    transform: BatchTransform | None = None  # of training inputs, drawn anew for every batch
    private: Private | None = None  # how peers train privately; None: without privacy

    @cached_property
    def counts(self) -> Tensor:
        """[N]: training samples per peer, on the CPU, so that reading them does not synchronise with a GPU."""
        return self.data.train.count.cpu()

    @cached_property
    def _validation_counts(self) -> Tensor:
        """[N]: validation samples per peer, on the CPU."""
        return self.split("validation").count.cpu()

    def counts_of(self, samples: LossSamples) -> Tensor:
        """Return the number of training or validation samples per peer: [N], on the CPU."""
        return self.counts if samples == "train" else self._validation_counts

    def split(self, samples: LossSamples) -> Split:
        """Return the training or the validation samples of all peers."""
        found = self.data.train if samples == "train" else self.data.validation
        if found is None:
            raise UserError("metric: losses on validation samples need them: set data.validation to at least 1")
        return found

    def lr_in(self, round: int, peers: Tensor) -> Tensor:
        """Return the learning rates of ``peers`` [P] in a round: [P, 1] float64."""
        if self.lr_by_peer is None:
            rates = torch.full((len(peers),), self.settings.lr, dtype=torch.float64, device=peers.device)
        else:
            rates = self.lr_by_peer[peers]
        return (rates * self.settings.lr_factor(round))[:, None]

    def epochs_of(self, peers: Tensor) -> int:
        """Return the epochs per round of ``peers`` [P] on the CPU, which all have the same number."""
        return self.settings.epochs if self.epochs_by_peer is None else int(self.epochs_by_peer[peers[0]])

    def phases(self, peers: Tensor) -> Iterator[tuple[range, Trains]]:
        """Yield the phases of a round of ``peers`` [P] on the CPU, who have the same epochs: epochs, what trains."""
        begin = 0
        for phase in self.objective.phases(self.epochs_of(peers)):
            yield range(begin, begin + phase.epochs), phase.trains
            begin += phase.epochs

    def epochs_in_round(self, peers: Tensor) -> int:
        """Return the epochs of all phases of a round of ``peers`` [P] on the CPU, who have the same epochs."""
        return sum(len(epochs) for epochs, _ in self.phases(peers))

    @cached_property
    def trains_parts(self) -> bool:
        """Whether some phase trains only the personal or only the shared layers."""
        return any(phase.trains != "all" for epochs in self._epochs for phase in self.objective.phases(epochs))

    def trains(self, what: Trains) -> list[Column]:
        """Return the columns that a phase trains."""
        return [
            c for c in self.layout.columns if c.trainable and what in ("all", "personal" if c.personal else "shared")
        ]

    @property
    def trained_weights(self) -> dict[str, Tensor]:
        """The trained parameters of the module, by name."""
        parameters = dict(self.module.named_parameters())
        return {column.name: parameters[column.name].detach() for column in self.trains("all")}

    def check_objective(self) -> None:
        """Raise a UserError if a phase of the objective trains nothing."""
        for epochs in self._epochs:
            check_phases(self.objective, epochs, bool(self.trains("personal")))

    @property
    def _epochs(self) -> set[int]:
        """The numbers of epochs that peers have."""
        return {self.settings.epochs} if self.epochs_by_peer is None else set(self.epochs_by_peer.tolist())

    def batch(self, samples: Tensor, keys: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return training samples by index [...], in the network's precision: x [..., *inputs], y [...].

        keys: [...] int64, from which the random numbers of the transform follow; None: there is no transform.
        """
        x = _rows(self.data.train.x, samples)
        if self.transform is not None and keys is not None:
            try:
                x = self.transform(x, keys)
            except UserError as error:
                raise self._named(error, samples, keys) from error.__cause__
        return self.cast(x), self.cast(_rows(self.data.train.y, samples))

    def _named(self, error: UserError, samples: Tensor, keys: Tensor) -> UserError:
        """Return an error of the transform that names the first peer whose samples it cannot transform."""
        train = self.data.train
        for mine, own in zip(samples.view(-1, samples.shape[-1]), keys.view(-1, keys.shape[-1]), strict=True):
            try:
                assert self.transform is not None
                self.transform(train.x[mine], own)
            except UserError as again:
                return UserError(f"{self.data.label(train.owner(int(mine[0])))}: {again}")
        return error  # it fails only on the samples of several peers together

    def cast(self, values: Tensor) -> Tensor:
        """Return floats in the network's precision; integers are returned unchanged."""
        return values.to(self.layout.dtype) if values.is_floating_point() else values

    def autocast(self) -> AbstractContextManager[object]:
        """Return a context in which the network computes in bfloat16, if ``precision`` says so."""
        if self.precision != "bf16":
            return nullcontext()
        return torch.autocast(self.ids.device.type, torch.bfloat16, cache_enabled=False)


def _rows(values: Tensor, which: Tensor) -> Tensor:
    """Return values[which], with whole rows copied at a time: values [n, ...], which [...] int64."""
    return values.index_select(0, which.reshape(-1)).view(*which.shape, *values.shape[1:])


class Engine(Protocol):
    """Trains and evaluates models, which are rows of the federation's matrix."""

    name: str
    task: Task  # with cached features, if there are any

    def train(self, rows: Tensor, kept: Kept, peers: Tensor, round: int) -> None:
        """Train ``peers`` [P] for one round, in place. rows: [N, D]; kept: [N, ...] each."""

    def predict(self, rows: Tensor, kept: Kept, x: Tensor) -> Tensor:
        """Return outputs [P, n, ...] of P models (rows [P, D]), each on its own inputs x [P, n, ...], in eval mode."""

    def cross_evaluate(
        self, rows: Tensor, kept: Kept, model: Tensor, data: Tensor, samples: LossSamples = "train"
    ) -> Tensor:
        """Return outputs [M, n, ...] of the models in rows ``model`` [M] on samples of the peers ``data`` [M].

        rows: [N, D]. A peer with fewer than n samples repeats its last one. Kept buffers and personal parameters are
        those of the peer in ``data``.
        """


@runtime_checkable
class Joinable(Engine, Protocol):
    """An engine that can train the peers of several runs in one computation."""

    def on(self, task: Task, chunk: int) -> Engine:
        """Return the same engine for another task with the same network."""
