"""The view of a comparison: methods side by side, with intervals over seeds and paired tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from homophily.report.page.curves import curves, sweep_curve
from homophily.report.page.figures import Absent, Figure, Intervals, Tab, Table, View
from homophily.report.page.scores import tenths_of
from homophily.report.page.settings import settings_tab
from homophily.report.page.sources import Compared, Groups, Source, shortened
from homophily.report.page.statistics import LEAST_SEEDS, WHY, Interval, holm, paired_t
from homophily.runs.headline import Headline

_HALF = "± half of its 95% confidence interval (Student's t over seeds)"


def comparison_view(name: str, compared: Compared) -> View:
    """The runs of a comparison by method, each with one run per seed."""
    groups = compared.groups
    runs = [run for found in groups.values() for run in found]
    waiting = [run for run in runs if run.summary is None]
    ended = {method: [run for run in found if run.summary is not None] for method, found in groups.items()}
    finished = {method: found for method, found in ended.items() if found}
    state = "finished" if not waiting else "running" if any(r.state == "running" for r in waiting) else "stopped"
    score = runs[0].score
    by_round, *others = [*curves(groups, score), *(sweep_curve(panel, score) for panel in compared.panels)]
    tabs = [
        Tab("Result", [_intervals(finished, score), by_round, _methods(finished, score), *others]),
        Tab("Tests", [_tests(finished, score)]),
        Tab("Clusters and peers", [_clusters(finished, score), _spread(finished, score)]),
        Tab("Runs", [_runs(groups, score)]),
        settings_tab(runs[0], Path(name)),
    ]
    keys = [panel.key for panel in compared.panels]
    facts = [
        ("methods", str(compared.methods)),
        *([("swept", ", ".join(map(shortened, keys)))] if keys else []),
        ("seeds", ", ".join(map(str, sorted({run.seed for run in runs})))),
        ("runs finished", f"{len(runs) - len(waiting)} of {len(runs)}"),
        ("data", shortened(str(runs[0].config.data.name))),
        ("peers", str(runs[0].peers)),
    ]
    return View(name, f"Comparison of {compared.methods} methods", state, facts, tabs)


def _over_seeds(runs: Sequence[Source], value: Callable[[dict[str, Any]], float | None]) -> Interval | None:
    """The mean of a number of the summary over seeds; None if the number of one seed is not known."""
    values = [value(run.summary or {}) for run in runs]
    known = [number for number in values if number is not None]
    return Interval.of(known) if known and len(known) == len(values) else None


def _field(runs: Sequence[Source], name: str) -> Interval | None:
    return _over_seeds(runs, lambda summary: summary.get(name))


def _with_half(one: Interval | None, score: Headline) -> str:
    if one is None or one.half is None:
        return score.text(None if one is None else one.mean)
    half = f"{one.half:.2f}" if score.percent else f"{one.half:.2g}"
    return f"{score.text(one.mean)} ± {half}"


def _intervals(groups: Groups, score: Headline) -> Figure:
    title = "Score by method"
    if not groups:
        return Absent("intervals", title, "no run of this comparison has finished")
    found = [_field(runs, score.name) for runs in groups.values()]
    several = max(map(len, groups.values())) > 1
    text = f"The mean over peers, then over seeds, {_HALF}." if several else "The mean over peers of one seed."
    means, low, high = (
        [None if one is None else getattr(one, end) for one in found] for end in ("mean", "low", "high")
    )
    pairs = zip(found, groups.values(), strict=True)
    missing = ["" if one is not None else _missing(runs, score) for one, runs in pairs]
    return Intervals("intervals", title, text, score.label, [*map(shortened, groups)], means, low, high, missing)


def _missing(runs: Sequence[Source], score: Headline) -> str:
    """Why the mean of these runs is not known."""
    others = sorted({run.score.name for run in runs} - {score.name})
    return f"scored by {', '.join(others)}" if others else "not known: a peer has diverged"


def _methods(groups: Groups, score: Headline) -> Figure:
    title = "Methods side by side"
    if not groups:
        return Absent("methods", title, "no run of this comparison has finished")
    rows = []
    for name, runs in groups.items():
        same, models, sent = (
            _field(runs, key) for key in ("same_cluster_merges", "models_sent_per_peer", "bytes_sent_per_peer")
        )
        rows.append([
            shortened(name), _with_half(_field(runs, score.name), score), str(len(runs)),
            "-" if same is None else f"{100 * same.mean:.0f}",
            "-" if models is None else f"{models.mean:.0f}",
            "-" if sent is None else f"{sent.mean / 1e6:.3g}",
        ])  # fmt: skip
    headings = ["method", score.label, "seeds", "same-cluster merges, %", "models sent", "MB sent"]
    text = f"The score is the mean over seeds {_HALF}. Models and MB are sent to one peer over the run."
    return Table("methods", title, text, headings, rows)


def _tests(groups: Groups, score: Headline) -> Figure:
    id, title = "tests", "Paired tests over seeds"
    by_seed = {
        name: {run.seed: value for run in runs if (value := (run.summary or {}).get(score.name)) is not None}
        for name, runs in groups.items()
    }
    pairs = []
    for first, second in combinations(by_seed, 2):
        seeds = sorted(by_seed[first].keys() & by_seed[second].keys())
        if len(seeds) >= LEAST_SEEDS:
            pairs.append((first, second, [by_seed[first][seed] - by_seed[second][seed] for seed in seeds]))
    if not pairs:
        most = max((len(found) for found in by_seed.values()), default=0)
        why = f"a test needs two methods that have finished with the same {LEAST_SEEDS} seeds or more; there are {most}"
        return Absent(id, title, why)
    chances = [paired_t(values) for _, _, values in pairs]
    headings = ["methods", f"difference, {score.label}", "95% interval", "seeds", "p", "p, Holm"]
    rows = []
    for (first, second, values), chance, corrected in zip(pairs, chances, holm(chances), strict=True):
        one = Interval.of(values)
        ends = " to ".join(_signed(end, score) for end in (one.low, one.high) if end is not None)
        names = f"{shortened(first)} − {shortened(second)}"
        rows.append([names, _signed(one.mean, score), ends, str(len(values)), _p(chance), _p(corrected)])
    return Table(id, title, WHY, headings, rows)


def _signed(value: float, score: Headline) -> str:
    return f"{value:+.2f}" if score.percent else f"{value:+.3g}"


def _p(value: float | None) -> str:
    return "-" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def _clusters(groups: Groups, score: Headline) -> Figure:
    title, field = "Score by cluster", f"{score.name}_by_cluster"
    summaries = [run.summary or {} for runs in groups.values() for run in runs]
    names = list(dict.fromkeys(name for summary in summaries for name in summary.get(field, {})))
    if len(names) < 2:
        why = "no run has finished" if not summaries else "the clusters are not known, or there is only one"
        return Absent("clusters", title, why)

    def cell(runs: Sequence[Source], cluster: str) -> str:
        return _with_half(_over_seeds(runs, lambda summary: summary.get(field, {}).get(cluster)), score)

    rows = [[shortened(method), *(cell(runs, name) for name in names)] for method, runs in groups.items()]
    text = f"{score.label}: the mean over the peers of a cluster, then over seeds, {_HALF}."
    return Table("clusters", title, text, ["method", *map(shortened, names)], rows)


def _spread(groups: Groups, score: Headline) -> Figure:
    title, rows = "Spread over peers", []
    for method, runs in groups.items():
        peers = [[value for value in (run.scores or {}).get(score.name, []) if value is not None] for run in runs]
        tenths = [found for values in peers if (found := tenths_of(values, score)) is not None]
        if len(tenths) == len(runs):
            sides = [Interval.of([tenth[side] for tenth in tenths]) for side in (0, 1)]
            rows.append([shortened(method), *(_with_half(side, score) for side in sides)])
    if not rows:
        return Absent("spread", title, "no run has the final scores of its peers")
    text = (
        f"{score.label}: the mean of the worst and of the best tenth of the peers of a run, then over seeds, {_HALF}."
    )
    return Table("spread", title, text, ["method", "worst tenth of peers", "best tenth of peers"], rows)


def _runs(groups: Groups, score: Headline) -> Figure:
    rows = []
    for method, runs in groups.items():
        for run in runs:
            last = run.summary or {}
            rows.append([
                shortened(method), str(run.seed), run.state, run.progress, score.text(last.get(score.name)),
                "-" if "seconds" not in last else f"{last['seconds']:.1f}", shortened(str(run.path)),
            ])  # fmt: skip
    headings = ["method", "seed", "state", "progress", score.label, "seconds", "folder"]
    return Table("runs", "All runs", "homophily report FOLDER shows one run in detail.", headings, rows)
