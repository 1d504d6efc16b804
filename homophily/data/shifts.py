"""Distribution shifts (heterogeneity): each shift turns a data set into the clusters that peers belong to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from homophily.data.images import rotated
from homophily.data.proportions import apportion
from homophily.data.sources import coefficients, load_source
from homophily.data.task_kinds import CLASSIFICATION
from homophily.data.types import Change, ClusterSpec, PartitionPlan, Samples, Source
from homophily.errors import UserError
from homophily.plugins.registry import Registry
from homophily.randomness import Purpose, permutation, word

shifts: Registry[Callable[..., PartitionPlan]] = Registry("shift", passed=("source", "peers", "seed"))

SWAPS = {2: [(0, 1), (6, 7)], 4: [(0, 1), (2, 3), (4, 5), (6, 7)]}  # the two settings of the PANM paper
VEHICLES, ANIMALS = [0, 1, 8, 9], [2, 3, 4, 5, 6, 7]  # CIFAR-10's airplane, automobile, ship, truck; and the rest
SUPERCLASSES = [10, 5, 5]  # how many of CIFAR-100's twenty superclasses each cluster has
SUPERCLASS_SIZES = [26, 13, 13]  # the ratio of the clusters' sizes in peers


@shifts("iid")
def iid(source: Source, peers: int, seed: int) -> PartitionPlan:
    """No shift: every peer draws from the same distribution."""
    return PartitionPlan([_everything(source, "all")], source)


@shifts("rotation")
def rotation(
    source: Source,
    peers: int,
    seed: int,
    *,
    angles: Annotated[
        Sequence[float], Field(description="the angle of each cluster, in degrees counter-clockwise; all different")
    ] = (0, 90, 180, 270),
) -> PartitionPlan:
    """Each cluster sees its images rotated by a different angle, in degrees counter-clockwise."""
    shape = source.train.x.shape[1:]
    if len(shape) != 3 or shape[-1] != shape[-2]:
        raise UserError(f"data.shift = 'rotation' needs square images, but {source.name} has inputs of {_by(shape)}")
    if not angles or not all(map(math.isfinite, angles)) or len({angle % 360 for angle in angles}) < len(angles):
        raise UserError(f"data.angles must be one or more different angles, not {list(angles)}")

    def rotate(angle: float) -> Change:
        return lambda x, y: (rotated(x, angle), y)

    return PartitionPlan([_everything(source, f"{a:.10g}°", rotate(a) if a % 360 else None) for a in angles], source)


@shifts("label-swap")
def label_swap(
    source: Source,
    peers: int,
    seed: int,
    *,
    clusters: Annotated[int, Field(description="2 or 4 clusters, with the label pairs of the PANM paper")] = 4,
    pairs: Annotated[
        list[tuple[int, int]] | None,
        Field(description="the two labels that each cluster exchanges. Left out: the pairs that `clusters` stands for"),
    ] = None,
) -> PartitionPlan:
    """Each cluster has two labels swapped: the PANM paper's 2 or 4 clusters, or one cluster for each of your pairs."""
    classes = _classes(source, "label-swap")
    if pairs is None and clusters not in SWAPS:
        raise UserError(f"data.clusters must be 2 or 4 with data.shift = 'label-swap' (or set pairs), not {clusters}")
    pairs = SWAPS[clusters] if pairs is None else pairs
    if not pairs or not all(0 <= a < classes and 0 <= b < classes and a != b for a, b in pairs):
        raise UserError(
            f"data.pairs: each pair must be two different labels from 0 to {classes - 1} in {source.name}, not {pairs}"
        )
    _refuse_equal("pairs", pairs)

    def swap(a: int, b: int) -> Change:
        def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            label = torch.arange(classes)
            label[[a, b]] = label[[b, a]]
            return x, label[y]

        return change

    return PartitionPlan([_everything(source, f"{a}↔{b}", swap(a, b)) for a, b in pairs], source)


@shifts("label-groups")
def label_groups(
    source: Source,
    peers: int,
    seed: int,
    *,
    groups: Annotated[
        str | list[list[int]],
        Field(
            description='the labels of each cluster: lists of labels, `"vehicles-animals"` (cifar-10), `"pairs"` '
            '(random pairs of labels) or `"superclasses"` (cifar-100)'
        ),
    ] = "vehicles-animals",
) -> PartitionPlan:
    """Each cluster has only some labels: vehicles-animals, random pairs, superclasses, or your lists of labels."""
    classes = _classes(source, "label-groups")
    if groups == "superclasses":
        return _superclasses(source, peers, seed)
    if groups == "vehicles-animals":
        if source.name != "cifar-10":
            raise UserError(f"data.groups = 'vehicles-animals' needs cifar-10, not {source.name}")
        clusters = [_labels(source, VEHICLES, "vehicles"), _labels(source, ANIMALS, "animals")]
        return PartitionPlan(clusters, source, sizes=_in_ratio(peers, [len(VEHICLES), len(ANIMALS)]))
    if groups == "pairs":
        if classes % 2:
            raise UserError(f"data.groups = 'pairs' needs an even number of labels, but {source.name} has {classes}")
        pairs = [sorted(pair) for pair in permutation(classes, seed, Purpose.SHIFT).view(-1, 2).tolist()]
        # The names do not depend on the seed, so that runs with different seeds can be compared.
        return PartitionPlan(
            [_labels(source, pair, f"pair {number}") for number, pair in enumerate(pairs, start=1)], source
        )
    if isinstance(groups, str) or not groups or not all(g and set(g) <= set(range(classes)) for g in groups):
        raise UserError(
            "data.groups must be 'vehicles-animals', 'pairs', 'superclasses' "
            f"or lists of labels from 0 to {classes - 1}, not {groups!r}"
        )
    _refuse_equal("groups", groups)
    return PartitionPlan([_labels(source, group, "+".join(map(str, group))) for group in groups], source)


@shifts("concept")
def concept(
    source: Source,
    peers: int,
    seed: int,
    *,
    clusters: Annotated[int, Field(description="clusters, each with its own coefficients; from 1 to `peers`")] = 3,
) -> PartitionPlan:
    """Each cluster of the linear data has its own coefficients, so that equal inputs get different targets."""
    if source.name != "linear":
        raise UserError(f"data.shift = 'concept' needs the linear data, not {source.name}")
    if not 1 <= clusters <= peers:
        raise UserError(f"data.clusters must be at least 1 and at most the number of peers, {peers}, not {clusters}")
    theta = [coefficients(seed, j, source.train.x.shape[1]) for j in range(clusters)]

    def add_linear(by: Tensor) -> Change:
        return lambda x, y: (x, y + (x.to(by) @ by).to(y).unsqueeze(1))

    return PartitionPlan(
        [_everything(source, f"concept {j}", add_linear(theta[j] - theta[0])) for j in range(clusters)], source
    )


@shifts("domain")
def domain(
    source: Source,
    peers: int,
    seed: int,
    *,
    other: Annotated[
        str, Field(description="the data set of the second cluster, with classes and inputs of the same shape")
    ] = "mnist",
) -> PartitionPlan:
    """Two clusters with different data sets, this one and ``other``; a model predicts the labels of both."""
    offset = _classes(source, "domain")
    if other == source.name:
        raise UserError(f"data.other: must be a different data set than data.name, which is {other} already")
    second = load_source(other, seed, {})
    x, other_x = source.train.x, second.train.x
    if second.classes is None or other_x.shape[1:] != x.shape[1:] or other_x.dtype != x.dtype:
        raise UserError(
            f"data.other: {other} must have classes and inputs of {_by(x.shape[1:])} {x.dtype} like {source.name}; "
            f"it has {second.classes or 'no'} classes and inputs of {_by(other_x.shape[1:])} {other_x.dtype}"
        )
    if (source.test is None) != (second.test is None):
        raise UserError(f"data.other: {source.name} and {other} must both have a test set, or neither")

    def joined(a: Samples, b: Samples) -> Samples:
        return Samples(torch.cat([a.x, b.x]), torch.cat([a.y, b.y + offset]))

    both = Source(
        f"{source.name} + {second.name}",
        joined(source.train, second.train),
        joined(source.test, second.test) if source.test is not None and second.test is not None else None,
        offset + second.classes,
        defaults=source.defaults,
    )
    first = _where(both, lambda samples: samples.y < offset, source.name)
    return PartitionPlan([first, _where(both, lambda samples: samples.y >= offset, second.name)], both)


@shifts("dirichlet")
def dirichlet(
    source: Source,
    peers: int,
    seed: int,
    *,
    alpha: Annotated[
        float, Field(description="concentration of the Dirichlet distribution, above 0; smaller: peers differ more")
    ] = 0.5,
) -> PartitionPlan:
    """Label skew without clusters: each peer's class proportions come from Dirichlet(alpha); small alpha, more skew."""
    classes = _classes(source, "dirichlet")
    if not 0 < alpha < math.inf:
        raise UserError(f"data.alpha must be above 0 and finite, not {alpha}")
    rng = np.random.default_rng(word(seed, Purpose.SHIFT))
    # Gamma draws: divided by the row sum, a row is a peer's Dirichlet proportions of classes; divided by the column
    # sum, a column is a class's Dirichlet proportions over peers, the usual way to divide a whole data set.
    drawn = rng.standard_gamma(alpha, size=(peers, classes)) + np.finfo(np.float64).tiny
    proportions = torch.from_numpy(drawn)
    return PartitionPlan([_everything(source, "all")], source, clustered=False, proportions=proportions)


@shifts("natural")
def natural(source: Source, peers: int, seed: int) -> PartitionPlan:
    """The owners in the data (for example hospitals) are the clusters; each gets peers in proportion to its samples."""
    owned = [s.owner for s in (source.train, source.test) if s is not None]
    if not source.owners or any(owner is None for owner in owned):
        raise UserError(f"data.shift = 'natural' needs data with an owner for each sample, but {source.name} has none")
    clusters = [_where(source, _of_owner(k), name) for k, name in enumerate(source.owners)]
    return PartitionPlan(clusters, source, sizes=_in_ratio(peers, [len(cluster.train) for cluster in clusters]))


def _superclasses(source: Source, peers: int, seed: int) -> PartitionPlan:
    """Return three clusters, each with as many random superclasses as SUPERCLASSES says."""
    if source.train.coarse is None or len(torch.unique(source.train.coarse)) != sum(SUPERCLASSES):
        raise UserError(
            f"data.groups = 'superclasses' needs the {sum(SUPERCLASSES)} superclasses of cifar-100, not {source.name}"
        )
    drawn = torch.split(permutation(sum(SUPERCLASSES), seed, Purpose.SHIFT), SUPERCLASSES)
    names = [f"{letter} ({count} superclasses)" for letter, count in zip("ABC", SUPERCLASSES, strict=True)]
    clusters = [_where(source, _in_superclasses(some), name) for some, name in zip(drawn, names, strict=True)]
    return PartitionPlan(clusters, source, sizes=_in_ratio(peers, SUPERCLASS_SIZES))


Chosen = Callable[[Samples], Tensor]  # [n] bool: which samples a cluster draws from


def _refuse_equal(key: str, clusters: Sequence[Sequence[int]]) -> None:
    """Raise a UserError if two clusters have the same labels."""
    if len({frozenset(cluster) for cluster in clusters}) < len(clusters):
        raise UserError(f"data.{key} = {[list(cluster) for cluster in clusters]}: two of them have the same labels")


def _in_superclasses(some: Tensor) -> Chosen:
    def chosen(samples: Samples) -> Tensor:
        assert samples.coarse is not None
        return torch.isin(samples.coarse, some)

    return chosen


def _of_owner(which: int) -> Chosen:
    def chosen(samples: Samples) -> Tensor:
        assert samples.owner is not None
        return samples.owner == which

    return chosen


def _labels(source: Source, labels: list[int], name: str) -> ClusterSpec:
    return _where(source, lambda samples: torch.isin(samples.y, torch.tensor(labels)), name)


def _where(source: Source, chosen: Chosen, name: str) -> ClusterSpec:
    """Return the cluster that draws from the chosen samples."""
    train, test = (
        chosen(s).nonzero().flatten() if s is not None else torch.zeros(0, dtype=torch.int64)
        for s in (source.train, source.test)
    )
    return ClusterSpec(name, train, test)


def _everything(source: Source, name: str, change: Change | None = None) -> ClusterSpec:
    """Return the cluster that draws from all samples."""
    return ClusterSpec(name, torch.arange(len(source.train)), torch.arange(len(source.test or ())), change)


def _in_ratio(peers: int, ratio: list[int]) -> list[int]:
    """Return peers per cluster in proportion to the ratio, at least one each if there are enough peers."""
    sizes = apportion(peers, torch.tensor(ratio))
    while bool((sizes == 0).any()) and int(sizes.max()) > 1:
        sizes[sizes.argmax()] -= 1
        sizes[sizes.argmin()] += 1
    return [int(size) for size in sizes]


def _classes(source: Source, shift: str) -> int:
    if source.classes is None or source.kind is not CLASSIFICATION:
        found = f"{source.name} is a {source.kind.name} data set"
        raise UserError(f"data.shift = {shift!r} needs data with classes, one per sample, but {found}")
    return source.classes


def _by(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
