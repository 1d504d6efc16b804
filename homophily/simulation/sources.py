"""Sources of the models that a round compares and merges.

A round's exchange asks for peers by id and gets their models as rows. They are rows of the same matrix in a
simulation, and models from the network for a real peer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from homophily.federation.contacts import weighted_hops
from homophily.federation.layout import Kept
from homophily.federation.rows import Federation
from homophily.federation.view import View
from homophily.fingerprints.fingerprint import Fingerprints, sampled
from homophily.fingerprints.private import PrivateFingerprints
from homophily.simulation.communication import table_bytes

Memory = dict[str, Tensor]
# The losses [Q] of models in rows [M, D], with kept buffers, by row [Q], on the data of this process's peers [Q].
Losses = Callable[[Tensor, Kept, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Published:
    """What the P peers of this process publish after a round's training."""

    federation: Federation  # [P, D]
    before: Tensor | None  # [P, D]: the models before training, if the metric compares what training changed
    diverged: Tensor  # [P] bool; a GPU may still be computing it
    trained: Tensor  # [P] bool: who has trained in this round
    tables: Mapping[str, Tensor]  # [P, B] float64: what the method shares, as of the end of the last round


@dataclass(frozen=True)
class LocalModels:
    """M models that can be compared and merged here: first those of this process's P peers, then those fetched."""

    met: Tensor  # [P, B] bool: the peers asked for whose models are here
    rows: Tensor  # [M, D]
    kept: Kept  # [P, ...] each: buffers outside the rows
    before: Tensor | None  # [M, D]
    start: Tensor | None  # [M, D]: the models before the first round
    diverged: Tensor  # [M] bool
    trained: Tensor  # [M] bool: the update of this round exists
    samples: Tensor  # [M] int64: training samples
    tables: Mapping[str, Tensor]  # [M, B'] float64: shared tables, NaN: no entry
    contacts: Tensor  # [M, B'] int64: the peers that the tables are about, ascending, padded with -1
    table_bytes: Tensor | None  # [M] int64: what the tables of a peer take to send; None: nobody has any
    ids: Tensor | None = None  # [M]: whose model a row is; None: its number is the peer's id
    # Losses [Q] of the models in rows me [Q] on the data of the peers in rows you [Q], which other processes may have;
    # None: all data is here.
    at_owners: Callable[[Tensor, Tensor, Losses], Tensor] | None = None

    def local(self, ids: Tensor) -> Tensor:
        """The rows of the peers ``ids``, which must be among them; anything for -1."""
        if self.ids is None:
            return ids.clamp(min=0)
        ordered, order = self.ids.sort()
        return order[torch.searchsorted(ordered, ids.contiguous()).clamp(max=len(order) - 1)]


@dataclass(frozen=True)
class Heard:
    """Fingerprints that the P peers of this process know."""

    view: View  # of these peers: everyone that they may ever choose counts as known
    prints: Fingerprints | PrivateFingerprints  # of M peers
    ids: Tensor  # [M] int64, ascending: whose they are
    limited: bool  # each peer can merge only with some of these peers, its contacts
    bytes: float  # what travelled for those that are new


class ModelSource(Protocol):
    """Brings the models of other peers to the peers of this process."""

    asynchronous: bool  # others may be in another round, and ask for the update of any
    has_all_peers: bool  # all peers are in this process

    def view(self, round: int) -> View:
        """What each peer knows of others in this round."""

    def fingerprints(self, round: int, renew: int, active: Tensor, needed: bool) -> Heard | None:
        """The fingerprints before a round, if there are new ones; needed: nothing was heard yet.

        renew: they are made anew every so many rounds, 0: never; active: [P] bool, who has not stopped.
        """

    def publish(self, round: int, own: Published) -> None:
        """Publish the models of this process's peers."""

    def fetch(self, round: int, met: Tensor, updates: bool) -> LocalModels:
        """The models of the peers met [P, B]; updates: also as they were before this round's training."""

    def merged(self, round: int) -> None:
        """This process's peers have merged in this round."""

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold."""

    def numbers(self) -> dict[str, Any]:
        """The rest of a checkpoint, as JSON."""

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any], memory: Memory) -> Memory:
        """Continue from a checkpoint; returns the part of the method's memory that is about the present contacts."""


class InMemory:
    """All peers are in this process: their models are rows of one matrix, and views of it are handed out."""

    asynchronous = False
    has_all_peers = True

    def __init__(
        self,
        view: View,
        start: Tensor,
        samples: Tensor,
        make_fingerprints: Callable[[int], Fingerprints | PrivateFingerprints],
        graph: Any,
        limited: bool,
    ) -> None:
        """start: [N, D]; samples: [N]; make_fingerprints: called with the number of times that they were made before;
        graph: of a partial topology, None: full; limited: peers have a limited number of contacts."""
        self._view, self._start, self._samples = view, start, samples
        self._make, self._graph, self._limited = make_fingerprints, graph, limited
        self._own: Published | None = None

    def view(self, round: int) -> View:
        return self._view

    def fingerprints(self, round: int, renew: int, active: Tensor, needed: bool) -> Heard | None:
        if round > 1 and not (renew and (round - 1) % renew == 0):
            return None
        view = self._view
        prints = self._make((round - 1) // renew if renew else 0)
        if isinstance(prints, Fingerprints):
            prints = prints.to(view.me.device)
        sent = self._fingerprint_bytes(prints, active.to(view.me.device), slice(None))
        return Heard(view, prints, view.me, self._limited, sent)

    def _fingerprint_bytes(self, prints: Fingerprints | PrivateFingerprints, active: Tensor, mine: slice) -> float:
        """Every active peer receives those of the active peers in the keyed sample, and those of its contacts.

        Private fingerprints are small, and every active peer receives all of them.
        prints, active: of all peers; mine: those of this process, whose bytes are counted.
        """
        view = self._view
        sent = torch.where(active, prints.bytes.to(active.device), 0)
        sample = torch.arange(len(sent), device=sent.device)
        if isinstance(prints, Fingerprints):
            sample = sampled(prints, sample, int(view.seed[0]))
        outside = sent.index_fill(0, sample, 0)
        inside = sent - outside
        if self._graph is None:
            received = inside.sum() - inside[mine]
        else:
            received = weighted_hops(self._graph, inside.cpu())[mine].to(view.me.device)
        if bool(outside.any()):
            received = received + (outside[view.contacts.clamp(min=0)] * view.hops * view.known).sum(1)
        return float(received[active[mine]].sum())

    def publish(self, round: int, own: Published) -> None:
        self._own = own

    def fetch(self, round: int, met: Tensor, updates: bool) -> LocalModels:
        own = self._own
        assert own is not None
        return LocalModels(
            met,
            own.federation.rows,
            own.federation.kept,
            own.before,
            self._start,
            own.diverged,
            own.trained,
            self._samples,
            own.tables,
            self._view.contacts,
            self._table_bytes(own.tables),
        )

    def _table_bytes(self, tables: Mapping[str, Tensor]) -> Tensor | None:
        """[N]: what each peer hands over with its model, the entries it has of peers it knows."""
        if not tables:
            return None
        empty = torch.stack([table.isnan() for table in tables.values()]).all(0)
        return table_bytes((self._view.known & ~empty).sum(1), len(tables))

    def merged(self, round: int) -> None:
        self._own = None

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def numbers(self) -> dict[str, Any]:
        return {}

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any], memory: Memory) -> Memory:
        return memory
