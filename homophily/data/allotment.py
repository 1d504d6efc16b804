"""Which samples go to which peer: indices only, drawn by key, no training sample to two peers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from homophily.data.proportions import apportion, carve, deal, divide, each_within, in_proportion
from homophily.data.types import ClusterSpec, PartitionPlan
from homophily.errors import UserError
from homophily.randomness import Purpose, bits

PARTS = ("train", "validation", "test")
CHUNK = 1 << 20  # random numbers held at once while drawing test samples


@dataclass(frozen=True)
class Demand:
    """What every peer asks of the training samples. ``train`` None: all there are; ``test`` 0: has a set of its own."""

    train: int | None
    validation: int
    test: int

    def at_least(self, train: int) -> list[int]:
        """The fewest samples a peer must get for each of PARTS, with ``train`` training samples for "all"."""
        return [train if self.train is None else self.train, self.validation, self.test]


@dataclass(frozen=True)
class Allotment:
    """Samples peer after peer: index [m] into the source's samples, count [N] of each peer."""

    index: Tensor
    count: Tensor


@dataclass(frozen=True)
class Pool:
    """Samples to draw from, in classes (one class if classes do not matter)."""

    index: Tensor  # [m]
    classes: Tensor  # [C] the labels there are
    label: Tensor  # [m] position in classes
    name: str  # in messages

    @classmethod
    def of(cls, index: Tensor, y: Tensor | None, name: str) -> Pool:
        if y is None:
            return cls(index, torch.zeros(1, dtype=torch.int64), torch.zeros_like(index), name)
        if y.dim() > 1:
            shape = list(y.shape[1:])
            raise UserError(f"data: samples are divided by their classes only if each has one, and y has {shape} each")
        classes, label = torch.unique(y[index], return_inverse=True)
        return cls(index, classes, label, name)

    def without(self, taken: Tensor) -> Pool:
        """What is left when some samples, taken [all samples], are gone; classes stay, even with nothing left."""
        left = ~taken[self.index]
        return replace(self, index=self.index[left], label=self.label[left])

    @property
    def supply(self) -> Tensor:
        """[C] samples of each class."""
        return self.label.bincount(minlength=len(self.classes))


def allot_training(plan: PartitionPlan, cluster: Tensor, demand: Demand, balanced: bool, seed: int) -> list[Allotment]:
    """Divide the training samples among peers of the given cluster [N]: one allotment for each of PARTS."""
    source = plan.source.train
    by_class = balanced or plan.proportions is not None
    taken = torch.zeros(len(source), dtype=torch.bool)
    pools = _distinct_pools(plan.clusters)
    if demand.train is None:
        _refuse_overlap([pool for pool, _ in pools])
    indices, rows = [], []
    for everything, members in pools:
        peers = torch.isin(cluster, torch.tensor(members)).nonzero().flatten()
        name = f"the training pool ({', '.join(plan.clusters[k].name for k in members)})"
        pool = Pool.of(everything, source.y if by_class else None, name).without(taken)
        proportions = plan.proportions[peers][:, pool.classes] if plan.proportions is not None else None
        index, row = _cut(pool, _counts(pool, len(peers), demand, proportions).flatten(0, 1), seed)
        taken[index] = True
        indices.append(index)
        rows.append(peers[row // len(PARTS)] * len(PARTS) + row % len(PARTS))
    return _by_part(torch.cat(indices), torch.cat(rows), len(cluster), seed)


def allot_test(
    plan: PartitionPlan, cluster: Tensor, test: int, balanced: bool, like: Tensor | None, seed: int
) -> Allotment:
    """Draw ``test`` samples of the test set for every peer from its cluster's pool; peers may share samples.

    ``like`` [N, classes]: counts whose proportions a peer's test samples follow; None: the pool's own.
    """
    assert plan.source.test is not None
    by_class = balanced or like is not None
    indices, sums = [], []
    for k, which in enumerate(plan.clusters):
        peers = (cluster == k).nonzero().flatten()
        y = plan.source.test.y if by_class else None
        pool = Pool.of(torch.unique(which.test), y, f"the test pool ({which.name})")
        counts = _test_counts(pool, test, len(peers), like[peers][:, pool.classes] if like is not None else None)
        indices.append(_draw(pool, counts, peers, seed))
        sums.append(counts.sum(1))
    return Allotment(torch.cat(indices), torch.cat(sums))


def _distinct_pools(clusters: list[ClusterSpec]) -> list[tuple[Tensor, list[int]]]:
    """The training pools, each once, with the clusters that draw from it."""
    pools: dict[bytes, tuple[Tensor, list[int]]] = {}
    for k, cluster in enumerate(clusters):
        pool = torch.unique(cluster.train)
        pools.setdefault(pool.numpy().tobytes(), (pool, []))[1].append(k)
    return list(pools.values())


def _counts(pool: Pool, peers: int, demand: Demand, proportions: Tensor | None) -> Tensor:
    """How many samples of each class every peer gets for each part: [peers, PARTS, C]."""
    least = demand.at_least(1 if proportions is None else 2)  # chance can make a share small, but not of one sample
    if peers * sum(least) > len(pool.index):
        each = " + ".join(f"{size} {part}" for size, part in zip(least, PARTS, strict=True) if size)
        raise UserError(
            f"data.train: {peers} peers x ({each}) = {peers * sum(least)} samples asked, "
            f"{len(pool.index)} in {pool.name}"
        )
    if proportions is not None and demand.train is None:
        return carve(divide(proportions, pool.supply, sum(least)), [demand.validation, demand.test])
    sizes = _sizes(len(pool.index), peers, demand)
    if proportions is not None:
        counts = in_proportion(sizes.flatten(), proportions.repeat_interleave(len(PARTS), 0), pool.supply)
    else:
        counts = deal(sizes.flatten(), len(pool.classes))
        _refuse_short_class(pool, counts.sum(0))
    return counts.view(*sizes.shape, -1)


def _test_counts(pool: Pool, test: int, peers: int, like: Tensor | None) -> Tensor:
    """How many test samples of each class every peer gets: [peers, C]."""
    if like is not None:
        counts = each_within(test, like.to(torch.float64), pool.supply)
        if not bool(counts.sum(1).all()):
            raise UserError(f"data.test: some peers have only classes that are not in {pool.name}")
        return counts
    if test > len(pool.index):
        raise UserError(f"data.test: {test} samples asked for each peer, {len(pool.index)} in {pool.name}")
    counts = deal(torch.full((peers,), test), len(pool.classes))
    _refuse_short_class(pool, counts.amax(0))
    return counts


def _sizes(samples: int, peers: int, demand: Demand) -> Tensor:
    """How many samples every peer gets for each part: [peers, PARTS]."""
    sizes = torch.tensor(demand.at_least(0)).repeat(peers, 1)
    if demand.train is None:
        sizes[:, 0] = apportion(samples, torch.ones(peers)) - sizes.sum(1)
    return sizes


def _cut(pool: Pool, counts: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Deal the pool out, counts [R, C] distinct samples of each class to each row: samples and their rows [m]."""
    order = _shuffled(pool.index, pool.label, seed)
    unused = (pool.supply - counts.sum(0)).unsqueeze(1)
    rows = torch.arange(-1, len(counts)).roll(-1)  # the last one, -1, takes what is over
    row = rows.repeat(len(pool.classes)).repeat_interleave(torch.cat([counts.T, unused], dim=1).flatten())
    return pool.index[order][row >= 0], row[row >= 0]


def _draw(pool: Pool, counts: Tensor, peers: Tensor, seed: int) -> Tensor:
    """For each of peers [P], its own draw of counts [P, C] distinct samples of each class: [sum of counts] indices."""
    drawn = []
    of_class = [pool.index[pool.label == c] for c in range(len(pool.classes))]
    most = counts.amax(0).tolist()
    step = max(1, CHUNK // len(pool.index))
    for some, wanted in zip(torch.split(peers, step), torch.split(counts, step), strict=True):
        columns, kept = [], []
        for c, samples in enumerate(of_class):
            lots = bits(seed, Purpose.SHARE_TEST, some.unsqueeze(1), samples)
            columns.append(samples[lots.topk(most[c], largest=False).indices])
            kept.append(torch.arange(most[c]) < wanted[:, c : c + 1])
        drawn.append(torch.cat(columns, dim=1)[torch.cat(kept, dim=1)])
    return torch.cat(drawn)


def _by_part(index: Tensor, row: Tensor, peers: int, seed: int) -> list[Allotment]:
    """Sort samples by their row (peer x PARTS + part), in random order within one, and take the parts apart."""
    order = _shuffled(index, row, seed)
    index, row = index[order], row[order]
    peer, part = row // len(PARTS), row % len(PARTS)
    return [Allotment(index[part == p], peer[part == p].bincount(minlength=peers)) for p in range(len(PARTS))]


def _shuffled(index: Tensor, group: Tensor, seed: int) -> Tensor:
    """The order [m] that sorts samples by group, and at random (keyed by the sample) within a group."""
    order = bits(seed, Purpose.SHARE_TRAIN, index).argsort(stable=True)
    return order[group[order].argsort(stable=True)]


def _refuse_overlap(pools: list[Tensor]) -> None:
    """Refuse pools that differ and yet have samples in common."""
    together = torch.cat(pools)
    if len(torch.unique(together)) < len(together):
        raise UserError('data.train = "all" cannot divide clusters that share some of their samples; give a number')


def _refuse_short_class(pool: Pool, asked: Tensor) -> None:
    """Refuse when a class has fewer samples than asked [C]."""
    for label, want, have in zip(pool.classes.tolist(), asked.tolist(), pool.supply.tolist(), strict=True):
        if want > have:
            raise UserError(
                f"data.balanced: class {label} runs out, {want} samples asked, {have} in {pool.name}; "
                "ask for fewer samples or set data.balanced = false"
            )
