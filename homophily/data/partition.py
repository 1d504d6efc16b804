"""The partition of data among peers: turns a plan of clusters into every peer's normalised samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Literal

import torch
from torch import Tensor

from homophily.data.allotment import Allotment, Demand, allot_test, allot_training
from homophily.data.constants import AgreedScale, classes_by, own_constants, scale_by, target_scale_by
from homophily.data.missing import impute, missing
from homophily.data.preparation import Preparation, raw_kind
from homophily.data.proportions import apportion
from homophily.data.task_kinds import CLASSIFICATION, as_targets, check_classes
from homophily.data.types import ClusterSpec, FederatedData, PartitionPlan, Samples, Source, Split
from homophily.errors import UserError
from homophily.plugins.validation import answer

Amount = int | Literal["all"]


def partition_source(
    plan: PartitionPlan,
    *,
    peers: int,
    sizes: list[int] | None,
    train: Amount,
    validation: int,
    test: Amount,
    balanced: bool,
    normalise: str | AgreedScale,
    seed: int,
) -> FederatedData:
    """Return every peer's data, peers of cluster 0 first: ``train``, ``validation`` and ``test`` samples per peer.

    ``sizes``: peers per cluster (None: the plan's, or equal). ``balanced``: class counts as equal as possible.
    ``normalise``: how inputs are scaled, or the constants on which all peers agree.
    """
    source = plan.source
    _check(plan, train, validation, test, balanced)
    if plan.proportions is not None:
        wanted = "data.shift: proportions must have a weight per peer and class"
        answer(plan.proportions, (peers, source.classes or 0), wanted)
    cluster = torch.arange(len(plan.clusters)).repeat_interleave(torch.tensor(_sizes(plan, peers, sizes)))
    cut = 0 if source.test is not None or test == "all" else test  # no test set: take test samples from train
    demand = Demand(None if train == "all" else train, validation, cut)
    for_train, for_validation, for_test = allot_training(plan, cluster, demand, balanced, seed)
    if source.test is None:
        tested = _split(plan, source.train, for_test, cluster)
    elif test == "all":
        tested = _whole_test_pools(plan, source.test, cluster)
    else:
        like = _class_counts(source, for_train) if plan.proportions is not None else None
        tested = _split(plan, source.test, allot_test(plan, cluster, test, balanced, like, seed), cluster)
    splits = [_split(plan, source.train, for_train, cluster), tested]
    if validation:
        splits.append(_split(plan, source.train, for_validation, cluster))
    if source.classes is not None:
        for split in splits:
            check_classes(split.y, source.classes, "data: y")
    splits = [replace(split, y=as_targets(split.y, source.kind, "data: y")) for split in splits]
    scale = scale_by(normalise, source.train.x)
    splits = [replace(split, x=scale(split.x)) for split in splits]
    raw = raw_kind(source.train.x)
    fill = absent = None
    if isinstance(normalise, AgreedScale):
        splits, fill = normalise.prepare(splits, scale)
    elif raw != "pixels":  # pixels are never missing
        absent = missing(splits[0].x)
        fill = _imputed(splits, shared_test=test == "all")
    classes = classes_by(normalise, source.classes, source.kind)
    return FederatedData(
        train=splits[0],
        test=splits[1],
        validation=splits[2] if validation else None,
        classes=classes,
        outputs=classes or prod(source.train.y.shape[1:]),
        cluster=cluster if plan.clustered else None,
        cluster_names=tuple(k.name for k in plan.clusters) if plan.clustered else (),
        preparation=Preparation(raw, scale, fill),
        target_scale=target_scale_by(normalise, splits[0].y, source.kind),
        own_constants=own_constants(normalise, source.kind, declared=source.classes),
        missing=absent,
        kind=source.kind,
    )


def _check(plan: PartitionPlan, train: Amount, validation: int, test: Amount, balanced: bool) -> None:
    """Raise a UserError for mistakes that can be found without looking at the samples."""
    names = [cluster.name for cluster in plan.clusters]
    if not names or len(set(names)) < len(names):
        raise UserError(f"data.shift: must return at least one cluster, each with a different name, not {names}")
    for cluster in plan.clusters:
        _check_indices(f"train of cluster {cluster.name!r}", cluster.train, plan.source.train)
        if plan.source.test is not None:
            _check_indices(f"test of cluster {cluster.name!r}", cluster.test, plan.source.test)
    for key, amount, least in (("train", train, 1), ("validation", validation, 0), ("test", test, 1)):
        if amount != "all" and not (isinstance(amount, int) and amount >= least):
            raise UserError(f"data.{key} must be at least {least}, not {amount!r}")
    if test == "all" and plan.source.test is None:
        raise UserError(
            f'data.test = "all" needs a test set, but {plan.source.name} has none; set data.test to a number'
        )
    if test == "all" and plan.proportions is not None:
        raise UserError(
            'data.test = "all" cannot be used with a shift that gives every peer its own class proportions; '
            "set data.test to a number"
        )
    per_class = "data.balanced" if balanced else "data.shift with class proportions"
    if (balanced or plan.proportions is not None) and plan.source.kind is not CLASSIFICATION:
        found = f"{plan.source.name} is a {plan.source.kind.name} data set"
        raise UserError(f"{per_class} needs data with classes, one per sample, but {found}")
    if balanced and plan.proportions is not None:
        raise UserError("data.balanced = true contradicts a shift that gives every peer its own class proportions")


def _check_indices(name: str, index: Tensor, samples: Samples) -> None:
    whole = index.dim() == 1 and index.dtype in (torch.int32, torch.int64)
    if not whole or (len(index) and not 0 <= int(index.min()) <= int(index.max()) < len(samples)):
        raise UserError(f"data.shift: {name} must be indices of samples, from 0 to {len(samples) - 1}")


def _sizes(plan: PartitionPlan, peers: int, sizes: list[int] | None) -> list[int]:
    """Return how many peers each cluster has."""
    names = ", ".join(cluster.name for cluster in plan.clusters)
    if sizes is None:
        sizes = plan.sizes or [int(size) for size in apportion(peers, torch.ones(len(plan.clusters)))]
        if min(sizes) < 1:
            raise UserError(f"peers = {peers}: too few for {len(sizes)} clusters ({names}), each of at least one peer")
    if len(sizes) != len(plan.clusters):
        raise UserError(f"data.sizes has {len(sizes)} numbers, but there are {len(plan.clusters)} clusters ({names})")
    if min(sizes) < 1:
        raise UserError(f"data.sizes: every cluster ({names}) needs at least one peer, not {min(sizes)}")
    if sum(sizes) != peers:
        raise UserError(f"data.sizes: {' + '.join(map(str, sizes))} = {sum(sizes)}, but there are {peers} peers")
    return sizes


def _split(plan: PartitionPlan, samples: Samples, allotment: Allotment, cluster: Tensor) -> Split:
    """Return the allotted samples after the change of each cluster, not yet normalised."""
    count = allotment.count
    of_cluster = torch.zeros(len(plan.clusters), dtype=torch.int64).index_add(0, cluster, count)
    return Split(
        *_gathered(plan, samples, torch.split(allotment.index, of_cluster.tolist())), count.cumsum(0) - count, count
    )


def _whole_test_pools(plan: PartitionPlan, samples: Samples, cluster: Tensor) -> Split:
    """Return each cluster's whole test pool, stored once and shared by the cluster's peers."""
    pools = [torch.unique(k.test) for k in plan.clusters]
    size = torch.tensor([len(pool) for pool in pools])
    if not bool(size.all()):
        raise UserError(f"data.test: the test set has no samples for {plan.clusters[int(size.argmin())].name}")
    return Split(*_gathered(plan, samples, pools), (size.cumsum(0) - size)[cluster], size[cluster])


def _gathered(plan: PartitionPlan, samples: Samples, index: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return x and y of the samples index[k] of every cluster k, after the change of that cluster."""
    made = []
    for cluster, which in zip(plan.clusters, index, strict=True):
        x, y = samples.x[which], samples.y[which]
        made.append(_changed(cluster, x, y) if cluster.change is not None else (x, y))
    xs, ys = zip(*made, strict=True)
    for name, parts in (("x", xs), ("y", ys)):
        if other := [part for part in parts if part.shape[1:] != parts[0].shape[1:]]:
            shapes = f"{list(parts[0].shape[1:])} and {list(other[0].shape[1:])}"
            raise UserError(f"data.shift: a sample's {name} must have the same shape in all clusters, not {shapes}")
    return torch.cat(xs), torch.cat(ys)


def _changed(cluster: ClusterSpec, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    assert cluster.change is not None
    made = cluster.change(x, y)
    both = isinstance(made, tuple | list) and len(made) == 2
    if not both or not all(isinstance(part, Tensor) and part.shape[:1] == x.shape[:1] for part in made):
        raise UserError(f"data.shift: change of cluster {cluster.name!r} must return x and y, one row per sample")
    for name, given, part in (("x", x, made[0]), ("y", y, made[1])):
        if part.dtype != given.dtype:
            wanted = f"must return {name} in the dtype it was given, {given.dtype}, not {part.dtype}"
            raise UserError(f"data.shift: change of cluster {cluster.name!r} {wanted}")
    return made


def _class_counts(source: Source, allotment: Allotment) -> Tensor:
    """Return how many training samples of each class every peer has: [N, classes]."""
    assert source.classes is not None
    peers = len(allotment.count)
    peer = torch.arange(peers).repeat_interleave(allotment.count)
    cell = peer * source.classes + source.train.y[allotment.index]
    return cell.bincount(minlength=peers * source.classes).view(peers, source.classes)


def _imputed(splits: list[Split], shared_test: bool) -> Tensor | None:
    """Impute missing values, in place, from each peer's own training samples (the first split); return the means."""
    if not any(bool(split.x.isnan().any()) for split in splits):
        return None
    if shared_test:
        raise UserError(
            'data.test = "all" cannot be used with missing values: peers share the test set, but each imputes missing '
            "values from its own data; set data.test to a number"
        )
    return impute([[split.peer(i)[0] for split in splits] for i in range(len(splits[0].start))])
