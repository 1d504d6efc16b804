"""Tables of our results beside the paper's: cells with their differences, and which claims held."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from homophily.atomic_io import read_json
from homophily.errors import UserError
from homophily.papers.claims import holds
from homophily.papers.recipe import Printed, Recipe, load
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
    ours: bool


@dataclass(frozen=True)
class Result:
    """A recipe and the numbers of its runs: what NAME.json stores, and all that a page is written from."""

    name: str
    recipe: Recipe
    quick: bool
    seeds: int
    cells: dict[str, dict[str, Number]]  # by row and column
    made: str  # machines, versions and seconds
    date: str
    missing: int  # runs

    @classmethod
    def of(cls, found: Reproduction) -> Result:
        """The result of the runs so far."""
        return cls(
            found.name, found.recipe, found.quick, found.seeds, numbers(found), _made_on(found), str(date.today()),
            len(found.missing()),
        )  # fmt: skip

    @classmethod
    def read(cls, path: Path) -> Result:
        """A stored result. Its values are those of the file; printed values and claims are the recipe's."""
        stored = read_json(path)
        try:
            recipe, quick = load(stored["name"]), stored["quick"]
            cells = {
                row: {
                    column: Number(cell["values"], cell["diverged"], *_printed(recipe, quick, row, column))
                    for column, cell in mine.items()
                }
                for row, mine in stored["cells"].items()
            }
            about = (stored["made"], stored["date"], stored["missing"])
            return cls(stored["name"], recipe, quick, stored["seeds"], cells, *about)
        except (KeyError, TypeError) as error:
            raise UserError(f"{path} is not a result of homophily reproduce: {error}") from None

    @property
    def title(self) -> str:
        """What its files are called: NAME, or NAME-quick."""
        return f"{self.name}-quick" if self.quick else self.name

    @property
    def columns(self) -> list[str]:
        return list(next(iter(self.cells.values())))


def numbers(found: Reproduction) -> dict[str, dict[str, Number]]:
    """Return all cells of the table by row and column."""
    return {row: {column: _number(found, row, column) for column in found.columns} for row in found.rows}


def _number(found: Reproduction, row: str, column: str) -> Number:
    results = [found.result(row, column, seed) for seed in range(found.seeds)]
    summaries = [result["summary"] for result in results if result is not None]
    values = [score_in(summary, found.recipe.score_of(column)) for summary in summaries]
    diverged = any(summary["diverged"] for summary in summaries)
    return Number(values, diverged, *_printed(found.recipe, found.quick, row, column))


def _printed(recipe: Recipe, quick: bool, row: str, column: str) -> tuple[float | None, float | None]:
    """The paper's mean and standard deviation. A quick version is a different experiment and has neither."""
    printed: Printed | None = None if quick else recipe.printed.get(row, {}).get(column)
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


def verdicts(result: Result) -> list[Verdict]:
    """Return the verdict on every claim; in the quick version, only on the claims marked quick."""
    means = {
        row: {column: number.mean for column, number in mine.items() if number.mean is not None}
        for row, mine in result.cells.items()
    }
    return [
        Verdict(claim.text, holds(claim.check, means), claim.ours)
        for claim in result.recipe.claims
        if claim.quick or not result.quick
    ]


def tally(found: Sequence[Verdict]) -> str:
    """Return how many of the computed claims held, such as "7 of 9"; a dash if none was computed."""
    count = Counter(one.held for one in found)
    computed = count[True] + count[False]
    return f"{count[True]} of {computed}" if computed else "-"


def beside_printed(cells: Mapping[str, Mapping[str, Number]]) -> bool:
    """Whether any cell has a printed number."""
    return any(cell.printed is not None for row in cells.values() for cell in row.values())


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


def as_json(result: Result) -> dict[str, Any]:
    """Return the result as NAME.json stores it."""
    return {
        "name": result.name,
        "title": result.recipe.title,
        "quick": result.quick,
        "unit": result.recipe.unit,
        "seeds": result.seeds,
        "cells": {
            row: {
                column: {
                    "values": number.values,
                    "diverged": number.diverged,
                    "mean": number.mean,
                    "std": number.deviation,
                    "printed": number.printed,
                    "printed_std": number.printed_deviation,
                    "difference": number.difference,
                }
                for column, number in mine.items()
            }
            for row, mine in result.cells.items()
        },
        "distances": distances(result.cells),
        "claims": [{"text": one.text, "held": one.held, "ours": one.ours} for one in verdicts(result)],
        "made": result.made,
        "date": result.date,
        "missing": result.missing,
    }
