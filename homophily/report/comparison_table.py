"""Console output of a comparison: its table, the score of each method by round as a sparkline, and notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from homophily.report.console import DIVERGED, all_scored, number, percent
from homophily.report.sparklines import sparklines
from homophily.report.tables import fits, print_table
from homophily.runs.comparison import Comparison, Row, short_names
from homophily.runs.headline import Headline

_FAIR = {"worst_tenth": "worst tenth", "std_over_peers": "std over peers"}
_LAST_COLUMNS = ("same-cluster merges", "models sent")
_BY_ROUND = "by round"


def comparison(result: Comparison, fair: bool = False, picture: Path | None = None) -> None:
    """Print all methods as one table, mean ± standard deviation over seeds.

    fair: with the worst tenth of the peers; picture: the figure of a sweep, if there is one. On a terminal, the scores
    by round are the last column if there is room, else they are printed below.
    """
    console, rows = Console(), result.rows
    if rows:
        _print_rows(console, result, fair)
    notes = [note for method in result.methods for note in _notes([row for row in rows if row.method == method])]
    notes += [f"{name} is left out: {why}" for name, why in result.left_out.items()]
    notes += [f"{path.name} has not finished" for path in result.unfinished]
    notes += _others(result)
    for note in notes:
        console.print(f"note: {escape(note)}", soft_wrap=True, highlight=False)
    console.print(f"run folder: {escape(str(result.path))}", soft_wrap=True, highlight=False)
    if picture is not None:
        console.print(f"figure: {escape(str(picture))}", soft_wrap=True, highlight=False)


def _print_rows(console: Console, result: Comparison, fair: bool) -> None:
    rows, headline = result.rows, result.rows[0].runs[0].headline
    headings, lines = _table(result, fair)
    seeds = sorted({len(row.runs) for row in rows})
    shown = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
    title = f"{headline.label}, {shown} seed{'s' * (seeds[-1] > 1)}"
    curves = sparklines(rows, headline.name) if console.is_terminal else []
    wide = [[*line, curve] for line, curve in zip(lines, curves, strict=False)]
    if any(curves) and fits(console, [*headings, _BY_ROUND], wide):
        print_table(console, [*headings, _BY_ROUND], wide, title=title)
        return
    print_table(console, headings, lines, title=title)
    if any(curves):
        names = [[row.name, curve] for row, curve in zip(rows, curves, strict=True)]
        print_table(console, ["method", f"{headline.name} {_BY_ROUND}"], names)


def _table(result: Comparison, fair: bool) -> tuple[list[str], list[list[str]]]:
    """The headings and cells of a comparison's table."""
    table, rows = result.table(fair), result.rows
    headline = rows[0].runs[0].headline
    clusters = list(table[rows[0].name][f"{headline.name}_by_cluster"])
    several = clusters if len(clusters) > 1 else []
    uneven = len({len(row.runs) for row in rows}) > 1
    lines = [_line(row, table[row.name], result.swept, uneven, several, fair, headline) for row in rows]
    swept = list(short_names(result.swept).values())
    counted, fairness = ["seeds"] * uneven, list(_FAIR.values()) if fair else []
    return ["method", *swept, *counted, *map(str, several), "mean", *fairness, *_LAST_COLUMNS], lines


def _line(
    row: Row,
    cells: Mapping[str, Any],
    swept: Sequence[str],
    uneven: bool,
    clusters: Sequence[str],
    fair: bool,
    headline: Headline,
) -> list[str]:
    by_cluster = cells.get(f"{headline.name}_by_cluster", {})
    mean = _mean(cells.get(headline.name), headline) if all_scored(row.runs) else DIVERGED
    same, sent = cells["same_cluster_merges"], cells["models_sent_per_peer"]
    return [
        row.method,
        *(str(row.swept.get(key, "-")) for key in swept),
        *([str(len(row.runs))] if uneven else []),
        *(headline.text((by_cluster.get(name) or {}).get("mean")) for name in clusters),
        mean,
        *(headline.text((cells[key] or {}).get("mean")) for key in (_FAIR if fair else ())),
        percent(same and same["mean"]),
        number(sent["mean"], 0),
    ]


def _mean(cell: dict[str, float] | None, headline: Headline) -> str:
    if cell is None:
        return "-"
    return headline.text(cell["mean"]) + (f" ± {headline.text(cell['std'])}" if "std" in cell else "")


def _others(result: Comparison) -> list[str]:
    """A note on the runs of the folder that this table leaves out."""
    shown = {run.path for row in result.rows for run in row.runs}
    every = [(row.name, run) for row in Comparison(result.path).rows for run in row.runs]
    rows = [(name, run.config.seed) for name, run in every if run.path not in shown]
    if not rows:
        return []
    names, seeds = (", ".join(map(str, dict.fromkeys(column))) for column in zip(*rows, strict=True))
    more = f"{len(rows)} more run{'s' * (len(rows) > 1)} ({names}; seed{'s' * (',' in seeds)} {seeds})"
    return [f"the folder has {more}; all are shown by: homophily compare {result.path}"]


def _notes(rows: Sequence[Row]) -> list[str]:
    """The notes of a method's runs: first those of single runs, then of all runs with a seed, then of all runs."""
    found = {(row.name, run.config.seed): list(run.summary["notes"]) for row in rows for run in row.runs}
    every = list(dict.fromkeys(note for notes in found.values() for note in notes))
    of_all = [note for note in every if all(note in notes for notes in found.values())]
    single, of_seeds = [], []
    for seed in dict.fromkeys(seed for _, seed in found):
        here = {name: notes for (name, other), notes in found.items() if other == seed}
        for note in (note for note in every if note not in of_all):
            names = [name for name, notes in here.items() if note in notes]
            if len(names) == len(here):
                of_seeds.append(f"{rows[0].method}, seed {seed}: {note}")
            else:
                single += [f"{name}, seed {seed}: {note}" for name in names]
    return [*single, *of_seeds, *(f"{rows[0].method}: {note}" for note in of_all)]
