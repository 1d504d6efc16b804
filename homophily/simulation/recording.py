"""Which peers a run records, and what a round adds to its history (``homophily.runs.history``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from homophily.data.types import Roster
from homophily.methods.base import Findings
from homophily.randomness import Purpose, bits
from homophily.runs.history import LIMITS, MOST_PEERS, WATCHED
from homophily.runs.record_file import Arrays

Entries = dict[str, Arrays]  # of a round, by their kind
_MOST_MEASURED = 1000  # similarities of a watched peer in a round
_MOST_MERGED = 16  # an entry has at most the merges that fill this part of its file


@dataclass(frozen=True)
class RecordedPeers:
    """The P recorded peers, in the order of the history. The first few are watched: their similarities are recorded."""

    rows: Tensor  # [P] int64 on the CPU: their rows in this process
    ids: Tensor  # [P] int64 on the CPU
    total: int  # peers of the federation
    clusters: list[str] | None  # of the recorded peers
    names: dict[int, str]  # by id; empty if peers have no names

    @property
    def watched(self) -> Tensor:
        """[W] rows."""
        return self.rows[:WATCHED]

    @cached_property
    def about(self) -> dict[str, Any]:
        """The content of ``peers.json``."""
        return {
            "total": self.total,
            "peers": self.ids.tolist(),
            "watched": len(self.watched),
            "clusters": self.clusters,
            "names": {str(id): name for id, name in self.names.items()},
        }

    def as_ids(self, ids: Tensor) -> np.ndarray[Any, Any]:
        """Ids on the CPU as they are stored: in as few bytes as the largest id of the federation needs."""
        found: np.ndarray[Any, Any] = ids.numpy().astype(self._type)
        return found

    @cached_property
    def _type(self) -> np.dtype[Any]:
        largest = max([self.total - 1, *self.ids.tolist(), *self.names])
        return np.dtype(next((t for t in (np.uint16, np.uint32) if largest <= np.iinfo(t).max), np.int64))

    @cached_property
    def _place(self) -> np.ndarray[Any, Any]:
        """[rows] the place of each row's peer among the recorded ones; -1: not recorded."""
        place = np.full(max(self.total, 1 + int(self.rows.max())), -1, dtype=np.int16)
        place[self.rows.numpy()] = np.arange(len(self.rows))
        return place

    def merges(self, rows: Tensor, partners: Tensor) -> Arrays:
        """The entry of merges: the peer in each of ``rows`` [M], ascending, merged the model of a partner [M] (ids).

        It has all partners of as many of the recorded peers as it has room for.
        """
        place = self._place[rows.numpy()]
        counts = np.bincount(place + 1, minlength=len(self.rows) + 1)  # the first is of peers that are not recorded
        order, counts = place.argsort(kind="stable")[counts[0] :], counts[1:]
        room = LIMITS["merges"] // _MOST_MERGED // self._type.itemsize
        if len(order) > room:
            counts = counts[: int((counts.cumsum() <= room).sum())]
            order = order[: int(counts.sum())]
        return {"counts": counts.astype(self._type), "partners": partners.numpy()[order].astype(self._type)}

    def similarities(self, met: Tensor, contacts: Tensor, similarity: Tensor) -> Arrays:
        """The entry of similarities, from rows of the watched peers: met, contacts, similarity [W, B], on the CPU."""
        met = met & (met.cumsum(1) <= _MOST_MEASURED)
        values = similarity[met].numpy().astype(np.float32)
        return {
            "counts": met.sum(1).numpy().astype(np.uint16),
            "others": self.as_ids(contacts[met]),
            "values": np.where(np.isfinite(values), values, np.float32(np.nan)),
        }

    def found(self, findings: Findings, ids: Tensor) -> Arrays:
        """The part of the entry of diagnostics about the fingerprints of the peers ``ids`` [M]."""
        kept = torch.ones_like(ids, dtype=torch.bool)
        if len(ids) > MOST_PEERS:
            kept = torch.isin(ids, self.ids.to(ids.device))
        peers = {name: table[kept] for name, table in findings.peers.items()}
        return {
            **_stored("value", findings.values),
            **({"peer/id": self.as_ids(ids[kept].cpu()), **_stored("peer", peers)} if peers else {}),
        }

    def reported(self, tables: Mapping[str, Tensor]) -> Arrays:
        """The part of the entry of diagnostics about the choices of the watched peers. tables: [W, ...]."""
        return _stored("watched", tables)

    def of_peers(self, tables: Mapping[str, Tensor]) -> Arrays:
        """The part of the entry of diagnostics with a row for each recorded peer, of tables with one for each row."""
        some = {name: table[self.rows.to(table.device)] for name, table in tables.items()}
        return {"peer/id": self.as_ids(self.ids), **_stored("peer", some)}

    def scores(self, columns: Mapping[str, Tensor]) -> Arrays:
        """The entry of scores. columns: by name, [N] float64."""
        table = torch.stack(list(columns.values())).cpu()[:, self.rows].to(torch.float32).numpy()
        return dict(zip(columns, table, strict=True))


def recorded_peers(roster: Roster, seed: int) -> RecordedPeers:
    """One peer of each cluster, then the others in keyed random order; at most ``MOST_PEERS``."""
    everyone = bits(seed, Purpose.RECORD, torch.arange(roster.peers)).argsort(stable=True).numpy()
    cluster = None if roster.cluster is None else roster.cluster.cpu().numpy()
    first = np.zeros(0, dtype=np.int64) if cluster is None else np.unique(cluster, return_index=True)[1]
    some = np.concatenate([first, everyone[~np.isin(everyone, first)]])[:MOST_PEERS]
    clusters = None if cluster is None else [roster.cluster_names[number] for number in cluster[some]]
    names = {} if roster.names is None else {int(peer): roster.names[peer] for peer in some}
    ids = torch.from_numpy(some)
    return RecordedPeers(ids, ids, roster.peers, clusters, names)


def _stored(kind: str, tables: Mapping[str, Tensor]) -> Arrays:
    """Copies, since the entry is written later."""
    found = {f"{kind}/{name}": table.detach().to("cpu", copy=True) for name, table in tables.items()}
    return {name: (t.to(torch.float32) if t.is_floating_point() else t).numpy() for name, t in found.items()}
