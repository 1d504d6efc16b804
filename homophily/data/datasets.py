"""Peers' data from torch datasets and from Hugging Face datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from homophily.data.peer_data import PeerData
from homophily.data.tables import from_frame
from homophily.errors import UserError
from homophily.plugins.optional import imported

Collate = Callable[[list[Any]], tuple[Any, Any]]

STREAM_BYTES = 8 << 30  # the largest size of the samples of an IterableDataset, which may have no end
_SPLIT = "split"  # the column that holds the name of the split of a DatasetDict


def from_dataset(
    dataset: Dataset[Any] | Sequence[Dataset[Any]] | Mapping[str, Dataset[Any]],
    *,
    peer: Sequence[Any] | None = None,
    collate: Collate | None = None,
) -> list[PeerData]:
    """Return peers' data from torch datasets, whose samples are read into memory once.

    dataset: datasets by peer name, a list with one dataset per peer, or one dataset with the samples of all peers. A
    sample is a pair (x, y). The samples of an ``IterableDataset`` may take at most 8 GiB.
    peer: for one dataset with the samples of all peers: the name of each sample's peer.
    collate: a function from a list of samples to (x, y), as a DataLoader takes it, for samples of another form; None:
    samples are stacked, and sequences of different lengths are padded.
    Raises UserError for bad input.
    """
    if isinstance(dataset, Mapping):
        return [
            replace(read_dataset(one, f"dataset {name!r}", collate), name=str(name)) for name, one in dataset.items()
        ]
    if not isinstance(dataset, Dataset):
        return [read_dataset(one, f"dataset {number}", collate) for number, one in enumerate(dataset)]
    if peer is None:
        raise UserError("from_dataset: one dataset needs peer=, the name of each sample's peer")
    samples = _samples(dataset, "the dataset")
    if len(peer) != len(samples):
        raise UserError(f"from_dataset: peer= has {len(peer)} names, but the dataset has {len(samples)} samples")
    of_peer: dict[str, list[Any]] = {}
    for name, sample in zip(peer, samples, strict=True):
        of_peer.setdefault(str(name), []).append(sample)
    return [replace(_collated(of_peer[name], collate, f"peer {name!r}"), name=name) for name in sorted(of_peer)]


def from_datasets(
    dataset: Any,
    *,
    target: str | list[str],
    peer: str | None = None,
    features: str | list[str] | None = None,
    split: str | None = None,
    cluster: str | None = None,
    person: str | None = None,
) -> list[PeerData]:
    """Return the data of the peers in a Hugging Face dataset.

    dataset: a ``datasets.Dataset``, or a ``datasets.DatasetDict`` with the splits train, validation and test.
    target, peer, features, split, cluster, person: columns, as for ``homophily.data.from_frame``. Inputs may be
    columns of token lists, such as ``input_ids``, or one column of arrays or of images. A ``DatasetDict`` takes no
    ``split``.
    Raises UserError for bad input.
    """
    package = imported("datasets", "huggingface", "from_datasets")
    columns = [name for name in (peer, split, cluster, person) if name is not None]
    columns += [target] if isinstance(target, str) else target
    columns += [] if features is None else [features] if isinstance(features, str) else features
    chosen = None if features is None else columns
    roles: dict[str, Any] = {
        "target": target, "peer": peer, "features": features, "cluster": cluster, "person": person,
    }  # fmt: skip
    if isinstance(dataset, package.Dataset):
        return from_frame(_frame(dataset, chosen), **roles, split=split)
    if not isinstance(dataset, package.DatasetDict):
        wanted = "a datasets.Dataset or DatasetDict"
        raise UserError(f"from_datasets: must be given {wanted}, not {type(dataset).__name__}")
    if split is not None:
        parts = "the parts of a DatasetDict are its splits"
        raise UserError(f"from_datasets: split = {split!r} is for one Dataset; {parts}")
    pandas = imported("pandas", "tables", "from_datasets")
    frames = [_frame(part, chosen).assign(**{_SPLIT: name}) for name, part in dataset.items()]
    return from_frame(pandas.concat(frames, ignore_index=True), **roles, split=_SPLIT)


def _frame(dataset: Any, columns: list[str] | None) -> Any:
    """Return the columns (None: all) of a Hugging Face dataset as a DataFrame; images become arrays [C, H, W]."""
    present = list(dataset.column_names)
    if columns is None or not set(columns) <= set(present):  # of a dataset without a column, the others are named
        columns = present
    kept = dataset.select_columns([name for name in present if name in columns])
    images = [name for name, kind in kept.features.items() if type(kind).__name__ == "Image"]
    frame = kept.remove_columns(images).to_pandas()
    for name in images:
        frame[name] = [image.numpy() for image in kept.select_columns([name]).with_format("torch")[:][name]]
    return frame


def read_dataset(dataset: object, where: str, collate: Collate | None = None) -> PeerData:
    """Return the samples of one peer's torch Dataset. where: what error messages call it."""
    if not isinstance(dataset, Dataset):
        raise UserError(f"{where}: must be a torch Dataset, not {type(dataset).__name__}")
    return _collated(_samples(dataset, where), collate, where)


def _samples(dataset: Dataset[Any], where: str) -> list[Any]:
    """Return all samples of a dataset."""
    if isinstance(dataset, IterableDataset):
        return list(_limited(dataset, where))
    if not hasattr(dataset, "__len__"):
        raise UserError(f"{where}: it has no length; make it an IterableDataset, or give it __len__")
    return [dataset[i] for i in range(len(dataset))]


def _limited(samples: Iterable[Any], where: str) -> Iterator[Any]:
    size = 0
    for sample in samples:
        parts = sample if isinstance(sample, tuple | list) else [sample]
        size += sum(part.nbytes if isinstance(part, Tensor | np.ndarray) else 8 for part in parts)
        if size > STREAM_BYTES:
            limit = f"{STREAM_BYTES / (1 << 30):g} GiB"
            raise UserError(f"{where}: its samples take more than {limit}, the limit for an IterableDataset")
        yield sample


def _collated(samples: list[Any], collate: Collate | None, where: str) -> PeerData:
    if not samples:
        raise UserError(f"{where} has no samples")
    if collate is not None:
        made = collate(samples)
        if not isinstance(made, tuple | list) or len(made) != 2:
            raise UserError(f"{where}: collate must return x and y, not {type(made).__name__}")
        return PeerData(*made)
    for number, sample in enumerate(samples):
        if not isinstance(sample, tuple | list) or len(sample) != 2:
            raise UserError(
                f"{where}: sample {number} must be a pair (x, y), not {type(sample).__name__}; give collate=, a "
                "function from a list of samples to (x, y)"
            )
    x, y = ([_value(sample[k], f"{where}: sample {n}", "xy"[k]) for n, sample in enumerate(samples)] for k in (0, 1))
    return PeerData(_stacked(x), y if isinstance(y[0], str) else _stacked(y))


def _value(value: Any, where: str, which: str) -> Any:
    """Return a part of a sample as a tensor; a string stays as it is."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, str) and which == "y":
        return value
    if not isinstance(value, np.ndarray | np.generic | int | float | list | tuple):
        remedy = "give the dataset a transform that returns a tensor"
        raise UserError(f"{where}: {which} must be a tensor, an array or numbers, not {type(value).__name__}; {remedy}")
    try:
        return torch.tensor(np.asarray(value))
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: {which} is not an array of numbers: {error}") from None


def _stacked(values: list[Tensor]) -> Any:
    """Return tensors of one shape as one tensor; others stay a list, and are padded later."""
    return torch.stack(values) if len({value.shape for value in values}) == 1 else values
