"""The methods of a comparison by round and by communication: means over seeds with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from homophily.report.page.figures import Absent, Figure, Lines, Series
from homophily.report.page.scores import COSTS
from homophily.report.page.sources import Groups, Source, shortened
from homophily.report.page.statistics import Interval
from homophily.report.sweep_figure import Panel
from homophily.runs.headline import Headline

_BAND = "A line is the mean over seeds; its band is the 95% confidence interval of the mean (Student's t)."


Limits = tuple[float, float] | None


def curves(groups: Groups, score: Headline) -> list[Figure]:
    """Scores by round, same-cluster merges by round, and scores against communication."""
    begun = {name: [run for run in runs if run.metrics] for name, runs in groups.items()}
    return [
        _by_round("by-round", "Score by round", begun, score.name, 1.0, score.label),
        _by_round(
            "same-cluster", "Same-cluster merges by round", begun, "same_cluster_merges", 100.0, "share, %", (0, 100)
        ),
        _by_cost(begun, score),
    ]


def _by_round(
    id: str, title: str, groups: Groups, field: str, factor: float, label: str, limits: Limits = None
) -> Figure:
    series = []
    for colour, (name, runs) in enumerate(groups.items()):
        rounds, values = _common(runs, field)
        if rounds:
            found = [Interval.of([factor * value for value in seeds]) for seeds in values]
            low, high = ([one.low for one in found], [one.high for one in found]) if len(runs) > 1 else (None, None)
            mean = [one.mean for one in found]
            series.append(Series(shortened(name), rounds, mean, low, high, colour, dashed=name == "oracle"))
    if not series:
        return Absent(id, title, "no method has these numbers by round")
    return Lines(id, title, _BAND, "round", label, series, limits=limits)


def _by_cost(groups: Groups, score: Headline) -> Figure:
    title = "Score against communication"
    for field, factor, unit in COSTS:
        series = []
        for colour, (name, runs) in enumerate(groups.items()):
            costs, scores = (dict(zip(*_common(runs, key), strict=True)) for key in (field, score.name))
            both = [round for round in scores if round in costs]
            x, y = [factor * fmean(costs[r]) for r in both], [fmean(scores[r]) for r in both]
            if both:
                series.append(Series(shortened(name), x, y, colour=colour, dashed=name == "oracle"))
        if series:
            return Lines("by-cost", title, "Means over seeds, one point per scored round.", unit, score.label, series)
    return Absent("by-cost", title, "no run has scores by round")


def sweep_curve(panel: Panel, score: Headline) -> Figure:
    """The score against a swept key. A method that does not have the key is a dashed line."""
    names = [] if panel.scale == "linear" else [shortened(str(value)) for value in panel.values]
    place = {repr(value): number if names else value for number, value in enumerate(panel.values)}
    ends = [place[repr(panel.values[end])] for end in (0, -1)]
    series = []
    for colour, curve in enumerate(panel.curves):
        x = [place[repr(value)] for value in curve.values] or ends
        mean, std = (found if curve.values else found * 2 for found in (curve.mean, curve.std))
        low, high = (
            [None if m is None or s is None else m + side * s for m, s in zip(mean, std, strict=True)]
            for side in (-1, 1)
        )
        series.append(Series(shortened(curve.name), x, mean, low, high, colour, dashed=not curve.values))
    text = "A line is the mean over seeds; its band is ± one standard deviation. Dashed: a method without this key."
    title, key = f"Score against {panel.key}", shortened(panel.key)
    return Lines(f"sweep-{panel.key.replace('.', '-')}", title, text, key, score.label, series, names)


def _common(runs: Sequence[Source], field: str) -> tuple[list[int], list[list[float]]]:
    """The rounds in which every seed has a value, and these values: [rounds][seeds]."""
    columns = [dict(zip(*run.column(field), strict=True)) for run in runs]
    rounds = [round for round in (columns[0] if columns else ()) if all(round in column for column in columns)]
    return rounds, [[column[round] for column in columns] for round in rounds]
