"""Local objectives: what a peer minimises beside the loss of its batches, and which layers train in which epochs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NoReturn, get_args

import torch
from pydantic import Field
from torch import Tensor

from homophily.errors import UserError
from homophily.plugins.registry import Registry
from homophily.training.batching import over_peers

Trains = Literal["all", "personal", "shared"]


@dataclass(frozen=True)
class Phase:
    """A part of a round's local training. The optimizer's state is reset at the start of every phase."""

    epochs: int
    trains: Trains = "all"  # which trained layers change: all, the personal ones or the shared ones


class Objective:
    """The loss alone. A subclass can add a penalty to it, and divide a round into phases.

    The parameters of the constructor are the config keys of ``training.objective``.
    """

    uses_reference: ClassVar[bool] = False
    """Whether ``penalty`` receives reference weights: the peer's model after the last merge."""

    def penalty(self, weights: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> Tensor | float:
        """Return the number that is added to the mean loss of a batch, for one peer.

        weights: the trained parameters, by name; reference: the same as they were at the start of this round's
        training, or empty if ``uses_reference`` is False. Use torch functions: many peers are computed at once.
        """
        return 0.0

    def phases(self, epochs: int) -> Sequence[Phase]:
        """Return the parts of a round. epochs: ``training.epochs`` of the peer."""
        return [Phase(epochs)]


objectives: Registry[type[Objective]] = Registry("objective")
objectives("loss")(Objective)
PLAIN = Objective()


@objectives("fedprox")
@dataclass(frozen=True)
class FedProx(Objective):
    """FedProx: a penalty pulls the weights towards the merged model."""

    mu: Annotated[
        float,
        Field(
            ge=0,
            allow_inf_nan=False,
            description="strength of the penalty, mu / 2 times the squared distance to the model after the last merge",
        ),
    ] = 0.01

    uses_reference: ClassVar[bool] = True

    def penalty(self, weights: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> Tensor | float:
        distances = [(value - reference[name]).square().sum() for name, value in weights.items()]
        return self.mu / 2 * torch.stack(distances).sum()


@objectives("fedrep")
@dataclass(frozen=True)
class FedRep(Objective):
    """FedRep: the personal layers train first, then the shared ones."""

    head_epochs: Annotated[
        int | None,
        Field(ge=1, description="epochs of the personal layers, with the others fixed. Left out: `training.epochs`"),
    ] = None
    body_epochs: Annotated[
        int, Field(ge=1, description="epochs of the shared layers after that, with the personal ones fixed")
    ] = 1

    def phases(self, epochs: int) -> Sequence[Phase]:
        return [Phase(self.head_epochs or epochs, "personal"), Phase(self.body_epochs, "shared")]


def check_phases(objective: Objective, epochs: int, personal: bool) -> None:
    """Raise a UserError unless every phase trains something. personal: whether trained layers are personal.

    Some are always shared (``Layout.of``).
    """
    phases = list(objective.phases(epochs))
    if not phases or not all(isinstance(phase, Phase) and _possible(phase) for phase in phases):
        wanted = (
            "phases must return at least one homophily.Phase, with at least 1 epoch each, that trains 'all', "
            "'personal' or 'shared'"
        )
        raise UserError(f"training.objective: {wanted}, not {phases}")
    if not personal and any(phase.trains == "personal" for phase in phases):
        raise UserError("training.objective: it trains personal layers, and model.personal names none that is trained")


def _possible(phase: Phase) -> bool:
    return type(phase.epochs) is int and phase.epochs > 0 and phase.trains in get_args(Trains)


class _NoReference(Mapping[str, Tensor]):
    """The reference weights of an objective that does not use them: empty, and an error if they are read."""

    def __init__(self, objective: Objective) -> None:
        self._name = type(objective).__name__

    def _refuse(self) -> NoReturn:
        raise UserError(
            f"training.objective: the penalty of {self._name} reads the reference weights, but its uses_reference is "
            "False: set uses_reference = True in the class"
        )

    def __getitem__(self, name: str) -> Tensor:
        self._refuse()

    def __iter__(self) -> Iterator[str]:
        self._refuse()

    def __len__(self) -> int:
        return 0


def vmap_obstacle(objective: Objective, weights: Mapping[str, Tensor]) -> str | None:
    """Return why torch.vmap cannot compute the penalty of many peers at once; None if it can.

    weights: the trained parameters of one peer. Raises a UserError if the penalty is not one number.
    """
    try:
        found = objective.penalty(weights, weights if objective.uses_reference else _NoReference(objective))
    except UserError:
        raise
    except Exception as error:  # a user's objective may raise anything
        what = f"{type(error).__name__}: {error}"
        raise UserError(f"training.objective: the penalty of {type(objective).__name__} fails: {what}") from error
    if not isinstance(found, int | float) and not (isinstance(found, Tensor) and found.dim() == 0):
        shape = f"a tensor {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise UserError(f"training.objective: its penalty must be one number, not {shape}")
    twice = {name: torch.stack([value, value]) for name, value in weights.items()}
    try:
        over_peers(
            lambda weights, reference: torch.as_tensor(objective.penalty(weights, reference)),
            twice,
            twice if objective.uses_reference else {},
        )
    except Exception as error:  # whatever fails under vmap, the one-by-one engine can still train it
        return f"training.objective: torch.vmap cannot run its penalty: {str(error).splitlines()[0]}"
    return None
