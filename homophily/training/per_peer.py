"""Learning rates and epochs that differ from peer to peer: a list with one value per peer, or values by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from homophily.config.schema import Training
from homophily.data.types import Roster
from homophily.errors import UserError

_SHOWN = 8  # names that an error message lists


@dataclass(frozen=True)
class PeerNames:
    """What a table in the config can call peers by."""

    names: Sequence[str]
    clusters: Sequence[str] = ()  # the cluster of each; empty: clusters are not known

    @classmethod
    def of(cls, roster: Roster) -> PeerNames:
        """The names of simulated peers; one without a name is called by its number."""
        given = roster.names or [None] * roster.peers
        names = [name or str(number) for number, name in enumerate(given)]
        if roster.cluster is None:
            return cls(names)
        return cls(names, [roster.cluster_names[cluster] for cluster in roster.cluster.tolist()])


def values_by_peer(training: Training, peers: PeerNames) -> dict[str, list[Any]]:
    """Return the values of each peer for those of "lr" and "epochs" that the config gives by peer."""
    given = {"lr": training.lr_by_peer, "epochs": training.epochs_by_peer}
    return {
        key: _values(f"training.{key}_by_peer", values, getattr(training, key), peers)
        for key, values in given.items()
        if values is not None
    }


def _values(key: str, given: Sequence[Any] | Mapping[str, Any], default: Any, peers: PeerNames) -> list[Any]:
    """Return one value per peer. A peer's own name counts before its cluster's; one without either has the default."""
    names, clusters = peers.names, peers.clusters or [""] * len(peers.names)
    if not isinstance(given, Mapping):
        if len(given) != len(names):
            raise UserError(f"{key} has {len(given)} values, but there are {len(names)} peers")
        return list(given)
    known_names, known_clusters = set(names), set(peers.clusters)
    for name in given:
        if name in known_names and name in known_clusters:
            raise UserError(
                f"{key}: {name!r} is the name of both a peer and a cluster; give a list, one value per peer"
            )
        if name not in known_names and name not in known_clusters:
            every = [*dict.fromkeys(peers.clusters), *names]
            listed = ", ".join(every[:_SHOWN]) + (", ..." if len(every) > _SHOWN else "")
            raise UserError(f"{key}: no peer or cluster is called {name!r}; there are {listed}")
    return [given.get(name, given.get(cluster, default)) for name, cluster in zip(names, clusters, strict=True)]
