"""What an exchange asks of the models in a round: how alike some are, and merges.

An exchange says what it wants and goes on with the answer, so that one run's wishes can be answered alone and those
of several runs that are played side by side together.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from homophily.federation.merging import Gathering, Merge
from homophily.federation.rows import Federation
from homophily.simulation.pairwise import Measurer, Models


@dataclass(frozen=True)
class Comparison:
    """How alike are ``me`` and ``you``, pairs of ids [M]? Answer: [M] float64."""

    measurer: Measurer
    models: Models
    me: Tensor
    you: Tensor

    def alone(self) -> Tensor:
        return self.measurer.similarities(self.models, self.me, self.you)


@dataclass(frozen=True)
class Merging:
    """Merge, but for those who are sick [N] (maybe still being found out). Answer: whose models were, [P, K] bool."""

    federation: Federation
    gathering: Gathering
    how: Merge
    sick: Tensor

    def alone(self) -> Tensor:
        return self.federation.merge(self.gathering.without(self.sick.to(self.gathering.ids.device)), self.how)


Steps = Generator[Comparison | Merging, Tensor, dict[str, Any]]
"""An exchange after training, wish by wish; in the end the round's line of metrics."""


def alone(steps: Steps) -> dict[str, Any]:
    """One run's exchange to its end."""
    try:
        wish = next(steps)
        while True:
            wish = steps.send(wish.alone())
    except StopIteration as end:
        line: dict[str, Any] = end.value
        return line
