"""What a person sees of a reproduction: one bar over all its runs, then the table and the claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from homophily.api import Progress as OnRound
from homophily.config import Config
from homophily.papers.reproduce import Reproduction
from homophily.papers.tables import beside_printed, numbers, told, verdicts

_Cells = tuple[str, list[str]]  # a column: its label and its cells
_BETWEEN = 3  # spaces from a column to the next
_LABEL = 14  # letters of a label in a line, where its column could be narrower


@contextmanager
def playing(wanted: Sequence[Config]) -> Iterator[Callable[[Config], OnRound] | None]:
    """A bar over the rounds of all runs, with the time that is left."""
    console = Console(stderr=True)
    if not console.is_terminal or not wanted:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"{len(wanted)} runs", total=sum(config.rounds for config in wanted))

        def start(config: Config) -> OnRound:
            def on_round(line: dict[str, Any]) -> None:
                bar.update(task, advance=1, description=f"{len(wanted)} runs: {config.method.name}, seed {config.seed}")

            return on_round

        yield start


def reproduction(found: Reproduction, paths: Sequence[Path]) -> None:
    """Ours, the paper's in brackets, the difference; the claims; what is missing."""
    console, recipe, cells = Console(), found.recipe, numbers(found)
    note = " (a quick, small version, not the paper's)" if found.quick else ""
    beside = ": ours (the paper's) difference" if beside_printed(cells) else ""
    console.print(f"{recipe.title}{note}\n{recipe.unit}{beside}", markup=False, highlight=False)
    rows = [recipe.rows[row].label + (" *" if recipe.rows[row].ours else "") for row in found.rows]
    columns = [
        (recipe.columns[column].label, [told(cells[row][column]) for row in found.rows]) for column in found.columns
    ]
    for part in _parts(columns, console.width - max(map(len, rows)) - _BETWEEN - 2):
        table = Table(Column(no_wrap=True), box=SIMPLE_HEAD)
        for label, values in part:
            table.add_column(escape(label), justify="right", width=_width(label, values))
        for row, *values in zip(rows, *(values for _, values in part), strict=True):
            table.add_row(escape(row), *values)
        console.print(table)
    if any(recipe.rows[row].ours for row in found.rows):
        console.print("* not the paper's")
    for one in verdicts(found, cells):
        held = {True: "[green]held[/]", False: "[red]not held[/]", None: "not computed"}[one.held]
        console.print(f"{held}: {escape(one.text)}", soft_wrap=True, highlight=False)
    if missing := len(found.missing()):
        console.print(f"{missing} runs are missing: the same command goes on with them", highlight=False)
    console.print(f"written: {', '.join(map(str, paths))}", soft_wrap=True, highlight=False)


def _parts(columns: list[_Cells], width: int) -> Iterator[list[_Cells]]:
    """The columns in parts that fit into a terminal, each a table of its own below the last."""
    part: list[_Cells] = []
    for column in columns:
        if part and sum(_width(*one) + _BETWEEN for one in [*part, column]) > width:
            yield part
            part = []
        part.append(column)
    yield part


def _width(label: str, values: list[str]) -> int:
    """What a column needs; a long label breaks between words."""
    return max(min(len(label), _LABEL), *map(len, [*label.split(), *values]))
