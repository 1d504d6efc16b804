"""Which claims hold for our results, and for each that does not, which of four kinds it is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from homophily.papers import recipe as recipes
from homophily.papers.claims import cells_of, holds, within_spread
from homophily.papers.recipe import Claim, Recipe
from homophily.papers.tables import Result


class Kind(StrEnum):
    """What became of a claim."""

    HELD = "held"
    PRINT = "the paper contradicts itself"
    SPREAD = "within the spread of seeds"
    VARIANT = "holds under a variant"
    FAILED = "does not hold"
    OPEN = "not computed"


@dataclass(frozen=True)
class Verdict:
    """A claim, and whether it holds for our results. why: the place of a contradiction, or the variant."""

    text: str
    kind: Kind
    ours: bool
    why: str = ""

    @property
    def held(self) -> bool | None:
        """None: its cells were not computed."""
        return None if self.kind is Kind.OPEN else self.kind is Kind.HELD


@dataclass(frozen=True)
class _Cells:
    """The cells of a claim: their means over the seeds that all of them have, and the cells of each of these seeds."""

    means: dict[str, dict[str, float]]
    by_seed: list[dict[str, dict[str, float]]]


def verdicts(result: Result, variants: Sequence[Result] = ()) -> list[Verdict]:
    """Return the verdict on every claim; in the quick version, only on the claims marked quick.

    variants: stored results; those of variants of the same recipe count.
    """
    mine = [one for one in variants if one.name == result.name and one.variant is not None]
    mine = [one for one in mine if result.variant is None and one.quick == result.quick]
    return [_verdict(result, claim, mine) for claim in result.recipe.claims if claim.quick or not result.quick]


def _verdict(result: Result, claim: Claim, variants: Sequence[Result]) -> Verdict:
    cells = _cells(result, claim.check)
    held = holds(claim.check, cells.means)
    if held is not False:
        return Verdict(claim.text, Kind.OPEN if held is None else Kind.HELD, claim.ours)
    if not claim.ours and not result.quick and (where := contradiction(result.name, result.recipe, claim.check)):
        return Verdict(claim.text, Kind.PRINT, claim.ours, where)
    if within_spread(claim.check, cells.means, cells.by_seed):
        return Verdict(claim.text, Kind.SPREAD, claim.ours, f"{len(cells.by_seed)} seeds")
    for one in variants:
        if holds(claim.check, _cells(one, claim.check).means):
            return Verdict(claim.text, Kind.VARIANT, claim.ours, one.variant or "")
    return Verdict(claim.text, Kind.FAILED, claim.ours)


def _cells(result: Result, check: str) -> _Cells:
    asked = cells_of(check)
    cells = {
        (row, column): number
        for row, mine in result.cells.items()
        for column, number in mine.items()
        if ((row, column) in asked or (row, None) in asked) and number.values
    }
    seeds = sorted(set.intersection(*(set(number.values) for number in cells.values()))) if cells else []
    means: dict[str, dict[str, float]] = {}
    by_seed: list[dict[str, dict[str, float]]] = [{} for _ in seeds]
    for (row, column), number in cells.items():
        known = number.of_seeds(seeds).known
        if known:
            means.setdefault(row, {})[column] = sum(known) / len(known)
        for one, value in zip(by_seed, known, strict=False):
            one.setdefault(row, {})[column] = value
    return _Cells(means, by_seed)


def contradiction(name: str, recipe: Recipe, check: str) -> str:
    """Return where the paper's own printed numbers contradict a claim of the recipe ``name``; empty if they do not.

    The claim is evaluated on the printed numbers: as printed in its table, and with one of its cells as the paper
    prints the same quantity in another place.
    """
    printed = {
        row: {column: value if isinstance(value, float) else value[0] for column, value in mine.items()}
        for row, mine in recipe.printed.items()
    }
    if holds(check, printed) is False:
        return recipe.title.partition(":")[0]
    for row, column in sorted((row, column) for row, column in cells_of(check) if column in printed.get(row, {})):
        for value, where in _elsewhere(name, recipe, row, column).items():
            if holds(check, {**printed, row: {**printed[row], column: value}}) is False and holds(check, printed):
                label = f"{recipe.rows[row].label}, {recipe.columns[column].label}"
                return f"{label}: {printed[row][column]:g} here, {value:g} in {where}"
    return ""


def _elsewhere(name: str, recipe: Recipe, row: str, column: str) -> dict[float, str]:
    """The values that the paper prints for a cell, with their places: those of the list of contradictions, and those
    of cells of its tables that have the same config and score."""
    noted = {
        one.value: one.second.partition(":")[0]
        for one in recipes.contradictions().get(recipe.paper, [])
        if one.cell == f"{name}.{row}.{column}" and one.value is not None
    }
    return noted | _printed_by_config(recipe.paper).get(_key(recipe, row, column), {})


@cache
def _printed_by_config(paper: str) -> dict[str, dict[float, str]]:
    """The printed values of a paper's cells and their places, by config and score."""
    found: dict[str, dict[float, str]] = {}
    for name in recipes.names():
        recipe = recipes.load(name)
        for row, mine in recipe.printed.items() if recipe.paper == paper else ():
            for column, value in mine.items():
                place = f"{recipe.title.partition(':')[0]}, {recipe.rows[row].label}, {recipe.columns[column].label}"
                mean = value if isinstance(value, float) else value[0]
                found.setdefault(_key(recipe, row, column), {}).setdefault(mean, place)
    return found


def _key(recipe: Recipe, row: str, column: str) -> str:
    config = recipe.config(row, column, 0, quick=False).toml()
    return json.dumps([config, recipe.score_of(column)], sort_keys=True)


def tally(found: Sequence[Verdict]) -> str:
    """Return how many of the computed claims held, such as "7 of 9"; a dash if none was computed."""
    count = Counter(one.held for one in found)
    computed = count[True] + count[False]
    return f"{count[True]} of {computed}" if computed else "-"
