"""Console output of ``homophily reproduce``: one progress bar over all runs, then the table and the claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from homophily.config.schema import Config
from homophily.experiments.callbacks import Callback, RunHandle
from homophily.papers.pages import claim_text
from homophily.papers.tables import Result, beside_printed, cell_text
from homophily.papers.verdicts import Kind, Verdict
from homophily.report.tables import print_table


class _RunsBar(Callback):
    """Advances a progress bar over the rounds of all runs."""

    def __init__(self, bar: Progress, task: TaskID, runs: int) -> None:
        self._bar, self._task, self._runs = bar, task, runs

    def on_round(self, run: RunHandle, metrics: dict[str, Any]) -> None:
        what = f"{self._runs} runs: {run.config.method.name}, seed {run.config.seed}"
        self._bar.update(self._task, advance=1, description=what)


@contextmanager
def playing(wanted: Sequence[Config]) -> Iterator[Callable[[], Sequence[Callback]]]:
    """Yield a function that returns callbacks for a run, which advance one bar over all runs if there is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal or not wanted:
        yield tuple
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"{len(wanted)} runs", total=sum(config.rounds for config in wanted))
        yield lambda: [_RunsBar(bar, task, len(wanted))]


def reproduction(result: Result, found: Sequence[Verdict], missing: int, paths: Sequence[Path]) -> None:
    """Print the table (ours, the paper's in brackets, the difference), the claims, and how many runs are missing."""
    console, recipe, cells = Console(), result.recipe, result.cells
    note = " (a quick, small version, not the paper's)" if result.quick else ""
    beside = ": ours (the paper's) difference" if beside_printed(cells) else ""
    console.print(f"{recipe.title}{note}\n{recipe.unit}{beside}", markup=False, highlight=False)
    rows = [recipe.rows[row].label + (" *" if recipe.rows[row].ours else "") for row in cells]
    headings = ["", *(recipe.columns[column].label for column in result.columns)]
    values = [[cell_text(mine[column]) for column in result.columns] for mine in cells.values()]
    print_table(console, headings, [[row, *line] for row, line in zip(rows, values, strict=True)])
    if any(recipe.rows[row].ours for row in cells):
        console.print("* not the paper's")
    for one in found:
        colour = {Kind.HELD: "green", Kind.OPEN: "default"}.get(one.kind, "red")
        verdict, text = claim_text(one).replace("**", "").split(": ", 1)
        console.print(f"[{colour}]{escape(verdict)}[/]: {escape(text)}", soft_wrap=True, highlight=False)
    if missing:
        console.print(f"{missing} runs are missing; run the same command again to continue", highlight=False)
    kept = f"{result.title} and its picture stay as they are until all runs of the figure have finished"
    console.print(f"written: {', '.join(map(str, paths))}" if paths else kept, soft_wrap=True, highlight=False)
