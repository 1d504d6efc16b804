"""Formats the measured rows as one Markdown table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from side_by_side.job import Answer, Repeat

HEAD = (
    "| network | task | what | with | samples/s, whole rounds: median (range) | ours is faster by "
    "| samples/s, training only | what was not comparable |"
)
RULE = "| --- | --- | --- | --- | --- | --- | --- | --- |"


@dataclass
class Row:
    """One framework and task. answers: the results of each setting (threads, processes)."""

    network: str
    task: str
    name: str
    note: str
    ours: bool = False  # homophily with its default engine, with which the others are compared
    answers: dict[tuple[int, int], Answer] = field(default_factory=dict)

    @property
    def best(self) -> tuple[str, Answer]:
        """Return a description of the fastest setting, and its result."""
        tried = [((0, 0), Answer(failure="not measured"))] if not self.answers else list(self.answers.items())
        (threads, processes), answer = max(tried, key=lambda item: rate(item[1].repeats))
        words = f"{processes} × {threads} thread" if processes > 1 else f"{threads} thread{'s' * (threads > 1)}"
        return words, answer


def rate(repeats: Sequence[Repeat]) -> float:
    """Return the median samples per second over whole rounds; 0 without results."""
    return statistics.median(r.samples / r.seconds for r in repeats) if repeats else 0.0


def training_rate(repeats: Sequence[Repeat]) -> float:
    """Return the median samples per second of training alone; 0 if it was not measured separately."""
    found = [r.samples / r.training for r in repeats if r.training]
    return statistics.median(found) if found else 0.0


def lines(rows: Sequence[Row]) -> list[str]:
    """Return the table. Rows of the task "training" become a column of the framework's other rows."""
    alone = {(row.network, row.name): rate(row.best[1].repeats) for row in rows if row.task == "training"}
    ours = {(row.network, row.task): rate(row.best[1].repeats) for row in rows if row.ours}
    out = [HEAD, RULE]
    for row in rows:
        if row.task == "training":
            continue
        words, answer = row.best
        head = f"| {row.network} | {row.task} | {row.name}"
        if not answer.repeats:
            out.append(f"{head} | - | {answer.failure} | - | - | {row.note} |")
            continue
        rates = [r.samples / r.seconds for r in answer.repeats]
        trained = training_rate(answer.repeats) or alone.get((row.network, row.name), 0.0)
        than = ours.get((row.network, row.task), 0.0) / rate(answer.repeats)
        cells = [
            answer.settings or words,
            f"{rate(answer.repeats):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})",
            f"{than:.2f}×" if than else "-",
            f"{trained:,.0f}" if trained else "-",
        ]
        out.append(f"{head} | {' | '.join(cells)} | {row.note} |")
    return out
