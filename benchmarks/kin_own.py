"""Federations that the package's shifts do not offer, dealt out of a data set's images: one PeerData a peer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from homophily import PeerData
from homophily.data.images import rotated
from homophily.data.sources import load_source

Draw = torch.Generator
See = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # a peer's images and labels -> what it sees of them
Case = Callable[[int, Draw], tuple[See, int | None]]  # of a peer: what it sees, and its cluster, if there are any
NOISE = 32  # grey values of 256 that each cluster of ``noisy`` has more than the one before


@cache
def pool(data: str) -> tuple[Tensor, Tensor]:
    """All images and labels of a data set, its test set included."""
    source = load_source(data, 0, {})
    parts = [part for part in (source.train, source.test) if part is not None]
    return torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts])


def counts(peers: int, low: int, high: int) -> list[int]:
    """Samples of each peer: four sizes in turn, evenly between the two bounds."""
    return [low + (high - low) * (i % 4) // 3 for i in range(peers)]


def dealt(data: str, count: Sequence[int], seed: int, case: Case) -> list[PeerData]:
    """Peers with so many images each, none twice."""
    x, y = pool(data)
    chance = Draw().manual_seed(seed)
    drawn = torch.randperm(len(y), generator=chance)[: sum(count)].split(list(count))
    peers = []
    for number, mine in enumerate(drawn):
        see, cluster = case(number, chance)
        images, labels = see(x[mine], y[mine])
        # One image stands in for the test set that nobody looks at here: else a fifth would be cut off for one.
        peers.append(PeerData(images, labels, test_x=images[:1], test_y=labels[:1], cluster=cluster))
    return peers


def alike(peer: int, chance: Draw) -> tuple[See, int | None]:
    """One distribution."""
    return lambda x, y: (x, y), 0


def turned(peer: int, chance: Draw) -> tuple[See, int | None]:
    """A continuum: everyone's images are turned by an angle of its own."""
    angle = 360.0 * float(torch.rand((), generator=chance))
    return lambda x, y: (rotated(x, angle), y), None


def half_turned(peer: int, chance: Draw) -> tuple[See, int | None]:
    """A continuum on a line: a share of the images, everyone's own, stands upside down."""
    share = torch.rand((), generator=chance)

    def see(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        over = torch.rand(len(x), generator=chance) < share
        return torch.where(over[:, None, None, None], rotated(x, 180), x), y

    return see, None


def half_renamed(peer: int, chance: Draw) -> tuple[See, int | None]:
    """A continuum on a line: a share of the labels, everyone's own, is one too high."""
    share = torch.rand((), generator=chance)
    return lambda x, y: (x, torch.where(torch.rand(len(y), generator=chance) < share, (y + 1) % 10, y)), None


def noisy(clusters: int, peer: int, chance: Draw) -> tuple[See, int | None]:
    """Families: clusters that are turned by different angles, and whose images are noisier one than the other."""
    mine = peer % clusters

    def see(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        noise = NOISE * mine * torch.randn(x.shape, generator=chance)
        return (rotated(x, mine * 360 / clusters) + noise).round().clamp(0, 255).to(torch.uint8), y

    return see, mine
