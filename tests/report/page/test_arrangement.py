"""Peers keep their places, and large federations are thinned by the stated rules."""

from __future__ import annotations

import numpy as np
import pytest

from homophily.report.page.arrangement import BUDGET, CELLS, EXACT, LEAST_ROUNDS, SAMPLED, Arrangement, shown_rounds

GROUPS = ["b", "a", "b", "a", "c"]


def test_peers_are_ordered_by_group_and_number() -> None:
    found = Arrangement.by(GROUPS, 5, ["a", "b", "c"])
    assert found.order.tolist() == [1, 3, 0, 2, 4]
    assert found.row.tolist() == [2, 0, 3, 1, 4]
    assert found.groups == [("a", 2), ("b", 2), ("c", 1)]
    assert found.group.tolist() == [0, 0, 1, 1, 2]


def test_without_groups_peers_keep_their_numbers() -> None:
    found = Arrangement.by(None, 4)
    assert (found.order.tolist(), found.groups) == ([0, 1, 2, 3], [("all", 4)])


@pytest.mark.parametrize("groups", [1, 2, 7, 40])
@pytest.mark.parametrize("peers", [1, 60, 2000])
def test_places_are_in_the_square_and_differ(groups: int, peers: int) -> None:
    x, y = Arrangement.by([f"{i % groups}" for i in range(peers)], peers).places()
    assert ((x >= 0) & (x <= 1) & (y >= 0) & (y <= 1)).all()
    assert len({(round(a, 6), round(b, 6)) for a, b in zip(x, y, strict=True)}) == peers


def test_up_to_a_thousand_peers_each_has_a_row_and_all_merges_are_in_the_graph() -> None:
    found = Arrangement.by(GROUPS, 5, ["a", "b", "c"])
    frames, sampled = found.frames([3], [np.array([0 * 5 + 2, 4 * 5 + 1])], [np.array([2, 1])])
    assert (frames.size, sampled) == (5, None)
    assert frames.cells[0].tolist() == [2 * 5 + 3, 4 * 5 + 0]
    assert frames.counts[0].tolist() == [2, 1]


def test_above_a_thousand_peers_rows_are_combined_and_the_graph_is_a_sample() -> None:
    peers = 2 * EXACT
    found = Arrangement.by(None, peers)
    pairs = np.arange(peers) * peers + (np.arange(peers) + 1) % peers
    frames, sampled = found.frames([1], [pairs], [np.ones(peers, dtype=np.int64)])
    assert frames.size == CELLS
    assert frames.counts[0].sum() == peers  # no merge is lost
    assert sampled is not None
    assert sampled.size == peers
    rows = sampled.cells[0] // peers
    assert len(set(rows.tolist())) == SAMPLED
    assert (rows[0], rows[-1]) == (0, peers - 1)


def test_all_rounds_are_shown_if_they_fit() -> None:
    assert shown_rounds([240] * 60) == list(range(60))
    assert shown_rounds([]) == []


def test_long_runs_show_the_first_the_last_and_equal_steps() -> None:
    shown = shown_rounds([4000] * 300)
    assert (shown[0], shown[-1]) == (0, 299)
    assert len(shown) == BUDGET // 4000
    steps = np.diff(shown)
    assert steps.max() - steps.min() <= 1
    assert len(shown_rounds([10**7] * 300)) == LEAST_ROUNDS
