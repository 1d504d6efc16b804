"""Which samples are in which batch: keyed shuffles, and how a peer's samples fall into batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from homophily.randomness import Purpose, bits
from homophily.training.task import Task

_LAST = torch.iinfo(torch.int64).max


def shuffled(seed: Tensor, ids: Tensor, counts: Tensor, most: int, round: int, epoch: int | Tensor) -> Tensor:
    """Each peer's samples in the epoch's order: [P, most] positions, of which the first counts[i] are a permutation.

    epoch: a number, or several [E, 1, 1] at once: [E, P, most].
    """
    position = torch.arange(most, device=ids.device)
    keys = bits(seed[:, None], ids[:, None], round, Purpose.SHUFFLE, epoch, position)
    return torch.where(position < counts[:, None], keys, _LAST).argsort(dim=-1, stable=True)


def batch_sizes(samples: int, batch: int, coupled: bool) -> list[int]:
    """The last, smaller batch is kept; if samples are coupled, a last batch of one joins the one before."""
    sizes = [batch] * (samples // batch)
    rest = samples % batch
    if rest == 1 and coupled and sizes:
        sizes[-1] += 1
    elif rest:
        sizes.append(rest)
    return sizes


@dataclass(frozen=True)
class Group:
    """Consecutive peers that take a step together: rows ``first`` to ``last``, samples ``at`` to ``at + size``."""

    first: int
    last: int
    at: int
    size: int
    ragged: bool  # some of its peers have fewer than ``size`` samples left


def steps(counts: list[int], batch: int, coupled: bool) -> list[list[Group]]:
    """The steps of an epoch for peers in descending order of sample counts; each step's groups are contiguous rows.

    Coupled samples may not be padded, so each batch size is a group of its own; otherwise one padded group a step.
    """
    sizes = [batch_sizes(count, batch, coupled) for count in counts]
    out = []
    for step in range(max(map(len, sizes))):
        now = [peer[step] for peer in sizes if step < len(peer)]
        cuts = [0, *(i for i in range(1, len(now)) if coupled and now[i] != now[i - 1]), len(now)]
        out.append(
            [
                Group(first, last, step * batch, max(now[first:last]), len(set(now[first:last])) > 1)
                for first, last in pairwise(cuts)
            ]
        )
    return out


def chunks(task: Task, peers: Tensor, size: int) -> tuple[Tensor, ...]:
    """Peers [P] in descending order of their sample counts, so many at a time; on the CPU, which plans their steps."""
    peers = peers.cpu()
    order = task.counts[peers].argsort(descending=True, stable=True)
    return peers[order].split(size) if len(peers) else ()


@dataclass(frozen=True)
class Step:
    """One training step of some consecutive peers."""

    which: slice  # of the peers
    samples: Tensor  # [P, b] int64: by index; padding repeats a sample of one's own
    share: Tensor  # [P, b]: how much each sample counts, padding nothing
    before: Tensor  # [P] int64: steps these peers took before it in this round


def batches(task: Task, peers: Tensor, round: int) -> Iterator[Step]:
    """The steps of a round for ``peers`` [P], in descending order of sample counts."""
    data, settings = task.data.train, task.settings
    counts, peers = task.counts[peers.cpu()].tolist(), peers.to(task.ids.device)
    start, count = data.start[peers], data.count[peers]
    per_epoch = torch.tensor([len(batch_sizes(n, settings.batch, task.coupled)) for n in counts], device=peers.device)
    schedule = steps(counts, settings.batch, task.coupled)
    for epoch in range(settings.epochs):
        order = shuffled(task.seed[peers], task.ids[peers], count, counts[0], round, epoch)
        samples = start[:, None] + order.minimum(count[:, None] - 1)
        for number, groups in enumerate(schedule):
            for group in groups:
                which, window = slice(group.first, group.last), slice(group.at, group.at + group.size)
                share = _share(group, count[which], task.layout.dtype)
                yield Step(which, samples[which, window], share, epoch * per_epoch[which] + number)


def _share(group: Group, count: Tensor, dtype: torch.dtype) -> Tensor:
    """[P, b]: every sample of a batch counts the same."""
    position = torch.arange(group.at, group.at + group.size, device=count.device)
    mask = (position < count[:, None]).to(dtype)
    return mask / mask.sum(1, keepdim=True)
