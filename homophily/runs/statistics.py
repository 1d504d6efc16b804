"""Means and standard deviations over the seeds of a method, and how evenly scores are spread over peers."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from homophily.runs.headline import Headline

_BY_HOPS = "models_per_peer_round_by_hops"  # a seed has counts up to its largest distance; further counts are 0
_NOT_AVERAGED = ("headline", "rounds", "run", "ever_diverged", "diverged", "notes")
_WORST = 10  # the worst tenth of the peers


def averaged(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Over seeds: a mean is known only if the number of every seed is, so that no diverged run is left out silently.

    A cluster that a seed does not have is not a number of that seed.
    """
    out: dict[str, Any] = {}
    for key in dict.fromkeys(key for summary in summaries for key in summary):
        cells = [summary[key] for summary in summaries if key in summary]
        if key == _BY_HOPS:
            longest: dict[str, float] = max(cells, key=len)
            cells = [dict.fromkeys(longest, 0.0) | cell for cell in cells]
        if isinstance(cells[0], dict):
            out[key] = averaged(cells)
        elif key not in _NOT_AVERAGED and not any(isinstance(cell, str | list) for cell in cells):
            spread = {"std": statistics.stdev(cells)} if len(cells) > 1 and None not in cells else {}
            out[key] = None if None in cells else {"mean": statistics.fmean(cells), **spread}
    return out


def mean_by_round(seeds: Sequence[Sequence[Mapping[str, Any]]], field: str) -> dict[int, float]:
    """The mean over seeds of a field, by round; rounds in which a seed has no value are left out.

    seeds: the metrics of each seed's rounds.
    """
    found: dict[int, list[float]] = {}
    for lines in seeds:
        for line in lines:
            if line.get(field) is not None:
                found.setdefault(line["round"], []).append(line[field])
    return {round: statistics.fmean(values) for round, values in sorted(found.items()) if len(values) == len(seeds)}


def fairness(headline: Headline, scores: Mapping[str, Any]) -> dict[str, float | None]:
    """The mean score of the worst tenth of the peers, and the standard deviation over peers; None if one has no score.

    scores: over peers, by name.
    """
    values = scores[headline.name]
    if None in values:
        return {"worst_tenth": None, "std_over_peers": None}
    worst = sorted(values, key=headline.worse, reverse=True)[: max(1, len(values) // _WORST)]
    return {"worst_tenth": statistics.fmean(worst), "std_over_peers": statistics.pstdev(values)}
