"""Progress bars over the rounds of runs, on a terminal only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from homophily.experiments.callbacks import Callback, RunHandle

_COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(bar_width=None),
    MofNCompleteColumn(),
    TextColumn("{task.fields[score]}"),
    TextColumn("{task.fields[same]}"),
    TimeRemainingColumn(compact=True),
)
_FINISHED = 6  # bars of finished runs that stay; older ones make room for those that go on


class _Bars:
    """The bars of several runs, by label."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self._finished: list[TaskID] = []

    def of(self, label: str) -> TaskID:
        """The bar with this label; a run that is taken over from another process keeps its bar."""
        if label not in self._tasks:
            self._tasks[label] = self._progress.add_task(label, total=None, score="", same="")
        return self._tasks[label]

    def update(self, task: TaskID, **values: Any) -> None:
        self._progress.update(task, **values)

    def finish(self, task: TaskID) -> None:
        if task not in self._finished:
            self._finished.append(task)
            for old in self._finished[:-_FINISHED]:
                self._progress.update(old, visible=False)


class ProgressBar(Callback):
    """The bar of one run: its round, main score, share of same-cluster merges, and the time that is left."""

    def __init__(self, bars: _Bars, label: str) -> None:
        self._bars, self._task = bars, bars.of(label)

    def on_round(self, run: RunHandle, metrics: dict[str, Any]) -> None:
        score, same = metrics.get(metrics.get("headline", "")), metrics.get("same_cluster_merges")
        if score is not None:
            self._bars.update(self._task, score=f"{metrics['headline']} {score:.4g}")
        if same is not None:
            self._bars.update(self._task, same=f"same-cluster {100 * same:.0f}%")
        self._bars.update(self._task, completed=run.round, total=run.config.rounds)
        if run.round == run.config.rounds:
            self._bars.finish(self._task)

    def on_end(self, run: RunHandle, summary: dict[str, Any]) -> None:
        self._bars.finish(self._task)


@contextmanager
def one_run() -> Iterator[list[Callback]]:
    """Yield callbacks that show a progress bar over the rounds of one run; an empty list without a terminal."""
    with many_runs() as bars:
        yield list(bars("", 0)) if bars else []


@contextmanager
def many_runs() -> Iterator[Callable[[str, int], Sequence[Callback]] | None]:
    """Yield a function that makes a progress bar for a method and seed; None without a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with Progress(*_COLUMNS, console=console, transient=True, expand=True) as progress:
        bars = _Bars(progress)
        yield lambda method, seed: [ProgressBar(bars, f"{method}, seed {seed}" if method else "rounds")]
