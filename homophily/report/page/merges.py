"""Who merged with whom: the merge matrix and the peer graph, which follow one slider over rounds."""

from __future__ import annotations

import numpy as np

from homophily.atomic_io import read_tensors
from homophily.report.page.arrangement import CELLS, EXACT, SAMPLED, Arrangement, shown_rounds
from homophily.report.page.figures import Absent, Array, Figure, Frames, Graph, Matrix, Tab
from homophily.report.page.sources import Source, shortened
from homophily.runs.history import History

_TITLES = {"matrix": "Merge matrix", "graph": "Peer graph"}


def merge_tab(source: Source) -> Tab:
    """The matrix and the graph by round, or over the whole run if rounds are not recorded; or why there are none."""
    history = source.history
    if history is not None and len(history.merge_rounds):
        return _by_round(Arrangement.of(source), history)
    if source.summary is None:
        return _absent("no merges are recorded, and their counts are written when the run finishes")
    stored = read_tensors(source.path / "merges.safetensors")
    if "pairs" not in stored:
        return _absent("with a server, peers do not merge each other's models")
    pairs, counts = stored["pairs"].numpy(), stored["counts"].numpy()
    if not len(pairs):
        return _absent("no peer has merged the model of another peer")
    arranged = Arrangement.of(source)
    frames, sampled = arranged.frames([source.rounds], [pairs], [counts])
    return Tab("Merges", merge_figures(arranged, frames, sampled, "over all rounds"), [source.rounds])


def _by_round(arranged: Arrangement, history: History) -> Tab:
    recorded = history.merge_rounds.tolist()
    pairs = [_pairs(history, round) for round in recorded]
    if not any(len(found) for found in pairs):
        return _absent("no peer has merged the model of another peer")
    places = shown_rounds([len(found) for found in pairs])
    rounds, shown = [recorded[place] for place in places], [pairs[place] for place in places]
    frames, sampled = arranged.frames(rounds, shown, [np.ones(len(found), dtype=np.int64) for found in shown])
    when = "in the round of the slider"
    if len(rounds) < recorded[-1]:
        when += f" (which has {len(rounds)} of {recorded[-1]} rounds)"
    if len(history.peers) < arranged.peers:
        when += f", for {len(history.peers)} recorded peers"
    return Tab("Merges", merge_figures(arranged, frames, sampled, when), rounds)


def _pairs(history: History, round: int) -> Array:
    """The merges of a round as peer * N + partner, sorted."""
    found = history.merges(round)
    return np.sort(found[:, 0] * history.total + found[:, 1])


def _absent(why: str) -> Tab:
    return Tab("Merges", [Absent(id, title, why) for id, title in _TITLES.items()])


def merge_figures(arranged: Arrangement, frames: Frames, sampled: Frames | None, when: str) -> list[Figure]:
    """The matrix and the graph of the merges of some rounds. sampled: the merges of the graph, if they are fewer."""
    ordered = "ordered by cluster" if len(arranged.groups) > 1 else "in the order of their numbers"
    matrix = f"Row i, column j: how often peer i merged the model of peer j, {when}. Peers are {ordered}."
    graph = f"A line joins two peers if one merged the model of the other, {when}."
    if arranged.peers > EXACT:
        matrix += f" {arranged.peers} peers are combined into {CELLS} rows and columns."
        graph += (
            f" Only the merges of {SAMPLED} of the {arranged.peers} peers are drawn, at equal distances "
            "in the order of the matrix."
        )
    x, y = arranged.places()
    groups = [(shortened(name), size) for name, size in arranged.groups]
    return [
        Matrix("matrix", _TITLES["matrix"], matrix, frames, arranged.order, groups),
        Graph("graph", _TITLES["graph"], graph, sampled, arranged.order, x, y, arranged.group, arranged.names),
    ]
