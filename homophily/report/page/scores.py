"""The scores of a run: by round, against communication, over peers and by cluster."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from homophily.report.page.arrangement import Arrangement
from homophily.report.page.figures import Absent, Figure, Lines, Points, Series, Tab, Table
from homophily.report.page.sources import Source, shortened
from homophily.runs.headline import Headline

COSTS = (("bytes_sent_per_peer", 1e-6, "MB sent per peer"), ("models_sent_per_peer", 1.0, "models sent per peer"))
"""Fields of the metrics that count communication, a factor and the unit; the first that is there is shown."""


def score_tab(source: Source) -> Tab:
    """The figures of a run's scores."""
    return Tab("Scores", [_by_round(source), _by_cost(source), _spread(source), _by_cluster(source)])


def _by_round(source: Source) -> Figure:
    score, title, by_cluster = source.score, "Score by round", f"{source.score.name}_by_cluster"
    rounds, values = source.column(score.name)
    if not rounds:
        return Absent("by-round", title, "no round has been scored")
    lines = [line for line in source.metrics if line.get(by_cluster)]
    names = list(dict.fromkeys(name for line in lines for name in line[by_cluster]))
    text, series = "The mean over all peers", [Series("mean over peers", rounds, values)]
    if len(names) > 1:
        text += " and over the peers of each cluster"
    if (over_peers := _over_peers(source)) is not None:
        text += "; the band holds the middle 80% of the peers"
        series.append(over_peers)
    if len(names) > 1:
        known = [line["round"] for line in lines]
        series += [
            Series(shortened(name), known, [line[by_cluster].get(name) for line in lines], colour=colour)
            for colour, name in enumerate(names)
        ]
    return Lines("by-round", title, f"{text}.", "round", score.label, series)


def _over_peers(source: Source) -> Series | None:
    """The median over the recorded peers, with a band from the 10th to the 90th percentile."""
    history = source.history
    if history is None or source.score.name not in history.scores or len(history.peers) < 2:
        return None
    found = history.scores[source.score.name].astype(np.float64)
    known = np.isfinite(found).any(1)
    low, middle, high = np.nanquantile(found[known], [0.1, 0.5, 0.9], axis=1).tolist()
    return Series("median of peers", history.rounds[known].tolist(), middle, low, high, dashed=True)


def _by_cost(source: Source) -> Figure:
    score, title = source.score, "Score against communication"
    scores = dict(zip(*source.column(score.name), strict=True))
    for field, factor, unit in COSTS:
        costs = dict(zip(*source.column(field), strict=True))
        both = [round for round in scores if round in costs]
        if both:
            series = Series("mean over peers", [factor * costs[r] for r in both], [scores[r] for r in both])
            return Lines("by-cost", title, "One point per scored round.", unit, score.label, [series])
    return Absent("by-cost", title, "no round has been scored")


def _spread(source: Source) -> Figure:
    score, title = source.score, "Spread over peers"
    values = source.peer_scores
    if values is None:
        return Absent("spread", title, "no scores of single peers are recorded")
    known = np.flatnonzero(np.isfinite(values))
    tenths = tenths_of(values[known].tolist(), score)
    if tenths is None:
        return Absent("spread", title, "every peer has diverged")
    order = known[np.argsort(values[known] if score.better == "higher" else -values[known], kind="stable")]
    arranged = Arrangement.of(source)
    group = arranged.group[arranged.row[order]]
    few, shown = _tenth(len(known)), [score.text(value) for value in (*tenths, float(values[known].mean()))]
    text = (
        f"The {'final' if source.run.finished else 'last recorded'} score of each peer (round {source.scored_round}), "
        f"from the worst to the best. Mean of the worst tenth ({few} {'peer' if few == 1 else 'peers'}): {shown[0]}; "
        f"of the best tenth: {shown[1]}; of all: {shown[2]}."
    )
    if len(known) < len(values):
        text += f" {len(values) - len(known)} peers are not shown: they have diverged, or are not recorded."
    return Points(
        "spread", title, text, "peers, from the worst to the best", score.label, order, np.arange(1, len(order) + 1),
        values[order], group, arranged.names, group,
        regions=[(0.5, few + 0.5, "worst tenth"), (len(order) - few + 0.5, len(order) + 0.5, "best tenth")],
    )  # fmt: skip


def tenths_of(values: Sequence[float], score: Headline) -> tuple[float, float] | None:
    """The means of the worst and of the best tenth, each at least one peer; None without values."""
    if not values:
        return None
    ordered, few = sorted(values, reverse=score.better == "lower"), _tenth(len(values))
    return float(np.mean(ordered[:few])), float(np.mean(ordered[-few:]))


def _tenth(peers: int) -> int:
    return max(1, peers // 10)


def _by_cluster(source: Source) -> Figure:
    score, scores = source.score, source.peer_scores
    title = f"{'Final' if source.run.finished else 'Last recorded'} scores by cluster"
    if scores is None or source.clusters is None:
        return Absent("by-cluster", title, "scores of single peers, or their clusters, are not known")
    rows = []
    for name, size in Arrangement.of(source).groups:
        pairs = zip(scores.tolist(), source.clusters, strict=True)
        values = [value for value, cluster in pairs if cluster == name and np.isfinite(value)]
        cells = [float(np.mean(values)), min(values), max(values)] if values else [None] * 3
        rows.append([shortened(name), str(size), *map(score.text, cells)])
    headings = ["cluster", "peers", f"mean {score.label}", "lowest", "highest"]
    return Table("by-cluster", title, "Mean, lowest and highest score of the peers of a cluster.", headings, rows)
