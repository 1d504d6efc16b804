"""Data that is drawn for each peer by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import homophily
from homophily import UserError
from homophily.data import generated, prepared_data
from homophily.data.generated import linear_teachers

CONFIG = {
    "peers": 40,
    "rounds": 4,
    "model": "linear",
    "data": {"name": "synthetic", "train": 20, "test": 20},
    "method": {"name": "oracle", "k": 2},
}


def test_a_peers_samples_do_not_depend_on_the_other_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a process can make the data of its own peers alone."""
    teachers = linear_teachers(7, features=5, classes=3, clusters=4)
    whole = teachers.of(torch.arange(20), 20, [6, 2, 3])
    some = torch.tensor([2, 11, 19])
    monkeypatch.setattr(generated, "_AT_ONCE", 7)
    part = teachers.of(some, 20, [6, 2, 3])
    assert part.cluster is not None
    assert whole.cluster is not None
    assert torch.equal(part.cluster, whole.cluster[some])
    for name, samples in (("train", 6), ("validation", 2), ("test", 3)):
        mine, all_of_them = getattr(part, name), getattr(whole, name)
        assert mine.count.tolist() == [samples] * 3
        for row, peer in enumerate(some.tolist()):
            assert all(map(torch.equal, mine.peer(row), all_of_them.peer(peer)))


def test_a_process_makes_the_samples_of_its_own_peers_alone_and_knows_who_the_others_are() -> None:
    settings = {"train": 6, "validation": 2, "test": 3}
    whole = prepared_data("synthetic", {}, settings, 11, 0)
    part = prepared_data("synthetic", {}, settings, 11, 0, mine=lambda peers: slice(4, peers - 2))
    assert whole.shares.peers == part.roster.peers == 11
    assert part.shares.peers == 5
    assert len(part.shares.train.x) == 30
    assert part.settings == whole.settings
    assert part.roster.by_cluster() == whole.roster.by_cluster()
    mine = whole.part(slice(4, 9))
    assert part.part(slice(4, 9)) is part.shares
    for name in ("train", "validation", "test"):
        assert torch.equal(getattr(part.shares, name).x, getattr(mine, name).x)
        assert torch.equal(getattr(part.shares, name).y, getattr(mine, name).y)


def test_clusters_are_equal_and_consecutive_and_label_inputs_differently() -> None:
    data = linear_teachers(0, features=4, classes=2, clusters=3).of(torch.arange(30), 30, [200, 0, 1])
    assert data.cluster is not None
    assert data.cluster.tolist() == [0] * 10 + [1] * 10 + [2] * 10
    assert data.validation is None
    x, y = data.train.x, data.train.y
    assert float(x.mean().abs()) < 0.05
    assert float((x.var() - 1).abs()) < 0.05
    by_cluster = y.view(3, 2000)
    signs = [(x.view(3, 2000, 4)[c] * (2.0 * by_cluster[c, :, None] - 1)).mean(0) for c in range(3)]
    assert all(float((signs[a] - signs[b]).norm()) > 0.1 for a, b in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.usefixtures("here")
def test_it_trains_and_a_stopped_run_is_resumed_with_the_same_data() -> None:
    whole = homophily.run(CONFIG, out=Path("whole"), device="cpu")
    half = homophily.run({**CONFIG, "rounds": 2}, out=Path("half"), device="cpu")
    assert homophily.resume(half.path, {"rounds": 4}).scores == whole.scores
    assert whole.summary["accuracy"] > 60  # 25 by chance
    assert whole.summary["same_cluster_merges"] == 1.0


@pytest.mark.parametrize(
    ("keys", "settings", "peers", "message"),
    [
        ({}, {"shift": "iid"}, 8, r"data\.shift: the peers of 'synthetic' have data of their own"),
        ({}, {"train": "all"}, 8, r"data\.train = 'all': 'synthetic' needs a whole number of at least 1"),
        ({}, {"task": "regression"}, 8, r"data\.task = 'regression': 'synthetic' has classification targets"),
        ({}, {}, 3, r"data\.clusters = 4: must be at most peers, which is 3"),
        ({"classes": 1}, {}, 8, r"data\.classes"),
        ({"noise": 1.0}, {}, 8, r"data\.noise"),
    ],
)
def test_mistakes_are_refused(keys: dict[str, object], settings: dict[str, object], peers: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        prepared_data("synthetic", keys, settings, peers, 0)
