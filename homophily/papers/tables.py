"""Tables of our results beside the paper's: cells with their differences, and which claims held."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from homophily.atomic_io import write_json, write_text, writing
from homophily.papers.claims import holds
from homophily.papers.recipe import Printed
from homophily.papers.reproduce import Reproduction


@dataclass(frozen=True)
class Number:
    """A cell: our values, one per seed (None: unknown, as in a run that diverged), and the paper's value."""

    values: list[float | None]
    diverged: bool  # whether peers of one of these runs have diverged
    printed: float | None
    printed_deviation: float | None

    @property
    def known(self) -> list[float]:
        """The values, or an empty list if one is unknown: a mean must not leave out a diverged run."""
        known = [value for value in self.values if value is not None]
        return known if len(known) == len(self.values) else []

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.known) if self.known else None

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.known) if len(self.known) > 1 else None

    @property
    def difference(self) -> float | None:
        return None if self.mean is None or self.printed is None else self.mean - self.printed


@dataclass(frozen=True)
class Verdict:
    """A claim, and whether it holds for our results; None: its cells were not computed."""

    text: str
    held: bool | None


def numbers(found: Reproduction) -> dict[str, dict[str, Number]]:
    """Return all cells of the table by row and column."""
    return {row: {column: _number(found, row, column) for column in found.columns} for row in found.rows}


def _number(found: Reproduction, row: str, column: str) -> Number:
    results = [found.result(row, column, seed) for seed in range(found.seeds)]
    summaries = [result["summary"] for result in results if result is not None]
    values = [score_in(summary, found.recipe.score_of(column)) for summary in summaries]
    diverged = any(summary["diverged"] for summary in summaries)
    # A quick version is a different experiment, so it is not compared with the paper's values.
    mean, deviation = (None, None) if found.quick else _split(found.recipe.printed.get(row, {}).get(column))
    return Number(values, diverged, mean, deviation)


def _split(printed: Printed | None) -> tuple[float | None, float | None]:
    if printed is None or isinstance(printed, float):
        return printed, None
    return printed


def score_in(summary: dict[str, Any], score: str) -> float | None:
    """Return a value of a summary by its key, with dots for nested keys; None if it is missing."""
    value: Any = summary
    for part in score.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return None if value is None else float(value)


def distances(cells: dict[str, dict[str, Number]]) -> dict[str, dict[str, float]]:
    """Return the mean absolute difference between our cells and the paper's, by column.

    Also the same after subtracting Oracle's value from all cells: if a paper's network is unknown, all of its values
    may be off by the same amount.
    """
    found: dict[str, dict[str, float]] = {"mean absolute difference": {}, "the same of distances to Oracle": {}}
    for column in next(iter(cells.values())):
        off = {row: mine[column].difference for row, mine in cells.items()}
        oracle = off.pop("oracle", None)
        others = [value for value in off.values() if value is not None]
        all_of_them = others if oracle is None else [*others, oracle]
        if all_of_them:
            found["mean absolute difference"][column] = statistics.fmean(map(abs, all_of_them))
        if others and oracle is not None:
            found["the same of distances to Oracle"][column] = statistics.fmean(abs(o - oracle) for o in others)
    return {kind: mine for kind, mine in found.items() if mine}


def verdicts(found: Reproduction, cells: dict[str, dict[str, Number]]) -> list[Verdict]:
    """Return the verdict on every claim; in the quick version, only on the claims marked quick."""
    means = {
        row: {column: number.mean for column, number in mine.items() if number.mean is not None}
        for row, mine in cells.items()
    }
    return [
        Verdict(claim.text, holds(claim.check, means))
        for claim in found.recipe.claims
        if claim.quick or not found.quick
    ]


def markdown(found: Reproduction) -> str:
    """Return the table as a Markdown page."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Reproduction) -> Iterator[str]:
    recipe, cells = found.recipe, numbers(found)
    command = f"homophily reproduce {found.name}" + (" --quick" if found.quick else "") + f" --seeds {found.seeds}"
    yield f"# {recipe.title}"
    yield ""
    if found.quick:
        yield "**A quick, small version, not the paper's: other peers, rounds and data.**"
        yield ""
    yield f"{recipe.unit}: ours{_BESIDE if beside_printed(cells) else ''}. `{command}`"
    yield f"{date.today()}, {_made_on(found)}."
    yield ""
    labels = [recipe.columns[column].label for column in found.columns]
    yield f"| | {' | '.join(labels)} |"
    yield f"| --- |{' --- |' * len(labels)}"
    for row in found.rows:
        label = recipe.rows[row].label + (" (not the paper's)" if recipe.rows[row].ours else "")
        yield f"| {label} | {' | '.join(cell_text(cells[row][column]) for column in found.columns)} |"
    for kind, off in distances(cells).items():
        yield f"| *{kind}* | {' | '.join(f'{off[c]:.2f}' if c in off else '' for c in found.columns)} |"
    verdict = verdicts(found, cells)
    if verdict:
        yield ""
        yield from (f"- {_HELD[one.held]}: {one.text}." for one in verdict)
    if recipe.choices:
        yield ""
        yield "What the paper leaves open:"
        yield ""
        yield from (f"- {name}: {why}" for name, why in recipe.choices.items())


def beside_printed(cells: Mapping[str, Mapping[str, Number]]) -> bool:
    """Whether any cell has a printed number."""
    return any(cell.printed is not None for row in cells.values() for cell in row.values())


_BESIDE = ", in brackets the paper's, then the difference"
_HELD = {True: "held", False: "**not held**", None: "not computed"}


def cell_text(number: Number) -> str:
    """Return a cell as text: ours (the paper's) difference, such as "84.3 ± 0.2 (83.9 ± 0.3) +0.4"."""
    missing = "diverged" if number.diverged else "-"
    ours = missing if number.mean is None else f"{number.mean:.2f}" + _plus_minus(number.deviation)
    if number.printed is None:
        return ours
    paper = f" ({number.printed:.2f}{_plus_minus(number.printed_deviation)})"
    return ours + paper + ("" if number.difference is None else f" {number.difference:+.2f}")


def _plus_minus(deviation: float | None) -> str:
    return "" if deviation is None else f" ± {deviation:.2f}"


def _made_on(found: Reproduction) -> str:
    """Return the machines and torch versions of the results, and how long the runs took."""
    results = found.results()
    machines = dict.fromkeys(f"{r['machine']}, torch {r['versions']['torch']}" for r in results)
    seconds = sum(r["summary"]["seconds"] for r in results)
    return f"{'; '.join(machines) or 'no run finished yet'}; {seconds:,.0f} s in rounds"


def write(found: Reproduction, folder: Path) -> list[Path]:
    """Write NAME.md and NAME.json (or NAME-quick) and return their paths."""
    paths = [folder / f"{found.title}{ending}" for ending in (".md", ".json")]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_text(paths[0], markdown(found))
    write_json(paths[1], as_json(found))
    return paths


def as_json(found: Reproduction) -> dict[str, Any]:
    """Return the table, distances and claims as a JSON object."""
    cells = numbers(found)
    return {
        "name": found.name,
        "title": found.recipe.title,
        "quick": found.quick,
        "unit": found.recipe.unit,
        "seeds": found.seeds,
        "cells": {
            row: {
                column: {
                    "values": number.values,
                    "mean": number.mean,
                    "std": number.deviation,
                    "printed": number.printed,
                    "difference": number.difference,
                }
                for column, number in mine.items()
            }
            for row, mine in cells.items()
        },
        "distances": distances(cells),
        "claims": [{"text": one.text, "held": one.held} for one in verdicts(found, cells)],
        "made": _made_on(found),
        "missing": len(found.missing()),
    }
