"""Sparklines: scores by round in a line of text, on one scale for all methods."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from homophily.runs.comparison import Row
from homophily.runs.statistics import mean_by_round

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH = 16  # characters


def sparklines(rows: Sequence[Row], field: str) -> list[str]:
    """For each row, the mean over seeds of a field by round; rounds without a score in some seed are left out."""
    curves = [_shortened(list(mean_by_round([run.metrics() for run in row.runs], field).values())) for row in rows]
    known = [value for curve in curves for value in curve]
    return [sparkline(curve, min(known), max(known)) if known else "" for curve in curves]


def sparkline(values: Sequence[float], low: float, high: float) -> str:
    """A block for each value; its height shows where the value lies between ``low`` and ``high``."""
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round(top * (value - low) / (high - low)) if high > low else top] for value in values)


def _shortened(values: Sequence[float]) -> list[float]:
    """At most as many values as a line has room for: means of consecutive ones."""
    parts = min(_WIDTH, len(values))
    ends = [len(values) * i // parts for i in range(parts + 1)] if parts else []
    return [fmean(values[start:end]) for start, end in pairwise(ends)]
