"""The centralised baselines: a server assigns its models to clients before training and averages them after it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from homophily.errors import UserError
from homophily.methods.base import methods


@dataclass(frozen=True)
class ServerMethod(ABC):
    """A server with ``count`` models; a ``fraction`` of the clients participates in each round."""

    fraction: Annotated[
        float, Field(description="participation: the share of the clients that train in a round; above 0, at most 1")
    ] = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise UserError(f"method.fraction = {self.fraction}: must be above 0 and at most 1")

    @property
    @abstractmethod
    def count(self) -> int:
        """The number of models of the server."""

    def assign(self, losses: Tensor) -> Tensor:
        """The model that each client takes [N] int64, by the loss of each model on its training data [N, models]."""
        return torch.where(losses.isfinite(), losses, torch.inf).argmin(1)

    def nominal(self, rounds: int, share: float = 1.0) -> float:
        """Models that a client receives and sends in ``rounds`` rounds: every model of the server, and its own back.

        share: the share of the clients that participates.
        """
        return rounds * share * (self.count + 1)


@methods("fedavg")
@dataclass(frozen=True)
class FedAvg(ServerMethod):
    """Centralised: a server averages all models, weighted by samples, and all clients restart from the average."""

    @property
    def count(self) -> int:
        return 1


_MOST_MODELS = 1000


@methods("ifca")
@dataclass(frozen=True)
class Ifca(ServerMethod):
    """Centralised: a server keeps several models; each client trains the one that fits its data best."""

    models: Annotated[int, Field(description="models of the server, from 1 to 1000")] = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.models <= _MOST_MODELS:
            raise UserError(f"method.models = {self.models}: must be from 1 to {_MOST_MODELS}")

    @property
    def count(self) -> int:
        return self.models
