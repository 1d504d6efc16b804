"""Assignment of samples to peers, as indices, by keyed random draws. Two peers never share a training sample."""

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
    """How many of the source's training samples every peer gets for training, validation and testing.

    train: None if all training samples are divided among the peers; test: 0 if the source has a separate test set.
    """

    train: int | None
    validation: int
    test: int

    def at_least(self, train: int) -> list[int]:
        """Return the fewest samples of a peer for each of PARTS; ``train`` replaces ``self.train`` if that is None."""
        return [train if self.train is None else self.train, self.validation, self.test]


@dataclass(frozen=True)
class Allotment:
    """The samples of all peers, ordered by peer. index: [m] indices of source samples; count: [N] samples per peer."""

    index: Tensor
    count: Tensor


@dataclass(frozen=True)
class Pool:
    """The samples that some peers draw from, by class (a single class if the draw ignores classes)."""

    index: Tensor  # [m]
    classes: Tensor  # [C] the labels that occur
    label: Tensor  # [m] position in classes
    name: str  # for error messages

    @classmethod
    def of(cls, index: Tensor, y: Tensor | None, name: str) -> Pool:
        """Return the pool of the samples ``index``. y: targets of all samples; None: the draw ignores classes."""
        if y is None:
            return cls(index, torch.zeros(1, dtype=torch.int64), torch.zeros_like(index), name)
        classes, label = torch.unique(y[index], return_inverse=True)
        return cls(index, classes, label, name)

    def without(self, taken: Tensor) -> Pool:
        """Return the pool without the samples marked in ``taken`` [all samples] bool; empty classes are kept."""
        left = ~taken[self.index]
        return replace(self, index=self.index[left], label=self.label[left])

    @property
    def supply(self) -> Tensor:
        """[C]: how many samples each class has."""
        return self.label.bincount(minlength=len(self.classes))


def allot_training(plan: PartitionPlan, cluster: Tensor, demand: Demand, balanced: bool, seed: int) -> list[Allotment]:
    """Divide the training samples among the peers and return one allotment for each of PARTS. cluster: [N]."""
    source = plan.source.train
    by_class = balanced or plan.proportions is not None
    taken = torch.zeros(len(source), dtype=torch.bool)
    pools = _distinct_pools(plan.clusters)
    if demand.train is None:
        _refuse_overlap([pool for pool, _ in pools])
    indices, rows = [], []
    for samples, members in pools:
        peers = torch.isin(cluster, torch.tensor(members)).nonzero().flatten()
        name = f"the training pool ({', '.join(plan.clusters[k].name for k in members)})"
        pool = Pool.of(samples, source.y if by_class else None, name).without(taken)
        proportions = plan.proportions[peers][:, pool.classes] if plan.proportions is not None else None
        index, row = _assign(pool, _counts(pool, len(peers), demand, proportions).flatten(0, 1), seed)
        taken[index] = True
        indices.append(index)
        rows.append(peers[row // len(PARTS)] * len(PARTS) + row % len(PARTS))
    return _by_part(torch.cat(indices), torch.cat(rows), len(cluster), seed)


def allot_test(
    plan: PartitionPlan, cluster: Tensor, test: int, balanced: bool, like: Tensor | None, seed: int
) -> Allotment:
    """Draw ``test`` samples of the test set for every peer from its cluster's pool; peers may share samples.

    like: [N, classes], class counts of each peer, whose proportions its test samples follow; None: those of the pool.
    """
    assert plan.source.test is not None
    by_class = balanced or like is not None
    indices, sums = [], []
    for k, spec in enumerate(plan.clusters):
        peers = (cluster == k).nonzero().flatten()
        y = plan.source.test.y if by_class else None
        pool = Pool.of(torch.unique(spec.test), y, f"the test pool ({spec.name})")
        counts = _test_counts(pool, test, len(peers), like[peers][:, pool.classes] if like is not None else None)
        indices.append(_draw(pool, counts, peers, seed))
        sums.append(counts.sum(1))
    return Allotment(torch.cat(indices), torch.cat(sums))


def _distinct_pools(clusters: list[ClusterSpec]) -> list[tuple[Tensor, list[int]]]:
    """Return the distinct training pools, each with the clusters that draw from it."""
    pools: dict[bytes, tuple[Tensor, list[int]]] = {}
    for k, cluster in enumerate(clusters):
        pool = torch.unique(cluster.train)
        pools.setdefault(pool.numpy().tobytes(), (pool, []))[1].append(k)
    return list(pools.values())


def _counts(pool: Pool, peers: int, demand: Demand, proportions: Tensor | None) -> Tensor:
    """Return how many samples of each class every peer gets for each part: [peers, PARTS, C]."""
    least = demand.at_least(1 if proportions is None else 2)  # with class proportions, every peer gets at least two
    if peers * sum(least) > len(pool.index):
        each = " + ".join(f"{size} {part}" for size, part in zip(least, PARTS, strict=True) if size)
        raise UserError(
            f"data.train: {peers} peers x ({each}) need {peers * sum(least)} samples, "
            f"but {pool.name} has {len(pool.index)}"
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
    """Return how many test samples of each class every peer gets: [peers, C]."""
    if like is not None:
        counts = each_within(test, like.to(torch.float64), pool.supply)
        if not bool(counts.sum(1).all()):
            raise UserError(f"data.test: some peers have only classes that {pool.name} does not contain")
        return counts
    if test > len(pool.index):
        raise UserError(f"data.test: every peer needs {test} samples, but {pool.name} has {len(pool.index)}")
    counts = deal(torch.full((peers,), test), len(pool.classes))
    _refuse_short_class(pool, counts.amax(0))
    return counts


def _sizes(samples: int, peers: int, demand: Demand) -> Tensor:
    """Return how many samples every peer gets for each part: [peers, PARTS]."""
    sizes = torch.tensor(demand.at_least(0)).repeat(peers, 1)
    if demand.train is None:
        sizes[:, 0] = apportion(samples, torch.ones(peers)) - sizes.sum(1)
    return sizes


def _assign(pool: Pool, counts: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Assign samples to R rows (a peer and a part), counts [R, C] of each class, each sample to at most one row.

    Return the samples and their rows, [m] each.
    """
    order = _shuffled(pool.index, pool.label, seed)
    unused = (pool.supply - counts.sum(0)).unsqueeze(1)
    rows = torch.arange(-1, len(counts)).roll(-1)  # 0, 1, ..., -1; row -1 gets the unused samples
    row = rows.repeat(len(pool.classes)).repeat_interleave(torch.cat([counts.T, unused], dim=1).flatten())
    return pool.index[order][row >= 0], row[row >= 0]


def _draw(pool: Pool, counts: Tensor, peers: Tensor, seed: int) -> Tensor:
    """Draw counts [P, C] distinct samples of each class for each of peers [P]: indices [sum of counts], by peer."""
    drawn = []
    of_class = [pool.index[pool.label == c] for c in range(len(pool.classes))]
    most = counts.amax(0).tolist()
    step = max(1, CHUNK // len(pool.index))
    for chunk, chunk_counts in zip(torch.split(peers, step), torch.split(counts, step), strict=True):
        columns, kept = [], []
        for c, samples in enumerate(of_class):
            keys = bits(seed, Purpose.SHARE_TEST, chunk.unsqueeze(1), samples)
            columns.append(samples[keys.topk(most[c], largest=False).indices])
            kept.append(torch.arange(most[c]) < chunk_counts[:, c : c + 1])
        drawn.append(torch.cat(columns, dim=1)[torch.cat(kept, dim=1)])
    return torch.cat(drawn)


def _by_part(index: Tensor, row: Tensor, peers: int, seed: int) -> list[Allotment]:
    """Shuffle the samples of each row (peer x PARTS + part) and return one allotment for each part."""
    order = _shuffled(index, row, seed)
    index, row = index[order], row[order]
    peer, part = row // len(PARTS), row % len(PARTS)
    return [Allotment(index[part == p], peer[part == p].bincount(minlength=peers)) for p in range(len(PARTS))]


def _shuffled(index: Tensor, group: Tensor, seed: int) -> Tensor:
    """Return the order [m] that sorts samples by group, and at random (keyed by the sample) within a group."""
    order = bits(seed, Purpose.SHARE_TRAIN, index).argsort(stable=True)
    return order[group[order].argsort(stable=True)]


def _refuse_overlap(pools: list[Tensor]) -> None:
    """Raise a UserError if two distinct pools have samples in common."""
    together = torch.cat(pools)
    if len(torch.unique(together)) < len(together):
        raise UserError('data.train = "all" needs clusters that do not share samples; set data.train to a number')


def _refuse_short_class(pool: Pool, needed: Tensor) -> None:
    """Raise a UserError if a class has fewer samples than ``needed`` [C]."""
    for label, want, have in zip(pool.classes.tolist(), needed.tolist(), pool.supply.tolist(), strict=True):
        if want > have:
            raise UserError(
                f"data.balanced: {want} samples of class {label} are needed, but {pool.name} has {have}; "
                "ask for fewer samples or set data.balanced = false"
            )
