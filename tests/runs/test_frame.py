"""A run as a DataFrame: one row per round, peer and metric."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import homophily

SMALL: dict[str, Any] = {
    "peers": 8, "rounds": 4, "data": {"train": 12, "test": 10, "angles": [0, 180]}, "model": "linear",
    "method": "dac", "evaluate": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> homophily.Run:
    return homophily.run(SMALL, out=tmp_path_factory.mktemp("frame") / "run")


def test_it_has_one_row_for_each_number(run: homophily.Run) -> None:
    frame = run.frame()
    types = {"round": "int64", "peer": "Int64", "cluster": "string", "metric": "string", "value": "float64"}
    assert {name: str(kind) for name, kind in frame.dtypes.items()} == types
    assert not frame.duplicated(["round", "peer", "cluster", "metric"]).any()


def test_scores_of_peers_are_those_of_the_history(run: homophily.Run) -> None:
    frame, history = run.frame(), run.history
    of_peers = frame[frame.peer.notna() & (frame.metric == "accuracy")]
    table = of_peers.pivot(index="round", columns="peer", values="value")
    assert (table.index.tolist(), table.columns.tolist()) == ([2, 4], list(range(8)))
    assert np.array_equal(table.to_numpy(), history.scores["accuracy"].astype(np.float64))
    names = of_peers.drop_duplicates("peer").cluster.tolist()
    assert names == run.scores["cluster"]


def test_round_metrics_have_no_peer_and_means_of_clusters_their_cluster(run: homophily.Run) -> None:
    frame = run.frame()
    rounds = frame[frame.peer.isna()]
    for line in run.metrics():
        mine = rounds[rounds["round"] == line["round"]]
        numbers = dict(zip(mine.metric[mine.cluster.isna()], mine.value[mine.cluster.isna()], strict=True))
        assert numbers["models_sent_per_peer"] == line["models_sent_per_peer"]
        assert numbers.get("accuracy") == line.get("accuracy")
        means = mine[mine.cluster.notna()]
        assert dict(zip(means.cluster, means.value, strict=True)) == line.get("accuracy_by_cluster", {})
        assert set(means.metric) <= {"accuracy"}


def test_an_unknown_number_is_missing(tmp_path: Path) -> None:
    frame = homophily.run({**SMALL, "method": "local"}, out=tmp_path / "run").frame()
    assert frame[frame.metric == "same_cluster_merges"].value.isna().all()


def test_without_pandas_the_message_names_the_extra(run: homophily.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(homophily.UserError, match=r"a DataFrame needs pandas: pip install 'homophily\[tables\]'"):
        run.frame()
