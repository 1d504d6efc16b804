"""What happens between real peers in a round: the simulator's exchange, for one row, with a network in between.

Every decision, draw, measure and merge is the simulator's own code on one row, so that in lockstep a peer does what it
would do in a simulation, on a CPU bit for bit. Models are where the peer trains; all else is on the CPU.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Any, TypeVar

import torch
from torch import Tensor

from homophily.federation.merging import Merge, needs_similarity
from homophily.federation.rows import Federation
from homophily.federation.view import View
from homophily.fingerprints.fingerprint import Fingerprints, checked, print_bytes
from homophily.methods.base import Memory, Method, Now, nothing_told
from homophily.methods.dispatch import chooses, compares, meets, remembered
from homophily.peer.blob_transfer import Mail, Parcel
from homophily.peer.identity import Refused
from homophily.peer.membership import Announcer, Members
from homophily.peer.received import Gathered, Me, looked_up
from homophily.peer.transport import Unanswered
from homophily.peer.wire import (
    Expected,
    ModelParcel,
    pack_before,
    pack_model,
    pack_print,
    shared_tables,
    unpack_before,
    unpack_model,
    unpack_print,
)
from homophily.simulation.asking import Steps
from homophily.simulation.communication import Traffic
from homophily.simulation.exchange import nominal_models
from homophily.simulation.pairwise import Measurer

T = TypeVar("T")
_log = logging.getLogger("homophily.peer")
_A_WHILE = 1.0  # seconds
Print = tuple[Tensor, Tensor, int]  # mean [d], factor [F, d] and count of a fingerprint
_PROPORTION = 2.0**16  # of the largest numbers of fingerprints, beyond which float64 cannot compare them


@dataclass(frozen=True)
class Pace:
    """How peers keep step. lockstep: everyone waits for everyone; else nobody waits beyond a deadline."""

    lockstep: bool
    deadline: float  # seconds
    staleness: int  # rounds that a model may be old
    wait_for: int  # others that must be there before the first round
    hello: float  # seconds to hear of others who have begun
    far: dict[str, int] | None = None  # hops to each of the others that must be there, where they are known

    @property
    def ahead(self) -> int:
        """Rounds that one may be ahead of most of the others, at a free pace."""
        return max(1, (self.staleness - 1) // 2)

    @property
    def behind(self) -> int:
        """Or behind them: the model of the last is then young enough for the first, who is a round further yet."""
        return max(0, self.staleness - 1 - self.ahead)


@dataclass
class FieldExchange:
    """One peer's side. Its book is everyone allowed, ids ascending; known are those it can reach at the moment."""

    method: Method
    merge: Merge
    measurer: Measurer | None
    start: Tensor  # [1, D]: the model before the first round
    samples: int
    me: int
    seed: int
    book: dict[int, str]  # names by id, ascending
    expected: Expected
    introduce: Callable[[], Fingerprints]  # one's own fingerprint
    pace: Pace
    mail: Mail
    members: Members
    announcer: Announcer
    memory: Memory = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.traffic = Traffic(1, torch.device("cpu"))
        self._ids = torch.tensor(list(self.book), dtype=torch.int64)
        self._names = list(self.book.values())
        self._prints: dict[str, tuple[int, Print]] = {}  # by name: the round it is of, and it
        self._own_print: Fingerprints | None = None
        self._renewal = -1  # that it is of
        self._printed, self._hash = -1, ""  # the number under which it is known, and what it is
        self.unreachable: list[str] = []

    # Before training

    def before_training(self, federation: Federation, round: int, active: Tensor) -> Tensor:
        """Everyone trains from its own model; introductions come first, and again when someone new is there."""
        if self.method.introduces:
            self._introduce(round)
        return active

    def come_together(self, round: int, waiting: Callable[[], None] = lambda: None) -> None:
        """Before the first round, wait for enough others, however long; who comes back waits for a word of anyone.

        waiting: called at once, and every second while it waits for the others.
        """
        self.announcer.announce(merged=round)
        waiting()
        if round == 0 and self.pace.wait_for:
            missing: list[str] = []
            while not self.members.wait(self._together, _A_WHILE):
                waiting()
                there = self.members.hops()
                if missing != (missing := [name for name in self._names if name not in there]):
                    _log.info("waiting for %d others; not there: %s", self.pace.wait_for, ", ".join(missing))
        elif self.book:
            self.members.wait(lambda: bool(self.members.alive()), self.pace.hello)

    def _together(self) -> bool:
        hops = self.members.hops()
        return len(hops) >= self.pace.wait_for if self.pace.far is None else hops == self.pace.far

    def keep_pace(self, round: int, last: int, behind: int) -> int:
        """The round to go on from: one's own, or that of the others where one is more than that many behind.

        At a free pace whoever is ahead of most of the others waits for them a while.
        """
        if not self.pace.lockstep:
            slow = round + 1 - self.pace.ahead
            self.members.wait(
                lambda: not self.members.playing() or self.members.current_round() >= slow, self.pace.deadline
            )
        current = min(self.members.current_round(), last) - 1
        if current - round <= behind:
            return round
        _log.info("goes on after round %d, where half of the others are, and not after %d", current, round)
        self.announcer.announce(merged=current)
        return current

    def _introduce(self, round: int) -> None:
        due = (round - 1) // self.method.renew if self.method.renew else 0
        deadline = time.monotonic() + self.pace.deadline
        if self._own_print is None or due > self._renewal:
            if self.pace.lockstep and due:  # a new one replaces the last: wait until everyone has fetched that
                last = (due - 1) * self.method.renew + 1
                self._wait(lambda name: self.members.status(name).round >= last, deadline)
            self._own_print, self._renewal = self.introduce(), due
            mean, factor, count = self._own_print.mean[0], self._own_print.factor[0], int(self._own_print.count[0])
            packed = pack_print(mean, factor, count, self.expected.network)
            before, self._hash = self._hash, blake2b(packed, digest_size=16).hexdigest()
            self._printed = max(due, self._printed + (self._hash != before))  # who comes back may have other data
            self.mail.publish("print", self._printed, packed)
            self.announcer.announce(printed=self._printed)
            if self.pace.lockstep:
                self._wait(lambda name: self.members.status(name).printed >= due, deadline)
        if self._fetch_prints(deadline) or "weights" not in self.memory:
            self._acquaint()

    def _fetch_prints(self, deadline: float) -> bool:
        """Fetch and count the fingerprints that are new; whether there are any.

        Each is counted when it comes: after a restart, and when its peer has made another one, it travels again.
        """
        hops = self.members.hops()
        said = {name: self.members.status(name).printed for name in hops}
        wanted = [
            Parcel(name, "print", stamp)
            for name, stamp in said.items()
            if stamp >= 0 and self._prints.get(name, (-1,))[0] < stamp
        ]
        assert self._own_print is not None
        unpack = partial(unpack_print, buckets=self._own_print.mean.shape[1], network=self.expected.network)
        new = self._unpacked(wanted, deadline, unpack)
        self._prints |= {parcel.origin: (parcel.round, made) for parcel, made in new.items()}
        sizes = {parcel.origin: print_bytes(len(mean), torch.tensor(count)) for parcel, (mean, _, count) in new.items()}
        self.traffic.extra_bytes(float(sum(int(size) * hops[name] for name, size in sizes.items())))
        return bool(new)

    def _unpacked(self, wanted: list[Parcel], deadline: float, unpack: Callable[[bytes], T]) -> dict[Parcel, T]:
        """Parcels as far as they come in time and are what they must be. In lockstep, asked for until they come."""
        out: dict[Parcel, T] = {}
        while wanted:
            unanswered = []
            for parcel, found in self.mail.fetch_all(wanted, unpack, deadline).items():
                if isinstance(found, Refused):
                    self.mail.refusals.add(found, parcel.origin)
                elif isinstance(found, Unanswered):
                    unanswered.append(parcel)
                else:
                    out[parcel] = found
            again = self.pace.lockstep and time.monotonic() < deadline
            wanted = [parcel for parcel in unanswered if again and parcel.origin in self.members.alive()]
        return out

    def _acquaint(self) -> None:
        own = self._own_print
        assert own is not None
        others = {id: self._prints[name][1] for id, name in self.book.items() if name in self._prints}
        mine = own.mean[0], own.factor[0], int(own.count[0])
        for id in _out_of_proportion({**others, self.me: mine}) & set(others):
            self.mail.refusals.add("fingerprint out of proportion", self.book[id])
            del others[id]
        everyone = dict(sorted({**others, self.me: mine}.items()))
        most = max(len(factor) for _, factor, _ in everyone.values())
        prints = checked(
            torch.stack([mean for mean, _, _ in everyone.values()]),
            torch.stack([torch.nn.functional.pad(f, (0, 0, 0, most - len(f))) for _, f, _ in everyone.values()]),
            torch.tensor([count for _, _, count in everyone.values()]),
        )
        view = self._view()
        all_known = replace(view, known=torch.ones_like(view.known))  # who is away now may come back
        found = self.method.acquainted(all_known, prints, torch.tensor(list(everyone)))
        self.memory = self.memory | remembered(found, 1)

    # After training

    def wants_rows_before(self, round: int) -> bool:
        return self.measurer is not None and self.measurer.needs.updates

    def after_training(
        self, federation: Federation, before: Tensor | None, round: int, stopped: Tensor, sick: Tensor
    ) -> Steps:
        """Publish, meet, pull, measure, choose and merge; the round's line of metrics."""
        yield from ()  # all that is needed is here or on the network
        deadline = time.monotonic() + self.pace.deadline
        if self.pace.lockstep:  # the shelf holds two rounds: who is still merging the one before the last needs it
            self._wait(lambda name: self.members.status(name).merged >= round - 2, deadline)
        self._publish(federation, before, round, bool(sick[0]))
        view = self._view(0 if self.pace.lockstep else max(1, round - self.pace.staleness))
        now = Now(view, round, dict(self.memory))
        asked = meets(self.method, now)
        met = asked & view.known & ~stopped[:, None]
        measures = self.measurer is not None and (needs_similarity(self.merge) or compares(self.method, now))
        updates = measures and before is not None
        found = self._pull(view, met, round, updates)
        met = met & torch.tensor([[name in found for name in self._names]], dtype=torch.bool)
        parcels = [found[name] for name in self._who(met)]
        me = Me(self.me, self.samples, self.start, self._ids)
        here = Gathered(me, federation, before if updates else None, met, parcels, bool(sick[0]))
        similarity = here.similarity(self.measurer) if self.measurer is not None and measures else None
        now = Now(view, round, dict(self.memory), here.told if self.method.shares else nothing_told)
        wanted = similarity if compares(self.method, now) else None
        partners = chooses(self.method, now, asked, met, wanted)
        if not bool(stopped[0]):
            blind = similarity is not None and self.measurer is not None and self.measurer.needs.own_model
            self.memory = now.memory | (self.memory if blind and bool(sick[0]) else {})
        merged = here.merge(self.merge, partners, similarity)
        self._bill(federation.layout.model_bytes, view.hops, found)
        self.announcer.announce(merged=round)
        return {
            "neighbour_precision": None,
            "neighbour_recall": None,
            "same_cluster_merges": None,
            "models_sent_per_peer": float(self.traffic.received.double().mean()),
            "met": self._who(met),
            "merged": self._who(merged),
            "unreachable": self.unreachable,
            **({"similarities": self._similarities(met, similarity)} if similarity is not None else {}),
        }

    def _publish(self, federation: Federation, before: Tensor | None, round: int, sick: bool) -> None:
        shared = federation.layout.mask(shared=True)
        memory = {name: self.memory[name][0] for name in self.method.shares if name in self.memory}
        tables, about = shared_tables(memory, self._ids, self._view().known[0])
        row = None if sick else federation.rows[0].cpu()[shared]
        if before is not None and row is not None:
            self.mail.publish("before", round, pack_before(before[0].cpu()[shared], self.expected.network))
        parcel = ModelParcel(row, self.samples, tables, about)
        self.mail.publish("model", round, pack_model(parcel, self.expected.network))
        self.announcer.announce(trained=round)

    def _bill(self, model_bytes: int, hops: Tensor, found: dict[str, ModelParcel]) -> None:
        """Count what came. A model that has diverged did not, the tables of its peer did."""
        came = [found.get(name) for name in self._names]
        models = torch.tensor([[parcel is not None and parcel.row is not None for parcel in came]], dtype=torch.bool)
        beside = torch.tensor([[0 if parcel is None else parcel.bytes_beside for parcel in came]], dtype=torch.int64)
        self.traffic.count(models, hops, model_bytes, beside)

    def _pull(self, view: View, met: Tensor, round: int, updates: bool) -> dict[str, ModelParcel]:
        """The models of those met, as far as they come in time: in lockstep this round's, else the freshest.

        updates: also as they were before training, for who is compared by what training changed.
        """
        deadline = time.monotonic() + self.pace.deadline
        names = self._who(met)
        if self.pace.lockstep:
            self._wait(lambda name: self.members.status(name).trained >= round, deadline, names)
        wanted = {name: self._newest(name, round) for name in names}
        found = self._models(wanted, deadline, round if updates else None)
        if not self.pace.lockstep:  # a model may have made way for the next while it was asked for
            newer = {name: self.members.status(name).trained for name in names if name not in found}
            newer = {name: last for name, last in newer.items() if last > wanted[name]}
            found |= self._models(newer, deadline, round if updates else None)
        self.unreachable = [name for name in names if name not in found]
        return found

    def _newest(self, name: str, round: int) -> int:
        """The round of the model to ask for: in lockstep this one, or the last of who has stopped before it."""
        status = self.members.status(name)
        if not self.pace.lockstep:
            return status.trained
        return min(status.trained, round) if status.finished else round

    def _models(self, rounds: dict[str, int], deadline: float, updated_in: int | None) -> dict[str, ModelParcel]:
        """The models of these rounds by name. updated_in: the round played, where their updates are wanted, too."""
        wanted = [Parcel(name, "model", round) for name, round in rounds.items()]
        came = self._unpacked(wanted, deadline, lambda data: unpack_model(data, self.expected))
        found = {parcel.origin: model for parcel, model in came.items()}
        return found if updated_in is None else self._with_updates(found, rounds, deadline, updated_in)

    def _with_updates(
        self, found: dict[str, ModelParcel], rounds: dict[str, int], deadline: float, round: int
    ) -> dict[str, ModelParcel]:
        """The same models, and what they were before training; those of which that does not come are left out.

        In lockstep a peer whose model is of an earlier round has stopped, and nothing has changed in this one.
        """
        trained = [
            name
            for name, model in found.items()
            if model.row is not None and (rounds[name] == round or not self.pace.lockstep)
        ]
        wanted = [Parcel(name, "before", rounds[name]) for name in trained]
        came = self._unpacked(wanted, deadline, lambda data: unpack_before(data, self.expected))
        before = {parcel.origin: rows for parcel, rows in came.items()}
        late = set(trained) - set(before)
        return {name: replace(model, before=before.get(name)) for name, model in found.items() if name not in late}

    def _wait(self, ready: Callable[[str], bool], deadline: float, names: list[str] | None = None) -> None:
        """Until everyone (or those named) who is alive is ready or has finished, or the time is over."""

        def enough() -> bool:
            alive = self.members.alive()
            waited_for = alive if names is None else set(alive) & set(names)
            return all(self.members.status(name).finished or ready(name) for name in waited_for)

        self.members.wait(enough, max(0.0, deadline - time.monotonic()))

    def _view(self, oldest: int = 0) -> View:
        """Known are those within reach whose model is of that round or a later one."""
        far = {name: hops for name, hops in self.members.hops().items() if self.members.status(name).trained >= oldest}
        hops = torch.tensor([[far.get(name, 0) for name in self._names]], dtype=torch.int64)
        known = (hops > 0) & (hops <= self.method.hops)
        return View(torch.tensor([self.me]), torch.tensor([self.seed]), self._ids[None], known, hops.clamp(min=1), None)

    def _who(self, some: Tensor) -> list[str]:
        return [name for name, there in zip(self._names, some[0].tolist(), strict=True) if there]

    def _similarities(self, met: Tensor, similarity: Tensor) -> dict[str, float]:
        values = similarity[0].tolist()
        return {name: values[i] for i, name in enumerate(self._names) if bool(met[0, i])}

    # The end, and in between

    def summary(self, rounds: int) -> dict[str, Any]:
        return {
            "neighbour_precision": None,
            "neighbour_recall": None,
            "same_cluster_merges": None,
            **self.traffic.summary(rounds),
            "nominal_models_per_peer": nominal_models(self.method, self.merge, self.measurer, self._view(), rounds),
            "notes": [] if bool(self.traffic.received.any()) else ["no model of another peer ever came"],
        }

    def final(self) -> dict[str, Tensor]:
        return {}

    def tensors(self) -> dict[str, Tensor]:
        memory = {f"memory/{name}": table for name, table in self.memory.items()}
        return {"received": self.traffic.received, "book": self._ids, **memory}

    def numbers(self) -> dict[str, Any]:
        own = {"printed": self._printed, "print": self._hash}
        return {"traffic": self.traffic.numbers(), "announced": self.announcer.last, **own}

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Go on; of those who are still allowed everything is remembered."""
        tensors = {name: tensor.cpu() for name, tensor in tensors.items()}
        self.traffic.restore(tensors["received"], numbers["traffic"])
        self.announcer.go_on_after(numbers["announced"])
        self._printed, self._hash = numbers["printed"], numbers["print"]
        self.memory = {n.removeprefix("memory/"): t for n, t in tensors.items() if n.startswith("memory/")}
        if not torch.equal(tensors["book"], self._ids):
            kept = {} if self.method.introduces else self.memory  # introductions come anew
            self.memory = {name: self._in_this_book(table, tensors["book"]) for name, table in kept.items()}

    def _in_this_book(self, table: Tensor, before: Tensor) -> Tensor:
        """What was remembered of the peers ``before`` [1, B]; of the new ones nothing."""
        if table.dim() != 2 or table.shape[1] != len(before):
            return table
        return looked_up(table, before, self._ids, self.method.unknown if table.is_floating_point() else 0)


def _out_of_proportion(prints: dict[int, Print]) -> set[int]:
    """Whose fingerprints have numbers so much larger than most others' that nothing beside them could be seen."""
    usable = {id: (mean, factor) for id, (mean, factor, count) in prints.items() if count >= 2}
    if not usable:
        return set()
    largest = torch.tensor([float(torch.cat([mean[None], factor]).abs().max()) for mean, factor in usable.values()])
    return {id for id, much in zip(usable, (largest > _PROPORTION * largest.median()).tolist(), strict=True) if much}
