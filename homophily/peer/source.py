"""The network as a source of models: a real peer publishes its own and fetches those of the peers that it meets.

Models are on the device on which the peer trains; all else is on the CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, TypeVar

import torch
from torch import Tensor

from homophily.federation.layout import Layout
from homophily.federation.view import View
from homophily.peer.blob_transfer import BlobId, BlobTransfer
from homophily.peer.identity import Refused
from homophily.peer.manifest import BlobKind
from homophily.peer.membership import Announcer, Members
from homophily.peer.pacing import Pacing
from homophily.peer.prints import PrintForm
from homophily.peer.releases import Releases
from homophily.peer.transport import NoAnswer
from homophily.peer.wire import (
    ExpectedModel,
    ModelMessage,
    pack_before,
    pack_model,
    shared_tables,
    unpack_before,
    unpack_model,
)
from homophily.simulation.sources import Heard, LocalModels, Memory, Published

T = TypeVar("T")
_MAX_RATIO = 2.0**16  # of the largest values of two fingerprints, beyond which float64 cannot compare others


@dataclass(frozen=True)
class LocalPeer:
    """What does not change between rounds: this peer's id, seed, start and contacts."""

    id: int
    seed: int
    samples: int
    start: Tensor  # [1, D]: the model before the first round
    contacts: dict[int, str]  # names of the other peers by id, ascending
    hops: int  # peers within this many hops are in reach
    unknown: float  # the value in the method's tables for a peer of which nothing is known
    resets: bool  # the method discards its memory when the contacts change, and starts again from fingerprints


class NetworkSource:
    """Other peers' models over the network. Contacts are all peers in peer.allow; known are those in reach now."""

    asynchronous = True
    has_all_peers = False

    def __init__(
        self,
        me: LocalPeer,
        layout: Layout,
        expected: ExpectedModel,
        prints: PrintForm,
        releases: Releases | None,
        transfer: BlobTransfer,
        members: Members,
        announcer: Announcer,
        pacing: Pacing,
    ) -> None:
        """prints: how fingerprints are made and compared; releases: under [privacy], else None."""
        self._me, self._layout, self._expected = me, layout, expected
        self._form, self._releases = prints, releases
        self._transfer, self._members, self._announcer, self._pacing = transfer, members, announcer, pacing
        self._ids = torch.tensor(list(me.contacts), dtype=torch.int64)
        self._names = list(me.contacts.values())
        self._own: Published | None = None
        self._prints: dict[str, tuple[int, Any]] = {}  # by name: the round it is of, and it
        self._own_print: Any = None  # as it was sent
        self._renewal = -1  # renewal in which the own fingerprint was made
        self._printed, self._hash = -1, ""  # number of the own fingerprint, by which others request it, and its hash
        self.unreachable: list[str] = []  # peers that were met in the last round, and whose models did not come

    def view(self, round: int) -> View:
        """Known are the peers in reach whose model is fresh enough for this round."""
        policy = self._pacing.policy
        oldest = 0 if policy.lockstep else max(1, round - policy.staleness)
        return self._view(oldest)

    def _view(self, oldest: int) -> View:
        """Known are the peers in reach whose model is of that round or a later one."""
        members = self._members
        far = {name: hops for name, hops in members.hops().items() if members.status(name).trained >= oldest}
        hops = torch.tensor([[far.get(name, 0) for name in self._names]], dtype=torch.int64)
        known = (hops > 0) & (hops <= self._me.hops)
        me, seed = torch.tensor([self._me.id]), torch.tensor([self._me.seed])
        return View(me, seed, self._ids[None], known, hops.clamp(min=1), None)

    # Fingerprints

    def fingerprints(self, round: int, renew: int, active: Tensor, needed: bool) -> Heard | None:
        due = (round - 1) // renew if renew else 0
        deadline = time.monotonic() + self._pacing.policy.deadline
        if self._own_print is None or due > self._renewal:
            self._publish_fingerprint(due, (due - 1) * renew + 1, deadline)
        received = self._fetch_prints(deadline)
        if received is None and not needed:
            return None
        return self._heard(received or 0.0)

    def _publish_fingerprint(self, due: int, last: int, deadline: float) -> None:
        """Make and publish this peer's fingerprint. last: the round before which the previous one was made."""
        lockstep = self._pacing.policy.lockstep
        if lockstep and due:  # a new one replaces the last: wait until everyone has fetched that
            self._pacing.wait(lambda name: self._members.status(name).round >= last, deadline)
        packed = self._form.make(due)
        self._own_print, self._renewal = self._form.unpack(packed), due
        before, self._hash = self._hash, blake2b(packed, digest_size=16).hexdigest()
        self._printed = max(due, self._printed + (self._hash != before))  # after a restart a peer may have other data
        self._transfer.publish("print", self._printed, packed)
        self._announcer.announce(printed=self._printed)
        if lockstep:
            self._pacing.wait(lambda name: self._members.status(name).printed >= due, deadline)

    def _fetch_prints(self, deadline: float) -> float | None:
        """Fetch new fingerprints and return the bytes that were sent; None if there are none.

        Each is counted when it comes: after a restart, and when its peer has made another one, it travels again.
        """
        hops = self._members.hops()
        said = {name: self._members.status(name).printed for name in hops}
        wanted = [
            BlobId(name, "print", stamp)
            for name, stamp in said.items()
            if stamp >= 0 and self._prints.get(name, (-1,))[0] < stamp
        ]
        new = self._unpacked(wanted, deadline, self._form.unpack)
        self._prints |= {blob.origin: (blob.round, made) for blob, made in new.items()}
        return float(sum(self._form.size(made) * hops[blob.origin] for blob, made in new.items())) if new else None

    def _heard(self, received: float) -> Heard:
        contacts = self._me.contacts
        others = {id: self._prints[name][1] for id, name in contacts.items() if name in self._prints}
        everyone = {**others, self._me.id: self._own_print}
        for id in too_large({id: self._form.largest(made) for id, made in everyone.items()}) & set(others):
            self._transfer.refusals.add("fingerprint values too large to compare", contacts[id])
            del everyone[id]
        everyone = dict(sorted(everyone.items()))
        prints = self._form.together(list(everyone.values()))
        view = self._view(0)
        view = replace(view, known=torch.ones_like(view.known))  # a peer that is offline now may come back
        return Heard(view, prints, torch.tensor(list(everyone)), False, received)

    # Models

    def publish(self, round: int, own: Published) -> None:
        self._own = own
        if self._pacing.policy.lockstep:  # two rounds stay published: a slower peer may still merge the last but one
            deadline = time.monotonic() + self._pacing.policy.deadline
            self._pacing.wait(lambda name: self._members.status(name).merged >= round - 2, deadline)
        shared = self._layout.mask(shared=True)
        memory = {name: table[0] for name, table in own.tables.items()}
        tables, about = shared_tables(memory, self._ids, self._view(0).known[0])
        row = None if bool(own.diverged[0]) else own.federation.rows[0].cpu()[shared]
        blobs: dict[BlobKind, bytes] = {}
        if own.before is not None and row is not None:
            blobs["before"] = pack_before(own.before[0].cpu()[shared], self._expected.network)
        blobs["model"] = pack_model(ModelMessage(row, self._me.samples, tables, about), self._expected.network)
        if self._releases is not None:
            blobs = self._releases.models(round, own.federation.rows[0].cpu(), blobs)
        self._send(round, blobs)
        self._announcer.announce(trained=round)

    def _send(self, round: int, blobs: Mapping[BlobKind, bytes]) -> None:
        for kind, data in blobs.items():
            self._transfer.publish(kind, round, data)

    def fetch(self, round: int, met: Tensor, updates: bool) -> LocalModels:
        own = self._own
        assert own is not None
        found = self._pull(self.named(met), round, updates)
        met = met & torch.tensor([[name in found for name in self._names]], dtype=torch.bool)
        messages = [found[name] for name in self.named(met)]
        rows = torch.cat([own.federation.rows, *(self._whole(message.row) for message in messages)])
        before = None
        if updates and own.before is not None:
            earlier = [m.row if m.before is None else m.before for m in messages]  # None: it has not trained
            before = torch.cat([own.before, *map(self._whole, earlier)])
        tables, contacts = _stacked_tables(messages, self._expected.tables)
        return LocalModels(
            met,
            rows,
            own.federation.kept,
            before,
            self._me.start.expand(len(rows), -1),
            torch.tensor([bool(own.diverged[0]), *(message.row is None for message in messages)]),
            torch.tensor([True, *(message.before is not None for message in messages)]),
            torch.tensor([self._me.samples, *(message.samples for message in messages)]),
            tables,
            contacts,
            torch.tensor([0, *(message.table_bytes for message in messages)]),
            torch.cat([torch.tensor([self._me.id]), self._ids[met[0]]]),
        )

    def named(self, some: Tensor) -> list[str]:
        """The names of a set of contacts [1, B] bool."""
        return [name for name, chosen in zip(self._names, some[0].tolist(), strict=True) if chosen]

    def ids_of(self, names: Sequence[str]) -> Tensor:
        """The ids of contacts."""
        return self._ids[[self._names.index(name) for name in names]]

    def _whole(self, parameters: Tensor | None) -> Tensor:
        """Received parameters joined with this peer's personal ones: [1, D]; NaN if the received model has diverged."""
        assert self._own is not None
        row = self._own.federation.rows.clone()
        shared = self._layout.mask(shared=True).to(row.device)
        row[0, shared] = torch.nan if parameters is None else parameters.to(row.device)
        return row

    def _pull(self, names: Sequence[str], round: int, updates: bool) -> dict[str, ModelMessage]:
        """Fetch the models of these peers, as far as they arrive in time: in lockstep of this round, else the newest.

        updates: also as they were before training.
        """
        lockstep = self._pacing.policy.lockstep
        deadline = time.monotonic() + self._pacing.policy.deadline
        if lockstep:
            self._pacing.wait(lambda name: self._members.status(name).trained >= round, deadline, names)
        wanted = {name: self._newest(name, round) for name in names}
        found = self._models(wanted, deadline, round if updates else None)
        if not lockstep:  # a model may have made way for the next while it was asked for
            newer = {name: self._members.status(name).trained for name in names if name not in found}
            newer = {name: last for name, last in newer.items() if last > wanted[name]}
            found |= self._models(newer, deadline, round if updates else None)
        self.unreachable = [name for name in names if name not in found]
        return found

    def _newest(self, name: str, round: int) -> int:
        """The round of the model to ask for: in lockstep this one, or the last of a peer that stopped before it."""
        status = self._members.status(name)
        if not self._pacing.policy.lockstep:
            return status.trained
        return min(status.trained, round) if status.finished else round

    def _models(self, rounds: Mapping[str, int], deadline: float, updated_in: int | None) -> dict[str, ModelMessage]:
        """The models of these rounds by name. updated_in: this round, if their updates are wanted as well."""
        wanted = [BlobId(name, "model", round) for name, round in rounds.items()]
        came = self._unpacked(wanted, deadline, lambda data: unpack_model(data, self._expected))
        found = {blob.origin: model for blob, model in came.items()}
        return found if updated_in is None else self._with_updates(found, rounds, deadline, updated_in)

    def _with_updates(
        self, found: Mapping[str, ModelMessage], rounds: Mapping[str, int], deadline: float, round: int
    ) -> dict[str, ModelMessage]:
        """Add to each model what it was before training; a model for which that does not arrive is left out.

        In lockstep a peer whose model is of an earlier round has stopped, and nothing has changed in this one.
        """
        trained = [
            name
            for name, model in found.items()
            if model.row is not None and (rounds[name] == round or not self._pacing.policy.lockstep)
        ]
        wanted = [BlobId(name, "before", rounds[name]) for name in trained]
        came = self._unpacked(wanted, deadline, lambda data: unpack_before(data, self._expected))
        before = {blob.origin: rows for blob, rows in came.items()}
        late = set(trained) - set(before)
        return {name: replace(model, before=before.get(name)) for name, model in found.items() if name not in late}

    def _unpacked(self, wanted: list[BlobId], deadline: float, unpack: Callable[[bytes], T]) -> dict[BlobId, T]:
        """Fetch blobs and return those that arrive in time and are valid. In lockstep, retry until the deadline."""
        out: dict[BlobId, T] = {}
        while wanted:
            unanswered = []
            for blob, found in self._transfer.fetch_all(wanted, unpack, deadline).items():
                if isinstance(found, Refused):
                    self._transfer.refusals.add(found, blob.origin)
                elif isinstance(found, NoAnswer):
                    unanswered.append(blob)
                else:
                    out[blob] = found
            again = self._pacing.policy.lockstep and time.monotonic() < deadline
            wanted = [blob for blob in unanswered if again and blob.origin in self._members.alive()]
        return out

    def merged(self, round: int) -> None:
        self._own = None
        self._announcer.announce(merged=round)

    # Checkpoints

    def tensors(self) -> dict[str, Tensor]:
        return {"contacts": self._ids}

    def numbers(self) -> dict[str, Any]:
        return {"printed": self._printed, "print": self._hash, "announced": self._announcer.last}

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any], memory: Memory) -> Memory:
        """Restore a checkpoint; the memory keeps everything about the peers that are still in peer.allow."""
        self._announcer.continue_after(numbers["announced"])
        if self._releases is not None:
            for round, blobs in self._releases.published().items():
                self._send(round, blobs)
        self._printed, self._hash = numbers["printed"], numbers["print"]
        before = tensors["contacts"]
        if torch.equal(before, self._ids):
            return memory
        if self._me.resets:
            return {}
        return {name: self._about_contacts(table, before) for name, table in memory.items()}

    def _about_contacts(self, table: Tensor, before: Tensor) -> Tensor:
        """A table over the contacts ``before`` [B] as one over the current contacts; new ones get the unknown value."""
        if table.dim() != 2 or table.shape[1] != len(before):
            return table
        return _looked_up(table, before, self._ids, self._me.unknown if table.is_floating_point() else 0)


def _looked_up(table: Tensor, contacts: Tensor, wanted: Tensor, nothing: float) -> Tensor:
    """The columns of the wanted ids [W] in a table over ``contacts``, ascending ids [..., B]; else ``nothing``."""
    if not len(contacts):
        return table.new_full((*table.shape[:-1], len(wanted)), nothing)
    place = torch.searchsorted(contacts, wanted).clamp(max=len(contacts) - 1)
    return table[..., place].masked_fill(contacts[place] != wanted, nothing)


def _stacked_tables(messages: Sequence[ModelMessage], names: Sequence[str]) -> tuple[dict[str, Tensor], Tensor]:
    """The tables that peers share, a row for each and an empty one for this peer, and the ids that they are about."""
    most = max((len(m.contacts) for m in messages if m.contacts is not None), default=0)
    contacts = torch.full((1 + len(messages), most), -1, dtype=torch.int64)
    tables = {name: torch.full((1 + len(messages), most), torch.nan, dtype=torch.float64) for name in names}
    for row, message in enumerate(messages, start=1):
        if message.contacts is not None:
            contacts[row, : len(message.contacts)] = message.contacts
            for name, table in message.tables.items():
                tables[name][row, : len(table)] = table
    return tables, contacts


def too_large(largest: Mapping[int, float | None]) -> set[int]:
    """Ids of the fingerprints whose values are so large that float64 could not compare the others beside them.

    largest: the largest value of each; None: it says nothing.
    """
    values = {id: value for id, value in largest.items() if value is not None}
    if not values:
        return set()
    found = torch.tensor(list(values.values()))
    return {id for id, much in zip(values, (found > _MAX_RATIO * found.median()).tolist(), strict=True) if much}
