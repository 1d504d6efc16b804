"""The data types: samples, data sets, partition plans, and the partitioned data of all peers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from homophily.data.fields import Fields
from homophily.data.preparation import Preparation
from homophily.data.task_kinds import MULTI_LABEL, TaskKind, as_targets, check_classes, kind_of
from homophily.errors import UserError
from homophily.plugins.parameters import must_take


def _check_types(thing: Any, **types: Any) -> None:
    """Raise a UserError for the first field that has the wrong type: users create these objects too."""
    for name, allowed in types.items():
        found = getattr(thing, name)
        if not isinstance(found, allowed):
            wanted = type(thing).__dataclass_fields__[name].type
            raise UserError(f"{type(thing).__name__}: {name} must be {wanted}, not {type(found).__name__}")


@dataclass(frozen=True)
class Samples:
    """A set of samples.

    x: [n, ...] uint8 pixels, floats or integer tokens; y: targets of one of the task kinds: [n] int64 classes,
    [n, length] int64 classes of positions, [n, labels] booleans, or [n, outputs] floats.
    """

    x: Tensor
    y: Tensor
    coarse: Tensor | None = None  # [n] int64: a coarser label, if the data has one (CIFAR-100's superclasses)
    owner: Tensor | None = None  # [n] int64: index into Source.owners (which hospital, for example), if known

    def __post_init__(self) -> None:
        _check_types(self, x=Tensor, y=Tensor)
        if len(self.x) != len(self.y):
            raise UserError(f"Samples: x has {len(self.x)} samples but y has {len(self.y)}")

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Source:
    """A data set before it is partitioned. ``test`` None: test samples are taken from ``train``."""

    name: str
    train: Samples
    test: Samples | None
    classes: int | None  # None: regression or multi-label
    owners: tuple[str, ...] = ()  # the names that Samples.owner refers to
    defaults: Mapping[str, Any] = field(default_factory=dict)  # config keys with the data set's own defaults
    task: str | None = None  # name of the task kind; None: inferred from y

    def __post_init__(self) -> None:
        _check_types(self, name=str, train=Samples, test=Samples | None, classes=int | None, defaults=Mapping)
        kind = self.kind
        if self.task is not None and kind.has_classes != (self.classes is not None):
            raise UserError(f"Source: task = {self.task!r}, but classes = {self.classes}")
        for y in (samples.y for samples in (self.train, self.test) if samples is not None):
            if self.classes is None and kind is not MULTI_LABEL and (y.dim() < 2 or not y.is_floating_point()):
                raise UserError(f"Source: without classes y must be floats [n, outputs], not {y.dtype} {list(y.shape)}")
            if self.classes is not None and y.dtype != torch.int64:
                raise UserError(f"Source: with classes y must be whole numbers, torch.int64, not {y.dtype}")
            as_targets(y, kind, "data: y")
            if self.classes is not None:
                check_classes(y, self.classes, "data: y")

    @property
    def kind(self) -> TaskKind:
        """The kind of task that its targets belong to."""
        return kind_of(self.train.y, self.task)


Change = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class ClusterSpec:
    """The data distribution of one cluster: which samples its peers draw from, and how these are changed."""

    name: str
    train: Tensor  # [m] int64: indices into the source's training samples that peers of this cluster may get
    test: Tensor  # [m] int64: the same for the test samples (empty if the source has no test set)
    change: Change | None = None  # (x, y) -> (x, y) on raw samples, before normalisation; None: unchanged

    def __post_init__(self) -> None:
        _check_types(self, name=str, train=Tensor, test=Tensor)
        if self.change is not None:
            must_take(self.change, ["x", "y"], f"ClusterSpec {self.name!r}: change")


@dataclass(frozen=True)
class PartitionPlan:
    """What a shift returns: the clusters, and how peers differ."""

    clusters: list[ClusterSpec]
    source: Source  # what the clusters' indices refer to (a shift may have joined two data sets)
    clustered: bool = True  # False: peers do not form clusters (Dirichlet), so there are no true clusters
    sizes: list[int] | None = None  # peers per cluster if the config does not set data.sizes; None: equal
    proportions: Tensor | None = None  # [peers, classes]: weight of each class in a peer's data (Dirichlet)

    def __post_init__(self) -> None:
        _check_types(self, clusters=Sequence, source=Source)
        for cluster in self.clusters:
            if not isinstance(cluster, ClusterSpec):
                raise UserError(
                    f"PartitionPlan: clusters must be list[ClusterSpec], but one is {type(cluster).__name__}"
                )


@dataclass(frozen=True)
class Split:
    """All peers' samples of one split; peer i owns rows start[i] to start[i] + count[i] (ranges may overlap)."""

    x: Tensor  # [m, ...]
    y: Tensor  # [m] int64, [m, ...] int64 or [m, ...] float32, by the kind of task
    start: Tensor  # [N] int64
    count: Tensor  # [N] int64

    def peer(self, i: int) -> tuple[Tensor, Tensor]:
        """Return peer i's x and y, as views."""
        rows = slice(int(self.start[i]), int(self.start[i] + self.count[i]))
        return self.x[rows], self.y[rows]

    def owner(self, sample: int) -> int:
        """Return the peer that has the sample with this row index."""
        return int(((self.start <= sample) & (sample < self.start + self.count)).nonzero()[0])

    def samples(self, peers: Tensor, most: int) -> Tensor:
        """Return the row indices [M, most] of the samples of peers [M]; a peer with fewer repeats its last one."""
        position = torch.arange(most, device=peers.device)
        return self.start[peers, None] + position.minimum(self.count[peers, None] - 1)

    def part(self, peers: slice) -> tuple[Split, slice]:
        """Return the samples of some consecutive peers, copied, and which rows of x and y they are."""
        start, count = self.start[peers], self.count[peers]
        rows = slice(int(start.min()), int((start + count).max())) if len(start) else slice(0, 0)
        return Split(self.x[rows].clone(), self.y[rows].clone(), start - rows.start, count.clone()), rows

    def to(self, device: torch.device) -> Split:
        return Split(*(t.to(device) for t in (self.x, self.y, self.start, self.count)))


@dataclass(frozen=True)
class Roster:
    """Who the peers of a federation are, by id."""

    peers: int
    cluster: Tensor | None  # [N] int64: the true cluster of each peer; None: unknown
    cluster_names: tuple[str, ...] = ()
    names: tuple[str | None, ...] | None = None  # None: no peer has a name

    def by_cluster(self) -> dict[str, list[int]]:
        """Return the peers of each cluster, by its name; all in one if clusters are not known."""
        if self.cluster is None:
            return {"all": list(range(self.peers))}
        cluster = self.cluster.tolist()
        return {name: [i for i, c in enumerate(cluster) if c == n] for n, name in enumerate(self.cluster_names)}


@dataclass(frozen=True)
class FederatedData:
    """The training, validation and test samples of all peers."""

    train: Split
    test: Split
    validation: Split | None
    classes: int | None  # None: regression or multi-label
    outputs: int  # how many values a model returns for a sample (tokens: for each position)
    cluster: Tensor | None  # [N] int64: the true cluster of each peer; None: unknown
    cluster_names: tuple[str, ...] = field(default=())
    class_names: tuple[str, ...] | None = None  # by class, if classes were given as strings
    preparation: Preparation = field(default_factory=Preparation)  # how the raw samples were preprocessed
    names: tuple[str | None, ...] | None = None  # of the peers; None: no peer has a name
    target_scale: tuple[Tensor, Tensor] | None = None  # mean and standard deviation [outputs] of a regression's targets
    own_constants: tuple[str, ...] = ()  # keys of data.scale that were computed from the peers' samples instead
    drawn: bool = False  # training samples were drawn from more samples of the peers
    most_of_one_person: Tensor | None = None  # [N]: the most training samples of one person; 0, None: not known
    missing: Tensor | None = None  # [m, ...] bool: training inputs replaced by means of the peer's own; None: no input
    fields: Fields | None = None  # of the inputs, if they have names; x is then [m, columns]
    kind: TaskKind = field(kw_only=True)  # of the targets

    @property
    def peers(self) -> int:
        return len(self.train.start)

    def label(self, peer: int) -> str:
        """What error messages call a peer."""
        name = self.names[peer] if self.names is not None else None
        return f"peer {peer}" if name is None else f"peer {name!r}"

    @property
    def inputs(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.train.x.shape[1:])

    @property
    def roster(self) -> Roster:
        """Who the peers are."""
        return Roster(self.peers, self.cluster, self.cluster_names, self.names)

    def part(self, peers: slice) -> FederatedData:
        """Return the data of some consecutive peers, which keep no memory of the others' samples."""
        train, rows = self.train.part(peers)
        return replace(
            self,
            train=train,
            test=self.test.part(peers)[0],
            validation=None if self.validation is None else self.validation.part(peers)[0],
            cluster=None if self.cluster is None else self.cluster[peers],
            names=None if self.names is None else self.names[peers],
            missing=None if self.missing is None else self.missing[rows].clone(),
            most_of_one_person=None if self.most_of_one_person is None else self.most_of_one_person[peers],
        )

    @cached_property
    def digest(self) -> str:
        """A hash of all peers' samples."""
        found = blake2b(digest_size=16)
        for split in (self.train, self.test, self.validation):
            for table in (split.x, split.y, split.start, split.count) if split is not None else ():
                found.update(table.cpu().contiguous().numpy().tobytes())
        return found.hexdigest()

    def to(self, device: torch.device) -> FederatedData:
        return replace(
            self,
            train=self.train.to(device),
            test=self.test.to(device),
            validation=None if self.validation is None else self.validation.to(device),
            cluster=None if self.cluster is None else self.cluster.to(device),
            missing=None if self.missing is None else self.missing.to(device),
            target_scale=self.target_scale and (self.target_scale[0].to(device), self.target_scale[1].to(device)),
        )
