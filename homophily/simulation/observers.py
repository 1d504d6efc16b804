"""Metrics of an exchange: a simulation knows the true clusters; a real peer knows names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from homophily.federation.merging import MergeGroup
from homophily.federation.view import View
from homophily.runs.fields import Discovered, RoundMetrics
from homophily.simulation.communication import Traffic
from homophily.simulation.evaluation import precision_and_recall
from homophily.simulation.merge_counts import MergeCounts
from homophily.simulation.recording import Entries, RecordedPeers
from homophily.simulation.shards import ONE_PROCESS, WHOLE, Shards, rows_of, total


@dataclass(frozen=True)
class RoundRecord:
    """An exchange that is over. P peers decided, over B contacts each."""

    view: View
    stopped: Tensor  # [P] bool
    met: Tensor  # [P, B] bool
    similarity: Tensor | None  # [P, B] float64; None: nothing was measured
    group: MergeGroup
    merged: Tensor  # [P, K] bool: whose models of the group were merged
    neighbours: Tensor  # [P, B] bool or weights: the peers that the method considers similar
    left_out: Tensor | None = None  # [P, B] bool: partners that the merge guard left out; None: there is no guard


class Observer(Protocol):
    """Sees every exchange and derives the run's metrics and summary from it."""

    recorded: RecordedPeers | None  # the peers in the run's history; None: it has none
    entries: Entries  # what the last exchange adds to the history

    def observe(self, record: RoundRecord) -> RoundMetrics:
        """The metrics of a round."""

    def summary(self) -> Discovered:
        """Over the whole run."""

    def notes(self, traffic: Traffic) -> list[str]:
        """Notes for the user."""

    def final(self) -> dict[str, Tensor]:
        """Tensors for the folder of a finished run."""

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold."""

    def numbers(self) -> dict[str, Any]:
        """The rest of a checkpoint, as JSON."""

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Continue from a checkpoint."""


class ClusterObserver:
    """Counts merges by pair of peers, and scores neighbours by the true clusters."""

    def __init__(
        self,
        view: View,
        cluster: Tensor | None,
        finds: bool,
        notes: list[str],
        recorded: RecordedPeers | None = None,
        shards: Shards = ONE_PROCESS,
    ) -> None:
        """view: of the P peers of this process; cluster: [N]; finds: the method has neighbours to score."""
        self._shards = shards
        self._cluster, self._finds, self._notes = None if cluster is None else cluster.cpu(), finds, notes
        self.recorded = recorded
        self.entries: Entries = {}
        self._peers, self._me = int(total(shards, torch.tensor([len(view.me)]))), view.me
        if recorded is not None:
            self._watched_contacts = rows_of(shards, view.contacts, recorded.watched, self._peers).cpu()
        self._contacts = view.contacts
        self._merges = MergeCounts(self._peers)
        self._neighbours: Tensor | None = None  # [P, B]: of the last round in this process
        self._restored = self._sparse(torch.zeros_like(view.known))  # or before a resume
        self._found: tuple[float | None, float | None] = (None, None)  # precision and recall of that

    def observe(self, record: RoundRecord) -> RoundMetrics:
        self._neighbours = record.neighbours
        if self._finds:
            found = precision_and_recall(record.view, record.neighbours, record.stopped, self._shards)
            self._found = found if found[1] is not None else self._found
        pairs = self._merges.add(record.group, record.merged, record.view.me)
        if self.recorded is not None:
            self.entries = self._entries(self.recorded, record, pairs)
        precision, recall = self._found
        return {
            "neighbour_precision": precision,
            "neighbour_recall": recall,
            "same_cluster_merges": self._same_cluster(pairs),
        }

    def _entries(self, recorded: RecordedPeers, record: RoundRecord, pairs: Tensor) -> Entries:
        pairs = self._shards.gathered(pairs[torch.isin(pairs[:, 0], recorded.rows)] if self._shards.size > 1 else pairs)
        merges = recorded.merges(pairs[:, 0], pairs[:, 1])
        if record.similarity is None:
            return {"merges": merges}
        met, similarity = (
            rows_of(self._shards, table, recorded.watched, self._peers).cpu()
            for table in (record.met, record.similarity)
        )
        return {"merges": merges, "similarities": recorded.similarities(met, self._watched_contacts, similarity)}

    def _same_cluster(self, pairs: Tensor) -> float | None:
        """Share of the merges [M, 2] between peers of one cluster."""
        if self._cluster is None:
            return None
        inside = self._cluster[pairs[:, 0]] == self._cluster[pairs[:, 1]]
        return self._share(int(inside.sum()), len(pairs))

    def _share(self, some: int, merges: int) -> float | None:
        """The share of some of the merges of all processes; None if there are no merges."""
        some, merges = total(self._shards, torch.tensor([some, merges])).tolist()
        return some / merges if merges else None

    def summary(self) -> Discovered:
        precision, recall = self._found
        return {
            "neighbour_precision": precision,
            "neighbour_recall": recall,
            "same_cluster_merges": None
            if self._cluster is None
            else self._share(*self._merges.same_cluster(self._cluster)),
        }

    def notes(self, traffic: Traffic) -> list[str]:
        return self._notes

    def final(self) -> dict[str, Tensor]:
        """Merge counts and the neighbours at the end; sparse, pairs as peer * N + other."""
        pairs, counts = self._merges.sparse()
        return {"pairs": pairs, "counts": counts, **self._similar()}

    def _similar(self) -> dict[str, Tensor]:
        return self._restored if self._neighbours is None else self._sparse(self._neighbours)

    def _sparse(self, neighbours: Tensor) -> dict[str, Tensor]:
        row, column = (neighbours > 0).nonzero(as_tuple=True)
        pairs = self._me[row] * self._peers + self._contacts[row, column]
        return {"neighbours": pairs, "weights": neighbours[row, column].to(torch.float64)}

    def tensors(self) -> dict[str, Tensor]:
        pairs, counts = self._merges.sparse()
        found = {"merge_pairs": pairs, "merge_counts": counts, **self._similar()}
        return {f"{WHOLE}{name}": tensor for name, tensor in found.items()}

    def numbers(self) -> dict[str, Any]:
        return {"found": list(self._found)}

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        pairs, counts = self._of_own_peers(*(tensors[f"{WHOLE}{name}"] for name in ("merge_pairs", "merge_counts")))
        self._merges = MergeCounts(self._peers, pairs.cpu(), counts.cpu())
        pairs, weights = self._of_own_peers(*(tensors[f"{WHOLE}{name}"] for name in ("neighbours", "weights")))
        self._restored = {"neighbours": pairs, "weights": weights}
        self._found = (numbers["found"][0], numbers["found"][1])

    def _of_own_peers(self, pairs: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """The pairs (peer * N + other) of the peers of this process, and their values."""
        mine = self._shards.mine(self._peers)
        peer = pairs // self._peers
        own = (peer >= mine.start) & (peer < mine.stop)
        return pairs[own], values[own]
