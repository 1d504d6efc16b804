"""Tables of our results beside the paper's: cells by row and column, with their seeds and differences."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from homophily.atomic_io import read_json
from homophily.errors import UserError
from homophily.papers.editions import edition_of
from homophily.papers.recipe import Printed, Recipe, load
from homophily.papers.reproduce import Known, Made, Reproduction, file_name, run_name


@dataclass(frozen=True)
class Number:
    """A cell: our values by seed (None: unknown, as in a run that diverged), and the paper's value.

    All values are of one edition of the method, so that a mean never mixes two.
    """

    values: dict[int, float | None]
    diverged: bool  # whether peers of one of these runs have diverged
    printed: float | None
    printed_deviation: float | None
    edition: int = 1

    @property
    def known(self) -> list[float]:
        """The values, or an empty list if one is unknown: a mean must not leave out a diverged run."""
        known = [value for value in self.values.values() if value is not None]
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

    def of_seeds(self, seeds: Collection[int]) -> Number:
        """The same cell with the values of some seeds."""
        return replace(self, values={seed: value for seed, value in self.values.items() if seed in seeds})


@dataclass(frozen=True)
class Result:
    """A recipe and the numbers of its runs: what NAME.json stores, and all that a page is written from.

    made: where runs were executed, by their names.
    """

    name: str
    recipe: Recipe
    quick: bool
    cells: dict[str, dict[str, Number]]  # by row and column
    made: dict[str, Made] = field(default_factory=dict)
    variant: str | None = None

    @classmethod
    def of(cls, found: Reproduction, before: Result | None = None) -> Result:
        """The result of the runs so far. before: a stored result to which they are added."""
        old = {} if before is None else before.cells
        cells = {
            row: {column: _added(cell, old.get(row, {}).get(column)) for column, cell in mine.items()}
            for row, mine in numbers(found).items()
        }
        made = {} if before is None else before.made
        known = {name: found.known.made[name] for name in found.runs() if name in found.known.made}
        return cls(found.name, found.recipe, found.quick, cells, made | known | _made(found), found.variant)

    @classmethod
    def read(cls, path: Path) -> Result:
        """A stored result. Its values are those of the file; printed values and claims are the recipe's."""
        stored = read_json(path)
        try:
            recipe, quick = load(stored["name"]), stored["quick"]
            cells = {
                row: {
                    column: Number(
                        dict(zip(cell["seeds"], cell["values"], strict=True)),
                        cell["diverged"],
                        *_printed(recipe, quick, row, column),
                        cell["edition"],
                    )
                    for column, cell in mine.items()
                }
                for row, mine in stored["cells"].items()
            }
            made = {name: Made(**one) for name, one in stored["runs"].items()}
            return cls(stored["name"], recipe, quick, cells, made, stored["variant"])
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} is not a result of homophily reproduce: {error}") from None

    @property
    def title(self) -> str:
        """What its files are called."""
        return file_name(self.name, self.variant, self.quick)

    @property
    def columns(self) -> list[str]:
        return list(next(iter(self.cells.values())))

    @property
    def seeds(self) -> tuple[int, int]:
        """The least and the most seeds of a cell that has values."""
        counts = [len(cell.values) for mine in self.cells.values() for cell in mine.values() if cell.values]
        return (min(counts), max(counts)) if counts else (0, 0)

    @property
    def empty(self) -> int:
        """The number of cells that have no value yet, but for those that the recipe leaves out."""
        return sum(
            not cell.values and row not in self.recipe.left_out.get(column, [])
            for row, mine in self.cells.items()
            for column, cell in mine.items()
        )

    def method(self, row: str, column: str) -> str:
        """The name of a cell's method."""
        return self.recipe.config(row, column, 0, self.quick, self.variant).method.name

    def older(self) -> dict[str, list[tuple[str, str]]]:
        """The rows and columns of the cells of an older edition, by method."""
        found: dict[str, list[tuple[str, str]]] = {}
        for row, mine in self.cells.items():
            for column, cell in mine.items():
                if cell.values and cell.edition < edition_of(method := self.method(row, column)):
                    found.setdefault(method, []).append((row, column))
        return found


def known_scores(results: Iterable[Result]) -> Known:
    """Return what stored results hold of runs."""
    scores: dict[tuple[str, str], tuple[float | None, bool]] = {}
    made: dict[str, Made] = {}
    for result in results:
        made |= result.made
        for row, mine in result.cells.items():
            for column, cell in mine.items():
                if not cell.values:
                    continue
                config = result.recipe.config(row, column, 0, result.quick, result.variant)
                for seed, value in cell.values.items():
                    name = run_name(config.model_copy(update={"seed": seed}), cell.edition)
                    scores[name, result.recipe.score_of(column)] = (value, cell.diverged)
    return Known(scores, made)


def numbers(found: Reproduction) -> dict[str, dict[str, Number]]:
    """Return all cells of the table by row and column."""
    return {row: {column: _number(found, row, column) for column in found.columns} for row in found.rows}


def _number(found: Reproduction, row: str, column: str) -> Number:
    """A cell with the values of executed runs, and of those that stored results hold."""
    score, config = found.recipe.score_of(column), found.config(row, column, 0)
    values: dict[int, float | None] = {}
    diverged = False
    for seed in range(found.seeds) if row not in found.recipe.left_out.get(column, []) else ():
        run, key = found.result(row, column, seed), (run_name(config.model_copy(update={"seed": seed})), score)
        if run is not None:
            values[seed], lost = score_in(run["summary"], score), bool(run["summary"]["diverged"])
        elif key in found.known.scores:
            values[seed], lost = found.known.scores[key]
        else:
            continue
        diverged |= lost
    printed = _printed(found.recipe, found.quick, row, column)
    return Number(values, diverged, *printed, edition_of(config.method.name))


def _added(new: Number, old: Number | None) -> Number:
    """A cell with the new values beside the old ones of the same edition; the old cell if there is nothing new."""
    if old is None or not old.values or (new.values and new.edition != old.edition):
        return new
    if not new.values:
        return old
    values = dict(sorted((old.values | new.values).items()))
    return replace(new, values=values, diverged=new.diverged or old.diverged)


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
    plain, after = "mean absolute difference", "mean absolute difference after subtracting Oracle"
    found: dict[str, dict[str, float]] = {plain: {}, after: {}}
    for column in next(iter(cells.values())):
        off = [abs(mine[column].difference or 0.0) for mine in cells.values() if mine[column].difference is not None]
        gaps = [gap for row in cells if (gap := gap_to_oracle(cells, row, column)) is not None]
        if off:
            found[plain][column] = statistics.fmean(off)
        if gaps:
            found[after][column] = statistics.fmean(gaps)
    return {kind: mine for kind, mine in found.items() if mine}


def gap_to_oracle(cells: Mapping[str, Mapping[str, Number]], row: str, column: str) -> float | None:
    """Return how far a cell is from the paper's after subtracting the row Oracle, over the seeds that both have."""
    oracle = cells.get("oracle", {}).get(column)
    if oracle is None or row == "oracle":
        return None
    mine = cells[row][column]
    ours, reference = mine.of_seeds(oracle.values).difference, oracle.of_seeds(mine.values).difference
    return None if ours is None or reference is None else abs(ours - reference)


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


def _made(found: Reproduction) -> dict[str, Made]:
    """Return when and where the runs were executed, by their names."""
    return {
        name: Made(run["date"], f"{run['machine']}, torch {run['versions']['torch']}", run["summary"]["seconds"])
        for name, run in found.results().items()
    }
