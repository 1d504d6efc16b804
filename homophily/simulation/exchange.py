"""What happens between peers in a round, after training: meet, measure, choose, merge; and what it cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from homophily.errors import UserError
from homophily.federation.merging import Merge, needs_similarity
from homophily.federation.peer_sets import compact
from homophily.federation.rows import Federation, gather
from homophily.federation.view import View
from homophily.fingerprints.fingerprint import Fingerprints
from homophily.methods import dispatch as deciding
from homophily.methods.base import Memory, Method, Now
from homophily.plugins.validation import answer
from homophily.simulation.asking import Comparison, Merging, Steps
from homophily.simulation.communication import Traffic, table_bytes
from homophily.simulation.evaluation import precision_and_recall
from homophily.simulation.merge_counts import MergeCounts
from homophily.simulation.pairwise import ONE_MODEL, Measurer, Models, pairs_met, refuse_nan, table_of

_WATCHED = 4  # peers whose similarities are written down


@dataclass
class PeerExchange:
    """Peers among themselves, by a method's two decisions. Decisions are made where the view is, maybe not on a GPU."""

    method: Method
    view: View
    merge: Merge
    measurer: Measurer | None
    start: Tensor  # [N, D]: the models before the first round
    samples: Tensor  # [N]
    cluster: Tensor | None
    introduce: Callable[[], Fingerprints]  # everyone's fingerprint, for a method that wants them
    distances: Tensor | None = None  # [N, N] hops between all peers of a partial topology
    bounded: bool = False  # peers hear only of those in their books, not of everyone
    memory: Memory = field(default_factory=dict)

    def __post_init__(self) -> None:
        peers = len(self.view.me)
        self.merges = MergeCounts(peers)
        self.traffic = Traffic(peers, self.view.me.device)
        self.neighbours: Tensor | None = None  # [P, B]: whom they held to be alike in the last round played here
        self.restored = self._sparse(torch.zeros_like(self.view.known))  # or before a resume
        self.found: tuple[float | None, float | None] = (None, None)  # precision and recall of that
        self.trained = torch.ones(peers, dtype=torch.bool, device=self.view.me.device)  # in this round

    def before_training(self, federation: Federation, round: int, active: Tensor) -> Tensor:
        """Who trains: every active peer [N] bool, from its own model. Introductions come before the first round."""
        self.trained = active.to(self.view.me.device)
        renew = self.method.renew
        if self.method.introduces and (round == 1 or (renew and (round - 1) % renew == 0)):
            self._introduce()
        return active

    def _introduce(self) -> None:
        view = self.view
        prints = self.introduce().to(view.me.device)
        heard = None
        if self.bounded:
            heard = torch.cat([torch.where(view.known, view.book, -1), view.me[:, None]], dim=1).sort(1).values
        self.memory = self.memory | deciding.remembered(self.method.introduced(view, prints, heard), len(view.me))
        self.traffic.extra_bytes(float(self._fingerprint_bytes(prints)))

    def _fingerprint_bytes(self, prints: Fingerprints) -> Tensor:
        """Every peer that trains receives one from every other that it hears of, over the hops between them.

        A peer that has stopped makes no new fingerprint, and asks for none.
        """
        sent = torch.where(self.trained, prints.bytes, 0)
        if self.bounded or self.distances is None:
            received = (sent[self.view.book.clamp(min=0)] * self.view.hops * self.view.known).sum(1)
        else:
            received = (self.distances * sent).sum(1)
        return received[self.trained].sum()

    def wants_rows_before(self, round: int) -> bool:
        """Whether the models before training are needed in this round: where the metric asks what training changed."""
        return self.measurer is not None and self.measurer.needs.updates and self._measures(round)

    def _measures(self, round: int) -> bool:
        """Whether similarities are measured in this round."""
        return needs_similarity(self.merge) or deciding.compares(self.method, Now(self.view, round, self.memory))

    def after_training(
        self, federation: Federation, before: Tensor | None, round: int, stopped: Tensor, sick: Tensor
    ) -> Steps:
        """Meet, measure, choose and merge; the round's line of metrics.

        To ask who is sick may be to wait for a GPU that is still training, so all that can be done before is.
        """
        stopped = stopped.to(self.view.me.device)
        tables = self._table_bytes()
        asked = deciding.meet(self.method, self.view, round, self.memory)
        met = asked & ~stopped[:, None]
        similarity, unmoved = None, stopped
        if self.measurer is not None and self._measures(round):
            me, you = pairs_met(self.view, met)
            models = Models(federation, before, self.start)
            alike = (yield Comparison(self.measurer, models, me, you)) if len(me) else me.double()
            sick_me, sick_you = (sick.to(you.device)[peers] for peers in (me, you))
            refuse_nan(self.method.metric, alike, ~(sick_me | sick_you))
            similarity = table_of(alike, met, sick_you)
            if self.measurer.needs.own_model:
                unmoved = stopped | sick.to(stopped.device)
        wanted = similarity if deciding.compares(self.method, Now(self.view, round, self.memory)) else None
        partners, memory = deciding.choose(self.method, self.view, round, self.memory, asked, met, wanted)
        self.memory = {name: self._kept(name, table, unmoved) for name, table in memory.items()}
        self.neighbours = deciding.neighbours(self.method, self.view, round, self.memory, partners)
        if self.method.finds:
            found = precision_and_recall(self.view, self.neighbours, stopped)
            self.found = found if found[1] is not None else self.found
        gathering = gather(self.view.book, partners, self.view.me, self.samples, similarity)
        merged = yield Merging(federation, gathering, self.merge, sick)
        self._bill(federation.layout.model_bytes, met, similarity is not None, tables, sick.to(met.device))
        inside = self._inside(self.merges.add(gathering, merged, self.view.me))
        return {
            "neighbour_precision": self.found[0],
            "neighbour_recall": self.found[1],
            "same_cluster_merges": inside,
            "models_sent_per_peer": float(self.traffic.received.double().mean()),
            **({"similarities": self._watched(met, similarity)} if similarity is not None else {}),
        }

    def _kept(self, name: str, table: Tensor, unmoved: Tensor) -> Tensor:
        """What is remembered after a round; who has stopped, or could measure nothing, remembers what it did."""
        if name not in self.memory or not bool(unmoved.any()):
            return table
        before = self.memory[name]
        answer(table, before.shape, f"method: memory[{name!r}] must keep its shape where a peer remembers what it did")
        return torch.where(unmoved.view(-1, *(1 for _ in table.shape[1:])), before, table)

    def _inside(self, pairs: Tensor) -> float | None:
        """Share of the merges [M, 2] between peers of one cluster."""
        if self.cluster is None or not len(pairs):
            return None
        return float((self.cluster[pairs[:, 0]] == self.cluster[pairs[:, 1]]).double().mean())

    def _table_bytes(self) -> Tensor | None:
        """[P]: what each peer hands over with its model, the entries it has of peers it knows; None: nobody does."""
        shared = [self.memory[name] for name in self.method.shares if name in self.memory]
        if not shared:
            return None
        empty = torch.stack([table.isnan() for table in shared]).all(0)
        return table_bytes((self.view.known & ~empty).sum(1), len(shared))

    def _bill(self, model_bytes: int, met: Tensor, compared: bool, tables: Tensor | None, diverged: Tensor) -> None:
        """Count what travelled in this round. A model that has diverged does not, a peer's tables travel without it."""
        needs = self.measurer.needs if compared and self.measurer else ONE_MODEL
        columns, there = compact(met)
        you = torch.where(there, self.view.book.gather(1, columns), self.view.me[:, None])
        came = there & ~diverged[you]
        went = there & ~diverged[self.view.me][:, None]  # one's own model, to be evaluated on the other's data
        models = came + (needs.models - 1) * went.to(torch.int64)
        beside = torch.where(came & self.trained[you] & needs.updates, model_bytes, 0)
        if tables is not None:
            beside = beside + torch.where(there, tables[you], 0)
        self.traffic.count(models, self.view.hops.gather(1, columns), model_bytes, beside)

    def _watched(self, met: Tensor, similarity: Tensor) -> dict[str, dict[str, float]]:
        """Similarities of a few peers, one of each cluster first, by the ids met."""
        out = {}
        for peer in self._few():
            columns = met[peer].nonzero()[:, 0]
            ids, values = self.view.book[peer, columns].tolist(), similarity[peer, columns].tolist()
            out[str(peer)] = {str(i): v for i, v in zip(ids, values, strict=True)}
        return out

    def _few(self) -> list[int]:
        if self.cluster is None:
            return list(range(min(_WATCHED, len(self.view.me))))
        firsts = [int((self.cluster == c).nonzero()[0, 0]) for c in self.cluster.unique().tolist()]
        return list(dict.fromkeys([*firsts, *range(len(self.view.me))]))[:_WATCHED]

    def summary(self, rounds: int) -> dict[str, Any]:
        return {
            "neighbour_precision": self.found[0],
            "neighbour_recall": self.found[1],
            "same_cluster_merges": self.merges.share_inside(self.cluster),
            **self.traffic.summary(rounds),
            "nominal_models_per_peer": nominal_models(self.method, self.merge, self.measurer, self.view, rounds),
            "notes": self._notes(),
        }

    def _notes(self) -> list[str]:
        apart = self.method.metric == "panm" and not bool((self.start == self.start[:1]).all())
        own = ["metric = 'panm' compares ways from one common start, and these peers start apart"] if apart else []
        notes = self.method.notes(self.view, self.memory)
        if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
            raise UserError(f"method: notes must return a list of sentences, not {notes!r}")
        return [*own, *notes]

    def final(self) -> dict[str, Tensor]:
        """How often who merged whom, and whom they held to be alike at the end; sparse, pairs as peer * N + other."""
        pairs, counts = self.merges.sparse()
        return {"pairs": pairs, "counts": counts, **self._alike()}

    def _alike(self) -> dict[str, Tensor]:
        return self.restored if self.neighbours is None else self._sparse(self.neighbours)

    def _sparse(self, neighbours: Tensor) -> dict[str, Tensor]:
        row, column = (neighbours > 0).nonzero(as_tuple=True)
        pairs = self.view.me[row] * len(self.view.me) + self.view.book[row, column]
        return {"neighbours": pairs, "weights": neighbours[row, column].to(torch.float64)}

    def tensors(self) -> dict[str, Tensor]:
        pairs, counts = self.merges.sparse()
        memory = {f"memory/{name}": table for name, table in self.memory.items()}
        counted = {"merge_pairs": pairs, "merge_counts": counts, "received": self.traffic.received}
        return {**counted, **self._alike(), **memory}

    def numbers(self) -> dict[str, Any]:
        return {"traffic": self.traffic.numbers(), "found": list(self.found)}

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        peers = len(self.view.me)
        self.merges = MergeCounts(peers, tensors["merge_pairs"].cpu(), tensors["merge_counts"].cpu())
        tensors = {name: tensor.to(self.view.me.device) for name, tensor in tensors.items()}
        self.traffic.restore(tensors["received"], numbers["traffic"])
        self.restored = {name: tensors[name] for name in self.restored}
        self.found = (numbers["found"][0], numbers["found"][1])
        self.memory = {n.removeprefix("memory/"): t for n, t in tensors.items() if n.startswith("memory/")}


def nominal_models(method: Method, merge: Merge, measurer: Measurer | None, view: View, rounds: int) -> float | None:
    """What a run costs by the method's own formula; None: it has none, or the run goes beyond it.

    It knows no hops, and no merge that compares in rounds in which the method does not, where that takes two models.
    """
    far = bool((view.hops[view.known] > 1).any())
    twice = needs_similarity(merge) and measurer is not None and measurer.needs.models > 1
    found = method.nominal(rounds)
    if not isinstance(found, int | float | None):
        raise UserError(f"method: nominal must return a number of models, or None, not {type(found).__name__}")
    return None if far or twice else found
