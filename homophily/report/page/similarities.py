"""The similarities that watched peers measured, with the two groups into which the EM of PANM divided them."""

from __future__ import annotations

import numpy as np

from homophily.report.page.figures import Absent, Histogram, Measured, Tab
from homophily.report.page.sources import Source
from homophily.runs.history import Diagnostics, History

_TITLE = "Similarities of one peer"


def similarity_tab(source: Source) -> Tab:
    """The similarities of each watched peer by round."""
    if source.history is None:
        return Tab("Similarities", [Absent("similarities", _TITLE, "this run has no record of similarities")])
    fitted = {one.round: one for one in source.history.diagnostics if "sigma" in one.watched}
    found = {
        source.name(peer): measured
        for place, peer in enumerate(source.history.watched.tolist())
        if (measured := _measured(source.history, peer, place, fitted))
    }
    if not found:
        return Tab("Similarities", [Absent("similarities", _TITLE, "the method measured no similarities")])
    rounds = sorted({one.round for measured in found.values() for one in measured})
    text = "How many of the peers that the chosen peer met in a round have a similarity in each interval."
    if fitted:
        shown = ", ".join(map(str, list(fitted)[:5])) + (", ..." if len(fitted) > 5 else "")
        text += f" In rounds with EM ({shown}), the curves are its two Gaussians."
    return Tab("Similarities", [Histogram("similarities", _TITLE, text, "similarity", found)], rounds)


def _measured(history: History, peer: int, place: int, fitted: dict[int, Diagnostics]) -> list[Measured]:
    """What a peer measured. place: its place among the watched peers."""
    found = []
    for one in history.similarities(peer):
        values = one.values[np.isfinite(one.values)]
        if len(values):
            groups = _groups(fitted[one.round], place) if one.round in fitted else []
            found.append(Measured(one.round, values, groups))
    return found


def _groups(fit: Diagnostics, place: int) -> list[tuple[str, float, float, int]]:
    """Name, mean, standard deviation and size of the EM's groups of a watched peer; empty groups are left out."""
    count = int((fit.watched["others"][place] >= 0).sum())
    numbers = zip(*(fit.watched[name][place].tolist() for name in ("mean", "sigma", "share")), strict=True)
    named = zip(("own cluster (upper group)", "others (lower group)"), numbers, strict=True)
    return [(name, mean, sigma, round(share * count)) for name, (mean, sigma, share) in named if round(share * count)]
