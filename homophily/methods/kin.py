"""kin: know who is like you before the first round, from fingerprints compared once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from homophily.introductions import Fingerprints
from homophily.kinship import Kinship, kinship
from homophily.methods.base import Memory, Method, Now, methods
from homophily.randomness import Purpose
from homophily.view import View


@methods("kin")
@dataclass(frozen=True)
class Kin(Method):
    """kin, our own: kilobyte fingerprints, compared once before training, tell everyone who is like it."""

    k: int = 4
    hops: int = 1
    renew: int = 0  # fingerprints are made anew every so many rounds; 0: never
    introduces = True

    def introduced(self, view: View, prints: Fingerprints, heard: Tensor | None) -> Memory:
        if heard is None:
            ids = torch.arange(len(prints.count), device=view.me.device)
            found = kinship(prints, ids, int(view.seed[0]))
            return _memory(found, view, view.me, view.book)
        parts = []
        for row in range(len(view.me)):  # books of their own: everyone looks for itself
            ids = heard[row][heard[row] >= 0]
            parts.append(self.acquainted(view.rows(slice(row, row + 1)), prints.of(ids), ids))
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def acquainted(self, view: View, prints: Fingerprints, ids: Tensor) -> Memory:
        found = kinship(prints, ids, int(view.seed[0]))
        place = torch.searchsorted(ids, view.book.clamp(min=0)).clamp(max=len(ids) - 1)
        memory = _memory(found, view, torch.searchsorted(ids, view.me), place)
        return memory | {"weights": torch.where(ids[place] == view.book, memory["weights"], 0.0)}

    def meet(self, now: Now) -> Tensor:
        weights = now.memory["weights"]
        return now.pick_weighted(now.known & (weights > 0), self.k, weights.log(), Purpose.MEET)

    def neighbours(self, now: Now, partners: Tensor) -> Tensor:
        weights = torch.where(now.known, now.memory["weights"], 0.0)
        return weights if bool((now.memory["family"] < 0).any()) else weights > 0

    def nominal(self, rounds: int) -> float:
        return float(rounds * self.k)


def _memory(found: Kinship, view: View, rows: Tensor, columns: Tensor) -> Memory:
    """What a peer remembers: how much everyone in its book counts, and its family (-1: none, or a continuum)."""
    weights = torch.where(view.known, found.weights(rows, columns.clamp(min=0)), 0.0)
    family = torch.full_like(rows, -1) if found.family is None else found.family[rows]
    return {"weights": weights, "family": family}
