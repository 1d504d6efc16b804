"""A run as a table in long format: one row per round, peer and metric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from homophily.plugins.optional import imported
from homophily.runs.history import History

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("round", "peer", "cluster", "metric", "value")
_BY_CLUSTER = "_by_cluster"


def run_frame(metrics: Iterable[Mapping[str, Any]], history: History | None) -> pd.DataFrame:
    """The metrics of all rounds, those of clusters, and the recorded scores of each peer. history: None: no record."""
    pd = imported("pandas", "tables", "a DataFrame")
    parts = [_of_rounds(pd, metrics)]
    if history is not None:
        parts += [_of_peers(pd, history, name, table) for name, table in history.scores.items()]
    frame = pd.concat(parts, ignore_index=True)
    return frame.astype(
        {"round": "int64", "peer": "Int64", "cluster": "string", "metric": "string", "value": "float64"}
    )


def joined_frame(parts: Sequence[tuple[Mapping[str, Any], pd.DataFrame]]) -> pd.DataFrame:
    """The frames of several runs below one another, each with columns at the left that hold one value per run."""
    empty = run_frame((), None)
    import pandas as pd

    for values, frame in parts:
        for at, (name, value) in enumerate(values.items()):
            frame.insert(at, name, pd.Series([value] * len(frame), index=frame.index, dtype=object))
    joined = pd.concat([empty, *(frame for _, frame in parts)], ignore_index=True) if parts else empty
    names = list(parts[0][0]) if parts else []
    return joined[[*names, *COLUMNS]].astype({name: joined[name].convert_dtypes().dtype for name in names})


def _of_rounds(pd: Any, metrics: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """The numbers of each round: means over all peers, and over the peers of each cluster."""
    rows = []
    for line in metrics:
        for name, value in line.items():
            if name.endswith(_BY_CLUSTER) and isinstance(value, dict):
                short = name.removesuffix(_BY_CLUSTER)
                rows += [(line["round"], None, cluster, short, mean) for cluster, mean in value.items()]
            elif name != "round" and (value is None or isinstance(value, int | float)):
                rows.append((line["round"], None, None, name, value))
    return pd.DataFrame(rows, columns=list(COLUMNS), dtype=object)


def _of_peers(pd: Any, history: History, name: str, table: np.ndarray[Any, Any]) -> pd.DataFrame:
    """A score of each recorded peer in each recorded round. table: [R, P]."""
    rounds, peers = table.shape
    cluster = [None] * peers if history.clusters is None else history.clusters
    return pd.DataFrame(
        {
            "round": np.repeat(history.rounds, peers),
            "peer": np.tile(history.peers, rounds),
            "cluster": cluster * rounds,
            "metric": name,
            "value": table.reshape(-1).astype(np.float64),
        }
    )
