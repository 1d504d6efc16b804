"""How a run's headline metric is read: its name, its heading in tables, and which of two values is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Better = Literal["higher", "lower"]


@dataclass(frozen=True)
class Headline:
    """The metric that leads a run's results."""

    name: str  # of its field in the run's files
    label: str  # heading in tables
    better: Better
    percent: bool = False

    @classmethod
    def read(cls, about: Mapping[str, Any], summary: Mapping[str, Any]) -> Headline:
        """The headline of a run, by its ``run.json``; older folders have accuracy or the mean squared error."""
        if "headline" in about:
            return cls(**about["headline"])
        return MSE if "mse" in summary else ACCURACY

    def text(self, value: float | None) -> str:
        """A value for a table: percentages with one decimal, other numbers with four significant digits."""
        if value is None:
            return "-"
        return f"{value:.1f}" if self.percent else f"{value:#.4g}".rstrip(".")

    def worse(self, value: float) -> float:
        """A number that is lower for a better value."""
        return value if self.better == "lower" else -value


ACCURACY = Headline("accuracy", "accuracy, %", "higher", percent=True)
MSE = Headline("mse", "mean squared error", "lower")
