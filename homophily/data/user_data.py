"""Users' own data: checks every peer's arrays, and divides them into training, validation and test samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from homophily.data.class_names import numbered
from homophily.data.constants import AgreedScale, classes_by, own_constants, scale_by, target_scale_by
from homophily.data.missing import impute, missing
from homophily.data.normalise import as_floats
from homophily.data.peer_data import Array, Inputs, PeerData
from homophily.data.preparation import Preparation, raw_kind
from homophily.data.task_kinds import TOKENS, TaskKind, as_targets, kind_of
from homophily.data.types import FederatedData, Split
from homophily.errors import UserError
from homophily.randomness import Purpose, permutation

Amount = int | Literal["all"] | None


@dataclass(frozen=True)
class _Part:
    """Checked samples. x: [n, ...]; y: [n, ...] int64 or float32."""

    x: Tensor
    y: Tensor
    kind: TaskKind  # of the targets
    person: Tensor | None = None  # [n] int64: a number for each person; None: not known

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, chosen: Tensor) -> _Part:
        """Return the chosen samples, in their original order."""
        chosen = chosen.sort().values
        person = None if self.person is None else self.person[chosen]
        return _Part(self.x[chosen], self.y[chosen], self.kind, person)

    @property
    def most_of_one_person(self) -> int:
        """The most samples that one person has; 0: not known."""
        return 0 if self.person is None else int(self.person.bincount().max())


@dataclass(frozen=True)
class _Peer:
    """One peer's checked samples; ``label`` names it in messages."""

    label: str
    own: _Part
    validation: _Part | None
    test: _Part | None

    def named(self) -> dict[str, _Part]:
        """Return the peer's parts by the prefix of their PeerData fields."""
        parts = {"": self.own, "validation_": self.validation, "test_": self.test}
        return {name: part for name, part in parts.items() if part is not None}

    def parts(self) -> list[_Part]:
        return list(self.named().values())


_Divided = tuple[_Part, _Part | None, _Part]  # training, validation and test samples


def partition_user_data(
    peers: Sequence[PeerData],
    train: Amount,
    validation: int | None,
    test: Amount,
    seed: int,
    normalise: str | AgreedScale = "unit",
    task: str | None = None,
) -> FederatedData:
    """Return the data of peers that bring their own samples.

    If a peer brings no validation or test samples, they are drawn from its x and y. ``train`` and ``test`` None or
    "all": all samples, or a fifth of x as test samples if the peer brings none. ``validation`` None: the samples that
    peers bring; 0: no validation samples. ``normalise``: how inputs are scaled, or the constants on which all peers
    agree. ``task``: the name of the task kind; None: inferred from the targets.
    """
    if not peers:
        raise UserError("data: the list of peers is empty; pass at least one PeerData")
    _check_amount("train", train, least=1)
    _check_amount("validation", validation, least=0)
    _check_amount("test", test, least=1)
    agreed = normalise if isinstance(normalise, AgreedScale) else None
    peers, class_names = numbered(peers, *(agreed.class_names if agreed else (None, "")), task)
    checked = [_checked_peer(peer, i, task) for i, peer in enumerate(peers)]
    _check_alike(checked, validation)
    divided = [_divided(peer, train, validation, test, seed, i) for i, peer in enumerate(checked)]
    (training, validating, testing), preparation = _prepared(divided, normalise)
    kind = checked[0].own.kind
    found = 1 + max(int(part.y.max()) for peer in checked for part in peer.parts()) if kind.has_classes else None
    if found is not None and class_names is not None:
        found = max(found, len(class_names))
    classes = classes_by(normalise, found, kind)
    cluster, cluster_names = _clusters(peers)
    return FederatedData(
        train=training,
        test=testing,
        validation=validating,
        classes=classes,
        outputs=classes or prod(training.y.shape[1:]),
        cluster=cluster,
        cluster_names=cluster_names,
        preparation=preparation,
        names=tuple(peer.name for peer in peers) if any(peer.name for peer in peers) else None,
        target_scale=target_scale_by(normalise, training.y, kind),
        class_names=class_names,
        own_constants=own_constants(normalise, kind),
        drawn=any(len(own) < len(peer.own) for (own, _, _), peer in zip(divided, checked, strict=True)),
        most_of_one_person=torch.tensor([own.most_of_one_person for own, _, _ in divided]),
        missing=None if agreed else missing(torch.cat([own.x for own, _, _ in divided])),
        kind=kind,
    )


def _check_amount(key: str, value: Amount, least: int) -> None:
    if value is None or (value == "all" and key != "validation"):
        return
    if not isinstance(value, int) or value < least:
        other = "" if key == "validation" else ' or "all"'
        raise UserError(f"data.{key} must be a whole number of at least {least}{other}, not {value!r}")


def _checked_peer(peer: PeerData, number: int, task: str | None) -> _Peer:
    label = f"peer {peer.name!r}" if peer.name else f"peer {number}"

    def optional(part: str, x: Inputs | None, y: Array | None) -> _Part | None:
        if x is None and y is None:
            return None
        if x is None or y is None:
            raise UserError(f"{label}: {part}x and {part}y must be given together")
        return _checked_part(label, part, x, y, task)

    own = _checked_part(label, "", peer.x, peer.y, task)
    return _Peer(
        label,
        replace(own, person=_persons(label, peer.person, len(own))),
        optional("validation_", peer.validation_x, peer.validation_y),
        optional("test_", peer.test_x, peer.test_y),
    )


def _persons(label: str, given: Array | None, samples: int) -> Tensor | None:
    """Return a number for the person of each sample."""
    if given is None:
        return None
    persons = np.asarray(given)
    named = persons.dtype.kind in "iuU" or (
        persons.dtype.kind == "O" and all(isinstance(one, str | int | np.integer) for one in persons.flat)
    )
    if persons.shape != (samples,) or not named:
        raise UserError(f"{label}: person must be a whole number or a string for each of the {samples} rows of x")
    return torch.from_numpy(np.unique(persons.astype(str), return_inverse=True)[1])


def _checked_part(label: str, part: str, raw_x: Inputs, raw_y: Array, task: str | None) -> _Part:
    """Return checked samples. ``part`` is the prefix of the field names: "", "validation_" or "test_"."""
    x, y = as_tensor(f"{label}: {part}x", raw_x), as_tensor(f"{label}: {part}y", raw_y)
    if x.dim() < 2:
        raise UserError(f"{label}: {part}x must have one row per sample, not the shape {list(x.shape)}")
    if x.dtype == torch.bool:
        x = x.to(torch.float32)
    if not y.dim():
        raise UserError(f"{label}: {part}y must have one row per sample, not the shape {list(y.shape)}")
    if len(x) != len(y):
        raise UserError(f"{label}: {part}x has {len(x)} samples but {part}y has {len(y)}")
    if len(x) == 0:
        raise UserError(f"{label}: {part}x has no samples")
    if not x.numel() or not y.numel():
        shapes = f"{list(x.shape)} and {list(y.shape)}"
        raise UserError(f"{label}: {part}x and {part}y must not be empty, but their shapes are {shapes}")
    if bool(x.isinf().any()):
        raise UserError(f"{label}: {part}x contains infinite values")
    kind = kind_of(y, task)
    if task is None and kind is TOKENS and list(y.shape[1:]) == [1]:
        wanted = f"must have the shape [n] if it holds classes, not {list(y.shape)}"
        raise UserError(f"{label}: {part}y {wanted}; if they are classes of positions or labels, set data.task")
    return _Part(x, as_targets(y, kind, f"{label}: {part}y"), kind)


def as_tensor(what: str, array: Inputs) -> Tensor:
    """Return an array as a float32 or int64 tensor; uint8 and bool keep their dtype."""
    if isinstance(array, Mapping):
        raise UserError(f"{what} must be one array here, without named fields")
    tensor = _dense(what, array) if isinstance(array, Tensor) else _from_numpy(what, array)
    if tensor.is_complex():
        raise UserError(f"{what} must contain real numbers, not {tensor.dtype}")
    if tensor.dtype in (torch.uint8, torch.bool):
        return tensor
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64)


def _dense(what: str, tensor: Tensor) -> Tensor:
    if tensor.is_nested or tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        raise UserError(f"{what} must be a dense tensor, not a sparse, nested, quantised or meta tensor")
    return tensor.detach().cpu()


def _from_numpy(what: str, array: Array) -> Tensor:
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        array = np.ma.filled(array.astype(float), np.nan)
    try:
        values = np.asarray(array)
    except ValueError:
        raise UserError(f"{what} is not an array: its rows differ in length") from None
    except (TypeError, RuntimeError) as error:  # for example a list of tensors on a GPU
        raise UserError(f"{what} is not an array: {error}") from error
    kind = values.dtype.kind
    if kind not in "biuf":
        text = "; turn text into tokens, whole numbers" if kind == "U" else ""
        raise UserError(f"{what} must contain real numbers, not {values.dtype} (no strings, no Python objects){text}")
    keep = kind == "b" or values.dtype == np.uint8
    return torch.from_numpy(values.astype(values.dtype if keep else np.float32 if kind == "f" else np.int64))


def _check_alike(peers: list[_Peer], validation: int | None) -> None:
    """Raise a UserError unless all peers' samples have the same dtype and shape, so that one model fits them all."""
    first = peers[0]
    for peer in peers:
        for field, part in peer.named().items():
            for name, ours, theirs in (("x", part.x, first.own.x), ("y", part.y, first.own.y)):
                form, wanted = _form(ours), _form(theirs)
                if form != wanted:
                    found = f"{field}{name} is {form} per sample"
                    raise UserError(f"{peer.label}: {found}, but {first.label} has {wanted}")
            if part.kind is not first.own.kind:
                kinds = f"{field}y holds {part.kind.name} targets, but {first.label} has {first.own.kind.name}"
                raise UserError(f"{peer.label}: {kinds}; set data.task")
        if validation is None and (peer.validation is None) != (first.validation is None):
            without = peer if peer.validation is None else first
            raise UserError(
                f"{without.label} has no validation_x, but others have; set data.validation to take it from x"
            )


def _form(values: Tensor) -> str:
    return f"{str(values.dtype).removeprefix('torch.')} {list(values.shape[1:])}"


def _divided(peer: _Peer, train: Amount, validation: int | None, test: Amount, seed: int, number: int) -> _Divided:
    """Return one peer's training, validation and test samples."""
    n = len(peer.own)
    cut_test = 0 if peer.test is not None else test if isinstance(test, int) else max(1, n // 5)
    cut_validation = 0 if peer.validation is not None else validation or 0
    left = n - cut_test - cut_validation
    wanted = train if isinstance(train, int) else max(1, left)
    if wanted > left:
        cut = {"train": wanted, "validation": cut_validation, "test": cut_test}
        asked = ", ".join(f"data.{key} = {count}" for key, count in cut.items() if count)
        raise UserError(f"{peer.label} has {n} samples in x, too few for {asked}")
    order = permutation(n, seed, number, Purpose.SHARE_TRAIN)
    own = peer.own.rows(order[cut_test + cut_validation :][:wanted])

    held_test = peer.own.rows(order[:cut_test])
    if peer.test is not None:
        held_test = _drawn(peer, "test", peer.test, test, seed, number)
    held_validation = peer.own.rows(order[cut_test:][:cut_validation]) if cut_validation else None
    if peer.validation is not None and validation != 0:
        held_validation = _drawn(peer, "validation", peer.validation, validation, seed, number)

    return own, held_validation, held_test


def _drawn(peer: _Peer, key: str, part: _Part, amount: Amount, seed: int, number: int) -> _Part:
    """Return ``amount`` of the validation or test samples that a peer brings."""
    if not isinstance(amount, int):
        return part
    if amount > len(part):
        raise UserError(f"{peer.label} has {len(part)} samples in {key}_x, too few for data.{key} = {amount}")
    stream = ("test", "validation").index(key)
    return part.rows(permutation(len(part), seed, number, Purpose.SHARE_TEST, stream)[:amount])


def _prepared(
    divided: list[_Divided], normalise: str | AgreedScale
) -> tuple[tuple[Split, Split | None, Split], Preparation]:
    """Return all peers' training, validation and test samples, normalised and imputed, and how this was done."""
    training = _split([own for own, _, _ in divided])
    testing = _split([held for _, _, held in divided])
    validating = [held for _, held, _ in divided if held is not None]
    splits = [training, testing, *([_split(validating)] if validating else [])]
    scale = scale_by(normalise, training.x)
    splits = [replace(split, x=scale(split.x)) for split in splits]
    if isinstance(normalise, AgreedScale):
        splits, fill = normalise.prepare(splits, scale)
    else:  # imputed after scaling, because then 0, used for a feature that a peer never observed, is a typical value
        fill = impute([[split.peer(i)[0] for split in splits] for i in range(len(divided))])
    parts = splits[0], splits[2] if validating else None, splits[1]
    return parts, Preparation(raw_kind(divided[0][0].x), scale, fill)


def _split(parts: list[_Part]) -> Split:
    """Return all peers' samples as one split, pixels as floats."""
    x, y = torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts])
    count = torch.tensor([len(part) for part in parts])
    return Split(as_floats(x), y, count.cumsum(0) - count, count)


def _clusters(peers: Sequence[PeerData]) -> tuple[Tensor | None, tuple[str, ...]]:
    """Return cluster ids [N] in order of first appearance, and the names; None and () if a peer has no cluster."""
    given = [str(peer.cluster) for peer in peers if peer.cluster is not None]
    if len(given) < len(peers):
        return None, ()
    names = tuple(dict.fromkeys(given))
    return torch.tensor([names.index(name) for name in given]), names
