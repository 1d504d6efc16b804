"""Which samples are in which batch: keyed shuffles, and how a peer's samples are divided into batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from homophily.randomness import Purpose, bits
from homophily.training.private import Private
from homophily.training.task import Task

_LAST = torch.iinfo(torch.int64).max


def shuffled(seed: Tensor, ids: Tensor, counts: Tensor, most: int, round: int, epoch: int | Tensor) -> Tensor:
    """Return each peer's sample positions in the order of an epoch: [P, most], of which the first counts[i] are valid.

    epoch: one number, or a tensor [E, 1, 1] for several epochs at once, which gives [E, P, most].
    """
    position = torch.arange(most, device=ids.device)
    keys = bits(seed[:, None], ids[:, None], round, Purpose.SHUFFLE, epoch, position)
    return torch.where(position < counts[:, None], keys, _LAST).argsort(dim=-1, stable=True)


def batch_sizes(samples: int, batch: int, coupled: bool) -> list[int]:
    """Return the batch sizes of an epoch; a smaller last batch is kept.

    If samples are coupled (BatchNorm), a last batch of one sample is added to the batch before it.
    """
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
    """Return the steps of an epoch for peers in descending order of sample counts, as groups of contiguous rows.

    Batches of coupled samples must not be padded, so each batch size is a separate group; otherwise a step is one
    padded group.
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
    """Return the peers [P] in descending order of sample counts, split into chunks of ``size``, on the CPU.

    The peers of a chunk have the same number of epochs.
    """
    peers = peers.cpu()
    if not len(peers):
        return ()
    peers = peers[task.counts[peers].argsort(descending=True, stable=True)]
    if task.epochs_by_peer is None:
        return tuple(peers.split(size))
    epochs = task.epochs_by_peer[peers]
    return tuple(chunk for number in epochs.unique() for chunk in peers[epochs == number].split(size))


@dataclass(frozen=True)
class Step:
    """One training step of some consecutive peers."""

    which: slice  # of the peers
    samples: Tensor  # [P, b] int64: sample indices; padding repeats one of the peer's samples
    share: Tensor  # [P, b]: weight of each sample in the loss; 0 for padding
    before: Tensor  # [P] int64: steps that these peers took earlier in this round
    number: Tensor  # [P] float64: steps of these peers in this phase of the round, this one included
    keys: Tensor | None = None  # [P, b] int64: of the random numbers of the transform; None: there is no transform


def batches(task: Task, peers: Tensor, round: int, epochs: range) -> Iterator[Step]:
    """Yield the steps of a phase, the ``epochs`` of a round, for the peers [P] of a chunk."""
    if task.private is not None:
        yield from _private_batches(task, task.private, peers, round, epochs)
        return
    data, settings = task.data.train, task.settings
    counts, peers = task.counts[peers.cpu()].tolist(), peers.to(task.ids.device)
    start, count = data.start[peers], data.count[peers]
    per_epoch = torch.tensor([len(batch_sizes(n, settings.batch, task.coupled)) for n in counts], device=peers.device)
    schedule = steps(counts, settings.batch, task.coupled)
    for epoch in epochs:
        order = shuffled(task.seed[peers], task.ids[peers], count, counts[0], round, epoch)
        samples = start[:, None] + order.minimum(count[:, None] - 1)
        for number, groups in enumerate(schedule):
            for group in groups:
                which, window = slice(group.first, group.last), slice(group.at, group.at + group.size)
                share = _share(group, count[which], task.layout.dtype)
                before, some = epoch * per_epoch[which] + number, samples[which, window]
                in_phase = (before + 1 - epochs.start * per_epoch[which]).double()
                keys = transform_keys(task, peers[which], some, round, before)
                yield Step(which, some, share, before, in_phase, keys)


def _private_batches(task: Task, private: Private, peers: Tensor, round: int, epochs: range) -> Iterator[Step]:
    """Yield the steps of a phase in private training: Poisson samples. The weight of a sample in the batch is 1."""
    data, device = task.data.train, task.ids.device
    per_epoch, rates = private.steps[peers.cpu()], private.rate[peers.cpu()].to(device)
    peers = peers.to(device)
    for number in range(len(epochs) * int(per_epoch[0])):
        which = slice(0, int((per_epoch * len(epochs) > number).sum()))
        some, before = peers[which], (epochs.start * per_epoch[which] + number).to(device)
        seed, ids, count = task.seed[some], task.ids[some], data.count[some]
        position, inside = private.drawn(seed, ids, rates[which], count, round, before)
        samples = data.start[some, None] + position
        in_phase = torch.full((len(some),), number + 1.0, dtype=torch.float64, device=device)
        keys = transform_keys(task, some, samples, round, before)
        yield Step(which, samples, inside.to(task.layout.dtype), before, in_phase, keys)


def transform_keys(task: Task, peers: Tensor, samples: Tensor, round: int, step: Tensor) -> Tensor | None:
    """Return the keys [P, b] of the transform of the samples [P, b] of ``peers`` [P] in a step [P]; None: no transform.

    A sample's key does not depend on the samples of other peers, nor on its place in the batch. In private training of
    a real peer it is secret.
    """
    if task.transform is None:
        return None
    position = samples - task.data.train.start[peers, None]
    seed, ids = task.seed[peers, None], task.ids[peers, None]
    draw = bits if task.private is None else task.private.draws.bits
    return draw(seed, ids, round, Purpose.TRANSFORM, step[:, None], position)


def _share(group: Group, count: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the weights [P, b] of the samples of a batch: equal, and 0 for padding."""
    position = torch.arange(group.at, group.at + group.size, device=count.device)
    mask = (position < count[:, None]).to(dtype)
    return mask / mask.sum(1, keepdim=True)
