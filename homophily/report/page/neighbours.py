"""Which peers a method considered similar: precision and recall by round, and Theorem 1 of PANM."""

from __future__ import annotations

import numpy as np

from homophily.errors import UserError
from homophily.methods import theory
from homophily.report.page.families import family_figures
from homophily.report.page.figures import Absent, Figure, Lines, Series, Tab
from homophily.report.page.sources import Source


def neighbour_tab(source: Source) -> Tab:
    """Precision and recall by round, and what kin found."""
    return Tab("Neighbours", [_neighbours(source), *family_figures(source)])


def _neighbours(source: Source) -> Figure:
    title = "Precision and recall of neighbours"
    series = []
    for colour, (field, name) in enumerate({"neighbour_precision": "precision", "neighbour_recall": "recall"}.items()):
        rounds, values = source.column(field)
        if rounds:
            series.append(Series(name, rounds, values, colour=colour))
    if not series:
        why = "the clusters of the peers are not known, or the method does not look for similar peers"
        return Absent("neighbours", title, why)
    text = (
        "Precision: of the peers that a peer considers similar, the share in its own cluster. Recall: of the peers "
        "that it knows in its own cluster, the share that it considers similar. Means over peers."
    )
    theorem, said = _theorem(source)
    return Lines("neighbours", title, f"{text} {said}", "round", "share", [*series, *theorem], limits=(0, 1))


def _theorem(source: Source) -> tuple[list[Series], str]:
    """Theorem 1 of PANM for this run, if its assumptions hold, and what to say about it."""
    config, keys = source.config, source.config.method.keys
    if config.method.name not in ("panm", "pens"):
        return [], "Theorem 1 of PANM is about the methods panm and pens only."
    if config.topology.name != "full" or config.contacts != "all":
        return [], "Theorem 1 does not apply: not every peer can meet every other peer."
    if source.clusters is None:
        return [], "Theorem 1 needs the true clusters, which this folder does not have."
    k, drawn, last = (int(keys[key]) for key in ("k", "l", "t1"))
    rounds = list(range(1, min(last, source.rounds) + 1))
    sizes = [source.clusters.count(name) for name in dict.fromkeys(source.clusters)]
    try:
        found = np.array([_chances(source, size, drawn, k, len(rounds)) for size in sizes])
    except UserError as reason:
        return [], f"Theorem 1 does not apply: {reason}."
    over_peers = np.tensordot(np.array(sizes) / source.peers, found, 1)  # [k, rounds]
    text = (
        f"Dashed: Theorem 1 for stage 1 (rounds 1 to {last}), if a peer recognises its cluster among the peers drawn: "
        f"the probability that all {k} neighbours are in the own cluster, and the expected precision."
    )
    measured = _measured(source, k, last)
    if measured:
        text += f" Counted: the share of peers that merged with {k} peers of their cluster in a round of stage 1."
    curves = {f"Theorem 1: all {k} in the cluster": over_peers[-1], "Theorem 1: precision": over_peers.mean(0)}
    series = [
        Series(name, rounds, values.tolist(), colour=colour, dashed=True)
        for colour, (name, values) in enumerate(curves.items(), start=2)
    ]
    return [*measured, *series], text


def _chances(source: Source, cluster: int, drawn: int, k: int, rounds: int) -> list[list[float]]:
    """For j = 1 to k and each round, the probability of at least j neighbours of the own cluster: [k, rounds].

    Their mean over j is the expected share of the k neighbours, which is the precision.
    """
    if source.config.method.name == "pens":
        return [[theory.pens(source.peers, cluster, drawn, j)] * rounds for j in range(1, k + 1)]
    return [theory.cni(rounds, source.peers, cluster, drawn, j) for j in range(1, k + 1)]


def _measured(source: Source, k: int, last: int) -> list[Series]:
    """What the theorem is about, counted: the share of peers whose k partners of a round are all of their cluster."""
    if source.history is None or source.clusters is None:
        return []
    cluster = np.unique(source.clusters, return_inverse=True)[1]
    rounds = [round for round in source.history.merge_rounds.tolist() if round <= last]
    shares = []
    for round in rounds:
        pairs = source.history.merges(round)
        same = np.bincount(pairs[:, 0], cluster[pairs[:, 0]] == cluster[pairs[:, 1]], minlength=source.peers)
        shares.append(float((same[np.unique(pairs[:, 0])] >= k).mean()) if len(pairs) else None)
    return [Series(f"counted: all {k} in the cluster", rounds, shares, colour=2)] if rounds else []
