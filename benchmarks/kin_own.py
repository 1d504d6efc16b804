"""Federations that the package's shifts do not offer, made from a data set's images: one PeerData per peer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from homophily import PeerData
from homophily.data.images import rotated
from homophily.data.sources import load_source

Draw = torch.Generator
See = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # changes a peer's images and labels
Case = Callable[[int, Draw], tuple[See, int | None]]  # from a peer's number to its change and its cluster, if any
NOISE = 32  # standard deviation, in grey values of 256, that each cluster of ``noisy`` has more than the one before


@cache
def pool(data: str) -> tuple[Tensor, Tensor]:
    """Return all images and labels of a data set, including its test set."""
    source = load_source(data, 0, {})
    parts = [part for part in (source.train, source.test) if part is not None]
    return torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts])


def counts(peers: int, low: int, high: int) -> list[int]:
    """Return the samples of each peer: four sizes in rotation, evenly spaced between the bounds."""
    return [low + (high - low) * (i % 4) // 3 for i in range(peers)]


def dealt(data: str, count: Sequence[int], seed: int, case: Case) -> list[PeerData]:
    """Return peers with ``count[i]`` images each; no image is used twice."""
    x, y = pool(data)
    chance = Draw().manual_seed(seed)
    drawn = torch.randperm(len(y), generator=chance)[: sum(count)].split(list(count))
    peers = []
    for number, mine in enumerate(drawn):
        see, cluster = case(number, chance)
        images, labels = see(x[mine], y[mine])
        # The test set is not used here: one image replaces it, because else a fifth would be taken for it.
        peers.append(PeerData(images, labels, test_x=images[:1], test_y=labels[:1], cluster=cluster))
    return peers


def alike(peer: int, chance: Draw) -> tuple[See, int | None]:
    """One distribution."""
    return lambda x, y: (x, y), 0


def turned(peer: int, chance: Draw) -> tuple[See, int | None]:
    """A continuum: every peer's images are rotated by a different angle."""
    angle = 360.0 * float(torch.rand((), generator=chance))
    return lambda x, y: (rotated(x, angle), y), None


def half_turned(peer: int, chance: Draw) -> tuple[See, int | None]:
    """A one-dimensional continuum: a share of the images, different for every peer, is upside down."""
    share = torch.rand((), generator=chance)

    def see(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        over = torch.rand(len(x), generator=chance) < share
        return torch.where(over[:, None, None, None], rotated(x, 180), x), y

    return see, None


def half_renamed(peer: int, chance: Draw) -> tuple[See, int | None]:
    """A one-dimensional continuum: a share of the labels, different for every peer, is one too high."""
    share = torch.rand((), generator=chance)
    return lambda x, y: (x, torch.where(torch.rand(len(y), generator=chance) < share, (y + 1) % 10, y)), None


def noisy(clusters: int, peer: int, chance: Draw) -> tuple[See, int | None]:
    """Families: clusters whose images are rotated by different angles and have different amounts of noise."""
    mine = peer % clusters

    def see(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        noise = NOISE * mine * torch.randn(x.shape, generator=chance)
        return (rotated(x, mine * 360 / clusters) + noise).round().clamp(0, 255).to(torch.uint8), y

    return see, mine
