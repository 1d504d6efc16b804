"""kin: know who is like you before the first round, from fingerprints compared once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from homophily.federation import peer_sets as sets
from homophily.federation.view import View
from homophily.fingerprints.fingerprint import Fingerprints
from homophily.methods.base import Memory, Method, Partners, Reach, Renewal, RoundContext, methods
from homophily.methods.kin import power
from homophily.methods.kin.families import Kinship, kinship
from homophily.randomness import Purpose

_SHOWN = 8  # families whose sizes are listed one by one
CONTINUUM = "found no families but a continuum, and draws partners by likeness"
TOO_FEW = "too few samples to compare anyone: all peers with a fingerprint count as one family"
ADVICE = (
    "the data may still differ in ways that this network's gradients do not show: try more samples per peer or another "
    "network, and compare with method=random"
)  # if no difference was found


@methods("kin")
@dataclass(frozen=True)
class Kin(Method):
    """kin, our own: kilobyte fingerprints, compared once before training, say who is like whom."""

    k: Partners = 4
    hops: Reach = 1
    renew: Renewal = 0
    uses_fingerprints = True

    def on_fingerprints(self, view: View, prints: Fingerprints, ids: Tensor, known_to: Tensor | None) -> Memory:
        if known_to is None:
            found = kinship(prints, ids, int(view.seed[0]))
            place = torch.searchsorted(ids, view.contacts.clamp(min=0)).clamp(max=len(ids) - 1)
            columns = torch.where(ids[place] == view.contacts, place, -1)
            return _memory(found, view, torch.searchsorted(ids, view.me), columns)
        parts = []
        for row in range(len(view.me)):  # bounded contacts: every peer decides for itself
            mine = known_to[row][known_to[row] >= 0]
            some = prints.of(torch.searchsorted(ids, mine))
            parts.append(self.on_fingerprints(view.rows(slice(row, row + 1)), some, mine, None))
        return {name: _stacked([part[name] for part in parts]) for name in parts[0]}

    def meet(self, now: RoundContext) -> Tensor:
        """Kin at random; in a continuum, of twice as many drawn from the mixture, those who balance each other."""
        weights, away = now.memory["weights"], now.memory["away"]
        among = now.known & (weights > 0)
        plain = now.pick_weighted(among, self.k, weights.log(), Purpose.MEET)
        if not away.shape[2]:
            return plain
        columns, mask = sets.compact(now.pick_weighted(among, 2 * self.k, weights.log(), Purpose.MEET))
        mixed = now.memory["family"][:, None] < 0  # with bounded contacts, some may see families, others a continuum
        slot = torch.where(mask & mixed, ((weights > 0).cumsum(1) - 1).gather(1, columns), 0)
        drawn = away.gather(1, slot[..., None].expand(-1, -1, away.shape[2]))
        chosen = sets.spread(columns, balanced(drawn, mask, self.k), weights.shape[1])
        return torch.where(mixed, chosen, plain)

    def neighbours(self, now: RoundContext, partners: Tensor) -> Tensor:
        weights = torch.where(now.known, now.memory["weights"], 0.0)
        return weights if bool((now.memory["family"] < 0).any()) else weights > 0

    def nominal(self, rounds: int) -> float:
        return float(rounds * self.k)

    def notes(self, view: View, memory: Memory) -> list[str]:
        """What was found, if everyone knows everyone: with bounded contacts each peer has families of its own."""
        if view.contacts.stride(0):
            blind = int((~memory["conclusive"]).sum())
            return [f"{blind} of {len(view.me)} peers found no difference between the peers they know"] if blind else []
        if memory["away"].shape[2]:
            return [CONTINUUM]
        family = memory["family"]
        without = int((family < 0).sum())
        alone = [f"{without} peers have too few samples for a fingerprint, and merge with nobody"] if without else []
        sizes = family[family >= 0].unique(return_counts=True)[1].sort(descending=True).values.tolist()
        if not bool(memory["enough_samples"].all()):
            found = [TOO_FEW] if sizes else []
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
    return f"{found}; {power.in_words(difference)} would not have been seen with these samples and this network"


def _memory(found: Kinship, view: View, rows: Tensor, columns: Tensor) -> Memory:
    """What a peer remembers: how much everyone in its contacts counts, its family (-1: none, or a continuum), in a
    continuum the displacements to those who count, in the order of the contacts, and how far the answer can be trusted:
    ``enough_samples``, ``conclusive`` and the ``smallest_difference`` of two groups (infinite: unknown).

    columns: of the contacts in the answer; -1: not in it.
    """
    weights = torch.where(view.known & (columns >= 0), found.weights(rows, columns.clamp(min=0)), 0.0)
    smallest = power.smallest_difference(found.evidence) if found.evidence is not None else None
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


def _stacked(tables: list[Tensor]) -> Tensor:
    """One below the other, each padded to the largest."""
    most = [max(sizes) for sizes in zip(*(table.shape[1:] for table in tables), strict=True)]
    pads = [
        [n for size, full in zip(t.shape[:0:-1], most[::-1], strict=True) for n in (0, full - size)] for t in tables
    ]
    return torch.cat([torch.nn.functional.pad(t, pad) for t, pad in zip(tables, pads, strict=True)])
