"""The figure of a sweep as plain data: the score of each method against each swept key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from homophily.runs.comparison import Comparison, Row, short_names
from homophily.runs.statistics import averaged

_WIDE = 50  # values that differ by more than this factor are drawn on a logarithmic axis


@dataclass(frozen=True)
class Curve:
    """The scores of a method, and how they vary over seeds. A method without the key has one score and no values."""

    name: str  # the method, and its values of the other swept keys
    values: list[Any]  # of the key, in order; empty: the method does not have the key
    mean: list[float | None]  # over seeds; None: not known, because models have diverged
    std: list[float | None]  # over seeds; None: a single seed


@dataclass(frozen=True)
class Panel:
    """The scores against one key."""

    key: str
    values: list[Any]  # of all curves, in order
    scale: str  # "linear", "log" or "names"
    score: str
    higher_is_better: bool
    curves: list[Curve]


def panels(comparison: Comparison) -> list[Panel]:
    """A panel for each swept key of which the finished runs have several values."""
    found = [_panel(comparison, key) for key in comparison.swept] if comparison.rows else []
    return [panel for panel in found if len(panel.values) > 1]


def _panel(comparison: Comparison, key: str) -> Panel:
    short, rows = short_names(comparison.swept), comparison.rows
    curves: dict[str, list[Row]] = {}
    for row in rows:
        others = [f"{short[other]}={value}" for other, value in row.swept.items() if other != key]
        curves.setdefault(" ".join([row.method, *others]), []).append(row)
    values: list[Any] = []
    for row in rows:
        if key in row.swept and row.swept[key] not in values:
            values.append(row.swept[key])
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    values = sorted(values) if numbers else values
    for some in curves.values():
        some.sort(key=lambda row: values.index(row.swept[key]) if key in row.swept else 0)
    wide = numbers and values and min(values) > 0 and max(values) >= _WIDE * min(values)
    headline = rows[0].runs[0].headline
    return Panel(
        key,
        values,
        "names" if not numbers else "log" if wide else "linear",
        headline.name,
        headline.better == "higher",
        [_curve(name, some, key, headline.name) for name, some in curves.items()],
    )


def _curve(name: str, rows: list[Row], key: str, score: str) -> Curve:
    cells = [averaged([run.summary for run in row.runs])[score] or {} for row in rows]
    values = [row.swept[key] for row in rows if key in row.swept]
    return Curve(name, values, [cell.get("mean") for cell in cells], [cell.get("std") for cell in cells])
