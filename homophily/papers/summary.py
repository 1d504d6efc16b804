"""What all stored results say together: a table by paper, and one line for each table and figure."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from homophily.papers import recipe as recipes
from homophily.papers.tables import Result, tally, verdicts

PAPERS = {"panm": "PANM", "dpg": "DPG", "dac": "DAC", "similarity": "Similarity metrics"}


@dataclass(frozen=True)
class Distance:
    """How far accuracies are from the printed ones, in points: means over cells of absolute differences.

    to_oracle: after subtracting the row Oracle of the same column, which removes a common offset; None: no such row.
    """

    cells: int
    mean: float | None
    to_oracle: float | None


def distance(results: Iterable[Result]) -> Distance:
    """Over all cells with an accuracy and a printed number.

    A cell that stands in several tables counts once, as the one with the most seeds.
    """
    off: dict[str, tuple[float, float | None]] = {}
    for result in sorted(results, key=lambda result: result.seeds):
        for column in result.columns:
            score = result.recipe.score_of(column)
            if not score.startswith("accuracy"):
                continue
            oracle = result.cells["oracle"][column].difference if "oracle" in result.cells else None
            for row, mine in result.cells.items():
                number = mine[column]
                if number.difference is None:
                    continue
                config = result.recipe.config(row, column, 0, result.quick).toml()
                key = json.dumps([config, score, number.printed], sort_keys=True)
                gap = None if oracle is None or row == "oracle" else abs(number.difference - oracle)
                off[key] = (abs(number.difference), gap)
    gaps = [gap for _, gap in off.values() if gap is not None]
    mean = statistics.fmean(one for one, _ in off.values()) if off else None
    return Distance(len(off), mean, statistics.fmean(gaps) if gaps else None)


def by_paper(results: Sequence[Result]) -> str:
    """A Markdown table: for each paper what is done, the claims held, and the distance to the printed numbers."""
    full = [result for result in results if not result.quick]
    head = (
        "paper",
        "tables done",
        "figures done",
        "claims held, tables",
        "claims held, figures",
        "our own claims held",
    )
    lines = [[*head, "mean distance, points", "mean distance after subtracting Oracle", "cells compared"]]
    for paper, name in [*PAPERS.items(), (None, "all")]:
        mine = [result for result in full if paper in (None, result.recipe.paper)]
        kinds = [[one for one in mine if one.recipe.kind == kind] for kind in ("table", "figure")]
        of_all = [
            f"{sum(not one.missing for one in done)} of {_recipes(paper, kind)}"
            for kind, done in zip(("table", "figure"), kinds, strict=True)
        ]
        claims = [tally([v for one in done for v in verdicts(one) if not v.ours]) for done in kinds]
        ours = tally([v for one in mine for v in verdicts(one) if v.ours])
        far = distance(kinds[0])
        lines.append([name, *of_all, *claims, ours, _points(far.mean), _points(far.to_oracle), f"{far.cells}"])
    return _markdown(lines)


def by_result(results: Sequence[Result], kind: str, folder: str) -> str:
    """A Markdown table with a line for each table or figure. folder: where its page is, as a link says it."""
    lines = [["result", "seeds (the paper's)", "claims held", "mean distance, points"]]
    for result in results:
        if result.quick or result.recipe.kind != kind:
            continue
        link = f"[{result.recipe.title}]({folder}/{result.name}.md)"
        claims = tally([one for one in verdicts(result) if not one.ours])
        seeds = f"{result.seeds} ({result.recipe.seeds})"
        lines.append([link, seeds, claims, _points(distance([result]).mean)])
    return _markdown(lines)


def _recipes(paper: str | None, kind: str) -> int:
    """How many tables or figures of a paper, or of all, have a recipe."""
    loaded = map(recipes.load, recipes.names())
    return sum(one.kind == kind and paper in (None, one.paper) for one in loaded)


def _points(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(lines[0])
    return "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]])
