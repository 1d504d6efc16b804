"""What all stored results say together: a table by paper, and one line for each table and figure."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from homophily.papers import recipe as recipes
from homophily.papers.editions import EDITIONS
from homophily.papers.recipe import PAPERS
from homophily.papers.reproduce import Reproduction
from homophily.papers.tables import Result, gap_to_oracle, known_scores
from homophily.papers.verdicts import Kind, Verdict, tally, verdicts

_EXPLAINED = (Kind.HELD, Kind.PRINT, Kind.VARIANT)


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
    for result in sorted(results, key=lambda result: result.seeds[1]):
        for column in result.columns:
            score = result.recipe.score_of(column)
            if not score.startswith("accuracy"):
                continue
            for row, mine in result.cells.items():
                number = mine[column]
                if number.difference is None:
                    continue
                config = result.recipe.config(row, column, 0, result.quick, result.variant).toml()
                key = json.dumps([config, score, number.printed], sort_keys=True)
                off[key] = (abs(number.difference), gap_to_oracle(result.cells, row, column))
    gaps = [gap for _, gap in off.values() if gap is not None]
    mean = statistics.fmean(one for one, _ in off.values()) if off else None
    return Distance(len(off), mean, statistics.fmean(gaps) if gaps else None)


def by_paper(results: Sequence[Result]) -> str:
    """A Markdown table: for each paper what is done, the claims held, and the distance to the printed numbers."""
    full = _main(results)
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
            f"{sum(not one.empty for one in done)} of {_recipes(paper, kind)}"
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
    for result in _main(results):
        if result.recipe.kind != kind:
            continue
        link = f"[{result.recipe.title}]({folder}/{result.name}.md)"
        claims = tally([one for one in verdicts(result) if not one.ours])
        least, most = result.seeds
        seeds = f"{most if least == most else f'{least} to {most}'} ({result.recipe.seeds})"
        lines.append([link, seeds, claims, _points(distance([result]).mean)])
    return _markdown(lines)


def by_kind(results: Sequence[Result]) -> str:
    """A Markdown table: for each paper how many computed claims hold, and how many of the others are of each kind."""
    kinds = [kind for kind in Kind if kind is not Kind.OPEN]
    lines = [["paper", "claims computed", *kinds, "held, contradicted in print or held under a variant"]]
    for paper, name in [*PAPERS.items(), (None, "all")]:
        found = [
            one
            for result in _main(results)
            if paper in (None, result.recipe.paper)
            for one in claims_of(result, results)
            if one.kind is not Kind.OPEN
        ]
        explained = sum(one.kind in _EXPLAINED for one in found)
        share = f"{100 * explained / len(found):.0f} %" if found else "-"
        lines.append([name, f"{len(found)}", *(f"{sum(one.kind is kind for one in found)}" for kind in kinds), share])
    return _markdown(lines)


def claims_of(result: Result, results: Sequence[Result]) -> list[Verdict]:
    """The verdicts on the paper's own claims. results: all stored ones, among them those of variants."""
    return [one for one in verdicts(result, results) if not one.ours]


def by_variant(results: Sequence[Result]) -> str:
    """A Markdown table of the variants: what they choose, why, and what holds under them."""
    lines = [["paper", "variant", "choice", "reason", "fixed on", "results", "claims held under it"]]
    for paper, named in recipes.variants().items():
        for name, variant in named.items():
            mine = [one for one in results if one.recipe.paper == paper and one.variant == name and not one.quick]
            held = tally([verdict for one in mine for verdict in claims_of(one, ())])
            done = ", ".join(one.name for one in mine) or "not run yet"
            lines.append([PAPERS[paper], f"`{name}`", variant.choice, variant.reason, variant.date, done, held])
    return _markdown(lines)


def contradictions() -> str:
    """A Markdown table of the places where a paper contradicts itself."""
    lines = [["paper", "one place", "another place"]]
    for paper, found in recipes.contradictions().items():
        lines += [[PAPERS[paper], one.first, one.second] for one in found]
    return _markdown(lines)


def not_held(results: Sequence[Result], folder: str) -> str:
    """A Markdown table of the papers' claims that do not hold, with their verdicts."""
    lines = [["result", "claim", "verdict"]]
    for result in _main(results):
        place = f"[{result.recipe.title.partition(':')[0]}]({folder}/{result.name}.md)"
        for one in claims_of(result, results):
            if one.kind not in (Kind.HELD, Kind.OPEN):
                lines.append([place, one.text, one.kind.value + (f": {one.why}" if one.why else "")])
    return _markdown(lines)


def left(results: Sequence[Result]) -> str:
    """A Markdown table of the runs that stored results lack at full size, with the command that executes them."""
    known, lines = known_scores(results), [["command", "runs left"]]
    for name in recipes.names():
        found = Reproduction.of(name, Path(), quick=False, seeds=None, known=known)
        if runs := len(found.unknown()):
            lines.append([f"`homophily reproduce {name} --add`", f"{runs} of {len(found.runs())}"])
    return _markdown(lines)


def older(results: Sequence[Result]) -> str:
    """A Markdown table of the rows that are older than the present edition of their method; empty if there are none."""
    lines = [["method", "results with rows of an older edition", "change since then", "changed on"]]
    for method, edition in EDITIONS.items():
        names = [result.name for result in _main(results) if method in result.older()]
        if names:
            lines.append([method, ", ".join(names), edition.change, edition.date])
    return _markdown(lines) if len(lines) > 1 else "No stored row is older than the code."


def _main(results: Sequence[Result]) -> list[Result]:
    """The results of the recipes as they are, at full size."""
    return [result for result in results if not result.quick and result.variant is None]


def _recipes(paper: str | None, kind: str) -> int:
    """How many tables or figures of a paper, or of all, have a recipe."""
    loaded = map(recipes.load, recipes.names())
    return sum(one.kind == kind and paper in (None, one.paper) for one in loaded)


def _points(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(lines[0])
    return "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]])
