"""Executes many small jobs in one process or several, and prints a table row by row."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from itertools import islice
from typing import Any

import torch
import torch.multiprocessing as multiprocessing

import homophily
from homophily.experiments.runner import chosen_device, machine

Job = partial[Any]  # picklable, with a picklable result


@dataclass(frozen=True)
class Row:
    """A row of a table: its first cells, and the jobs that compute the others."""

    about: tuple[Any, ...]  # the first cells
    jobs: Sequence[Job]


@dataclass(frozen=True)
class Study:
    """A table: its head, its rows, a function from results to cells, and one from all results to lines below it."""

    head: tuple[str, ...]
    rows: Sequence[Row]
    cells: Callable[[list[Any]], Sequence[Any]]
    under: Callable[[list[tuple[Row, list[Any]]]], list[str]] = lambda found: []


def write(what: str, study: Study, options: Any) -> None:
    """Print the table row by row, also into options.out, for at most options.budget seconds."""
    versions = f"torch {torch.__version__}, homophily {homophily.__version__}"
    lines: list[str] = []

    def say(*more: str) -> None:
        lines.extend(more)
        print("\n".join(more), flush=True)
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")

    say(f"{what}: {date.today()}, {machine(chosen_device(options.device))}, {versions}", "")
    say(_line(study.head), _line(["---"] * len(study.head)))
    deadline = time.perf_counter() + options.budget
    results = done([job for row in study.rows for job in row.jobs], options.jobs, deadline)
    found: list[tuple[Row, list[Any]]] = []
    for row in study.rows:
        mine = list(islice(results, len(row.jobs)))
        if len(mine) < len(row.jobs):
            say("", f"The time was over: {len(study.rows) - len(found)} of {len(study.rows)} rows are missing.")
            break
        found.append((row, mine))
        say(_line([*row.about, *study.cells(mine)]))
    under = study.under(found)
    if under:
        say("", *under)


def done(jobs: Sequence[Job], processes: int, deadline: float) -> Iterator[Any]:
    """Yield the results of the jobs in order, until the deadline. With several processes, each has one thread."""
    if processes <= 1:
        for job in jobs:
            if time.perf_counter() > deadline:
                return
            yield job()
        return
    with multiprocessing.get_context("spawn").Pool(processes, torch.set_num_threads, (1,)) as pool:
        results = pool.imap(_call, jobs)
        for _ in jobs:
            left = deadline - time.perf_counter()
            try:
                yield results.next(None if left == float("inf") else max(0.0, left))
            except multiprocessing.TimeoutError:
                return


def _call(job: Job) -> Any:
    return job()


def _line(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"
