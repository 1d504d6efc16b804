"""Who can reach whom, and the book: the peers each one knows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from homophily.methods.base import View
from homophily.randomness import Purpose, bits
from homophily.registry import Registry

topologies: Registry[Callable[..., None]] = Registry("topology")

_KEYS_AT_ONCE = 1 << 24


@topologies("full")
def full(peers: int, seed: int) -> None:
    """Everyone can reach everyone in one hop."""


def view_of_all(peers: int, seed: int, book: int | None, cluster: Tensor | None, device: torch.device) -> View:
    """What every peer of a fully connected federation sees. book: how many peers each one knows; None: everyone."""
    me = torch.arange(peers, device=device)
    seeds = torch.full((peers,), seed, dtype=torch.int64, device=device)
    known_to = me.expand(peers, peers) if book is None or book >= peers - 1 else _samples(me, seeds, book)
    known = known_to != me[:, None]
    same = None if cluster is None else (cluster[known_to] == cluster[:, None]) & known
    return View(me, seeds, known_to, known, torch.ones_like(known, dtype=torch.int64), same)


def _samples(me: Tensor, seeds: Tensor, size: int) -> Tensor:
    """A uniform draw of ``size`` others for each peer, ids ascending: [P, size]."""
    drawn = []
    for rows in me.split(max(1, _KEYS_AT_ONCE // len(me))):
        keys = bits(seeds[rows, None], rows[:, None], 0, Purpose.BOOK, me)
        keys.scatter_(1, rows[:, None], torch.iinfo(torch.int64).max)  # nobody draws itself
        drawn.append(keys.topk(size, dim=1, largest=False, sorted=False).indices.sort(1).values)
    return torch.cat(drawn)
