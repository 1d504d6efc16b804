"""The centralised baselines: a server's models, assigned before training and averaged after it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from homophily.errors import UserError
from homophily.methods.base import methods


@dataclass(frozen=True)
class ServerMethod(ABC):
    """A server with ``count`` models; ``fraction`` of the clients take part in a round."""

    fraction: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise UserError(f"method.fraction = {self.fraction}: must be above 0 and at most 1")

    @property
    @abstractmethod
    def count(self) -> int:
        """How many models the server has."""

    def assign(self, losses: Tensor) -> Tensor:
        """Which model each client takes, from each model's loss on its training data [N, models]: [N] int64."""
        return torch.where(losses.isfinite(), losses, torch.inf).argmin(1)

    def nominal(self, rounds: int, share: float = 1.0) -> float:
        """Models a client receives and sends over a run: every server model, and its own. share: who takes part."""
        return rounds * share * (self.count + 1)


@methods("fedavg")
@dataclass(frozen=True)
class FedAvg(ServerMethod):
    """Centralised: a server averages all models by their number of samples, everyone restarts from the average."""

    @property
    def count(self) -> int:
        return 1


_MOST_MODELS = 1000


@methods("ifca")
@dataclass(frozen=True)
class Ifca(ServerMethod):
    """Centralised: a server keeps several models; each client trains the one that fits its data best."""

    models: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.models <= _MOST_MODELS:
            raise UserError(f"method.models = {self.models}: must be from 1 to {_MOST_MODELS}")

    @property
    def count(self) -> int:
        return self.models
