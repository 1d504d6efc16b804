"""The source of models if the peers of a run are divided among processes: rows of other processes are sent here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from homophily.federation.view import View
from homophily.fingerprints.fingerprint import Fingerprints
from homophily.fingerprints.private import PrivateFingerprints
from homophily.simulation.shards import Shards, largest, rows_of
from homophily.simulation.sources import Heard, InMemory, LocalModels, Losses, Published


class Sharded(InMemory):
    """Each process has the rows of its own peers, and asks the others for exactly those that its peers meet."""

    asynchronous = True  # a process that compares nothing may be asked for updates by another

    def __init__(
        self,
        view: View,
        start: Tensor,
        samples: Tensor,
        make_fingerprints: Callable[[int], Fingerprints | PrivateFingerprints],
        graph: Any,
        limited: bool,
        shards: Shards,
        peers: int,
        displacement: bool,
    ) -> None:
        """view, start, samples, fingerprints: of this process's P peers; peers: N; displacement: the metric
        compares models with those before the first round."""
        super().__init__(view, start, samples, make_fingerprints, graph, limited)
        self._shards, self._peers, self._displacement = shards, peers, displacement
        bounds = [shards.mine(peers, rank).stop for rank in range(shards.size)]
        self._ends = torch.tensor(bounds, device=view.me.device)

    def fingerprints(self, round: int, renew: int, active: Tensor, needed: bool) -> Heard | None:
        """A process has its own fingerprints, and gathers those of others that the method asks for."""
        if round > 1 and not (renew and (round - 1) % renew == 0):
            return None
        view = self._view
        own = self._make((round - 1) // renew if renew else 0)
        prints: Fingerprints | PrivateFingerprints
        if isinstance(own, Fingerprints):
            prints = _Gathered(own.to(view.me.device), self._shards, self._peers)
        else:  # a few numbers each
            gathered = self._shards.gathered
            prints = PrivateFingerprints(gathered(own.sum), gathered(own.signed), gathered(own.count), own.noise)
        ids = torch.arange(self._peers, device=view.me.device)
        active = self._shards.gathered(active.to(view.me.device))
        sent = self._fingerprint_bytes(prints, active, self._shards.mine(self._peers))
        return Heard(view, prints, ids, self._limited, sent)

    def fetch(self, round: int, met: Tensor, updates: bool) -> LocalModels:
        own, view, shards = self._own, self._view, self._shards
        assert own is not None
        wanted = view.contacts[met].unique()
        mine = shards.mine(self._peers)
        wanted = wanted[(wanted < mine.start) | (wanted >= mine.stop)]
        owner = torch.searchsorted(self._ends, wanted, right=True)
        asked = shards.swapped([wanted[owner == rank] for rank in range(shards.size)])
        asked = [ids - mine.start for ids in asked]

        def joined(table: Tensor) -> Tensor:
            """The rows [P, ...] of this process's peers, then those of the wanted peers."""
            parts = [table[ids.to(table.device)] for ids in asked]
            return torch.cat([table, *shards.swapped(parts)])

        entries, ids = self._table_bytes(own.tables), torch.cat([view.me, wanted])
        return LocalModels(
            met,
            joined(own.federation.rows),
            own.federation.kept,
            joined(own.before) if updates and own.before is not None else None,
            joined(self._start) if self._displacement else None,
            joined(own.diverged),
            joined(own.trained),
            joined(self._samples),
            {name: joined(table) for name, table in own.tables.items()},
            joined(view.contacts) if own.tables else view.contacts,
            None if entries is None else joined(entries),
            ids,
            partial(self._losses_at_owners, own, ids),
        )

    def _losses_at_owners(self, own: Published, ids: Tensor, me: Tensor, you: Tensor, losses: Losses) -> Tensor:
        """[Q] float64: losses of the models in rows me [Q] on the data of the peers ids[you] [Q], where that data is.

        A model travels once to each process that has some of these peers.
        """
        shards, federation, data = self._shards, own.federation, ids[you]
        owner = torch.searchsorted(self._ends, data, right=True)
        pairs = [(owner == rank).nonzero()[:, 0] for rank in range(shards.size)]
        asked = [me[those].unique(return_inverse=True) for those in pairs]
        guests = shards.swapped([federation.rows[models.to(federation.rows.device)] for models, _ in asked])
        wanted = shards.swapped(
            [torch.stack([row, data[those]], 1) for (_, row), those in zip(asked, pairs, strict=True)]
        )
        first, peers = shards.mine(self._peers).start, len(federation.rows)
        answers = [
            losses(torch.cat([federation.rows, rows]), federation.kept, peers + pair[:, 0], pair[:, 1] - first)
            for rows, pair in zip(guests, wanted, strict=True)
        ]
        found = torch.empty(len(me), dtype=torch.float64, device=me.device)
        found[torch.cat(pairs)] = torch.cat(shards.swapped(answers))
        return found


class _Gathered(Fingerprints):
    """The fingerprints of all N peers. Each process has those of its own peers; the tables are gathered when read."""

    _own: Fingerprints
    _shards: Shards
    _peers: int

    def __init__(self, own: Fingerprints, shards: Shards, peers: int) -> None:
        rows = largest(shards, own.factor.shape[1])
        padded = replace(own, factor=torch.nn.functional.pad(own.factor, (0, 0, 0, rows - own.factor.shape[1])))
        small = {name: shards.gathered(getattr(own, name)) for name in ("count", "freedom", "bytes")}
        self.__dict__.update(_own=padded, _shards=shards, _peers=peers, **small)

    @property
    def mean(self) -> Tensor:
        return self._shards.gathered(self._own.mean)

    @property
    def factor(self) -> Tensor:
        return self._shards.gathered(self._own.factor)

    def of(self, peers: Tensor) -> Fingerprints:
        return Fingerprints(*(rows_of(self._shards, table, peers, self._peers) for table in self._own._tables()))

    def each(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        return self._shards.gathered(function(self._own.mean))
