"""kin: know who is like you before the first round, from fingerprints compared once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from homophily.federation import peer_sets as sets
from homophily.federation.view import View
from homophily.fingerprints.fingerprint import Fingerprints
from homophily.fingerprints.private import PrivateFingerprints
from homophily.methods.base import Findings, Memory, Method, Partners, Reach, Renewal, RoundContext, methods
from homophily.methods.kin import power
from homophily.methods.kin.families import Kinship, kinship
from homophily.methods.kin.released import released_kinship
from homophily.randomness import Purpose

_DIRECTIONS = 3  # in which places are reported
_SHOWN = 8  # families whose sizes are listed one by one
CONTINUUM = "found no families but a continuum, and draws partners by likeness"
NOBODY = "there is one peer, and nobody to compare it with"
TOO_FEW = "too few samples to compare anyone: all peers with a fingerprint count as one family"
ADVICE = (
    "the data may still differ in ways that fingerprints do not show: try more samples per peer, and compare with "
    "method=random"
)  # if no difference was found


@methods("kin")
@dataclass(frozen=True)
class Kin(Method):
    """kin, our own: kilobyte fingerprints, compared once before training, say who is like whom."""

    k: Partners = 4
    hops: Reach = 1
    renew: Renewal = 0
    uses_fingerprints = True

    def on_fingerprints(self, view: View, prints: Fingerprints, ids: Tensor, limited: bool) -> Findings:
        found = kinship(prints, ids, int(view.seed[0]))
        smallest = power.smallest_difference(found.evidence) if found.evidence is not None else None
        memory = _memory(found, *_positions(view, ids), limited, smallest)
        return Findings(memory, *_diagnostics(found, prints.count))

    def on_released(self, view: View, prints: PrivateFingerprints, ids: Tensor, limited: bool) -> Findings:
        """As without privacy, and on the CPU: released fingerprints are small."""
        found, _ = released_kinship(prints, ids.cpu(), int(view.seed[0]))
        rows, columns = _positions(view, ids)
        memory = _memory(found, rows.cpu(), columns.cpu(), limited, None)
        device = view.me.device
        peers, values = _diagnostics(found, prints.count.clamp(min=1.0))
        return Findings(
            {name: table.to(device) for name, table in memory.items()},
            {name: table.to(device) for name, table in peers.items()},
            values,
        )

    def meet(self, now: RoundContext) -> Tensor:
        """Kin at random; in a continuum, of twice as many drawn from the mixture, those that balance each other."""
        weights, away = now.memory["weights"], now.memory["away"]
        among = now.known & (weights > 0)
        if not away.shape[2]:
            return now.pick_weighted(among, self.k, weights.log(), Purpose.MEET)
        columns, mask = sets.compact(now.pick_weighted(among, 2 * self.k, weights.log(), Purpose.MEET))
        slot = torch.where(mask, ((weights > 0).cumsum(1) - 1).gather(1, columns), 0)
        drawn = away.gather(1, slot[..., None].expand(-1, -1, away.shape[2]))
        return sets.spread(columns, balanced(drawn, mask, self.k), weights.shape[1])

    def neighbours(self, now: RoundContext, partners: Tensor) -> Tensor:
        weights = torch.where(now.known, now.memory["weights"], 0.0)
        return weights if now.memory["away"].shape[2] else weights > 0

    def nominal(self, rounds: int) -> float:
        return float(rounds * self.k)

    def notes(self, view: View, memory: Memory) -> list[str]:
        """What was found: one answer for all peers, whichever of them are their contacts."""
        if memory["away"].shape[2]:
            return [CONTINUUM]
        family = memory["family"]
        without = int((family < 0).sum())
        alone = [f"{without} peers have too few samples for a fingerprint, and merge with nobody"] if without else []
        sizes = family[family >= 0].unique(return_counts=True)[1].sort(descending=True).values.tolist()
        if not bool(memory["enough_samples"].all()):
            found = [NOBODY if len(family) == 1 else TOO_FEW] if sizes else []
        elif not bool(memory["conclusive"].all()):
            found = [_nothing_found(sizes[0], float(memory["smallest_difference"][0])), ADVICE]
        else:
            shown = ", ".join(map(str, sizes)) if len(sizes) <= _SHOWN else f"{sizes[-1]} to {sizes[0]}"
            found = [f"found {len(sizes)} families, of {shown} peers"]
        return [*found, *alone]

    def peer_notes(self, view: View, memory: Memory) -> list[str]:
        """What this peer found; it remembers its own family only."""
        if "family" not in memory:
            return []
        if memory["away"].shape[2]:
            return [CONTINUUM]
        if int(memory["family"][0]) < 0:
            return ["this peer has too few samples for a fingerprint, and merges with nobody"]
        size = 1 + int((memory["weights"][0] > 0).sum())
        if not bool(memory["enough_samples"][0]):
            return [TOO_FEW]
        if not bool(memory["conclusive"][0]):
            return [_nothing_found(size, float(memory["smallest_difference"][0])), ADVICE]
        return [f"this peer belongs to a family of {size} peers"]


def balanced(away: Tensor, mask: Tensor, k: int) -> Tensor:
    """``k`` of a set [P, C], one after the other, whose average with oneself stays nearest to oneself: [P, C] bool.

    away: [P, C, r], the displacements from oneself to them. Merged models are an average: a peer that pulls in one
    direction is balanced by one that pulls in the other, in every round and not only on average over the rounds.
    """
    chosen = torch.zeros_like(mask)
    total = torch.zeros_like(away[:, :1])
    for _ in range(min(k, mask.shape[1])):
        left = mask & ~chosen
        distance = (total + away).square().cumsum(2)[..., -1]  # one after the other, so that padding changes no bit
        nearest = torch.where(left, distance, torch.inf).argmin(1, keepdim=True)
        chosen = chosen.scatter(1, nearest, left.gather(1, nearest) | chosen.gather(1, nearest))
        total = total + away.gather(1, nearest[..., None].expand(-1, -1, away.shape[2]))
    return chosen


def _nothing_found(peers: int, difference: float) -> str:
    found = f"found no difference between the fingerprints of {peers} peers, so all count as one family"
    if not math.isfinite(difference):
        return found
    return f"{found}; {power.in_words(difference)} would not have been seen with these samples"


def _positions(view: View, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The positions among the fingerprints of peers ``ids``: of the peers that decide [P] and of their contacts [P, B],
    -1 for those without a fingerprint."""
    place = torch.searchsorted(ids, view.contacts.clamp(min=0)).clamp(max=len(ids) - 1)
    return torch.searchsorted(ids, view.me), torch.where(view.known & (ids[place] == view.contacts), place, -1)


def _memory(found: Kinship, rows: Tensor, columns: Tensor, limited: bool, smallest: float | None) -> Memory:
    """What a peer remembers: how much each of its contacts counts, its family (-1: none, or a continuum), in a
    continuum the displacements to those that count, in the order of the contacts, and how far the answer can be
    trusted: ``enough_samples``, ``conclusive`` and the ``smallest_difference`` of two groups (infinite: unknown).

    columns: [P, B], of the contacts in the answer; -1: not in it. smallest: difference; None: unknown.
    """
    weights = found.weights(rows, columns, limited)
    trust = {
        "enough_samples": torch.full_like(rows, found.enough_samples, dtype=torch.bool),
        "conclusive": torch.full_like(rows, found.conclusive, dtype=torch.bool),
        "smallest_difference": torch.full_like(rows, math.inf if smallest is None else smallest, dtype=torch.float64),
    }
    if found.family is not None:
        none = weights.new_zeros(len(rows), 0, 0)
        return {"weights": weights, "family": found.family[rows], "away": none, **trust}
    counting, mask = sets.compact(weights > 0)
    place = found.place[:, : found.rank]
    away = place[columns.gather(1, counting).clamp(min=0)] - place[rows, None]
    away = torch.where(mask[..., None], away, 0.0)
    return {"weights": weights, "family": torch.full_like(rows, -1), "away": away, **trust}


def _diagnostics(found: Kinship, count: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """For the history: the place and family of each peer, and the spectrum, its noise edge and the families' centres.

    count: [M], samples behind each fingerprint. family: -1 without a fingerprint, and in a continuum.
    """
    place, edge = found.place[:, :_DIRECTIONS], found.edge**0.5 if found.enough_samples else math.nan
    family = torch.full_like(count, -1, dtype=torch.int64) if found.family is None else found.family
    members = family >= 0
    weight = count[members].double()
    summed = place.new_zeros(1 + int(family.max()), 1 + place.shape[1])
    summed.index_add_(0, family[members], torch.cat([weight[:, None], weight[:, None] * place[members]], 1))
    values = {
        "singular_values": found.squared.clamp(min=0).sqrt(),
        "edge": place.new_tensor([edge]),
        "rank": torch.tensor([found.rank]),
        "centres": summed[:, 1:] / summed[:, :1],
    }
    return {"place": place, "family": family}, values
