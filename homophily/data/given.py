"""The forms of ``data=`` that Python functions accept, as a list of PeerData."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch.utils.data import Dataset

from homophily.data.datasets import read_dataset
from homophily.data.peer_data import Array, PeerData
from homophily.errors import UserError

OnePeer = PeerData | tuple[Array, Array] | Dataset[Any]
Peers = Sequence[OnePeer] | Mapping[str, OnePeer]

_WANTED = "data=: must be a list with the data of each peer, or a dict by peer name"


def given_peers(data: Peers | None) -> list[PeerData] | None:
    """Return the data of every peer: a PeerData, a pair (x, y) or a torch Dataset each, in a list or by name.

    None: none was given.
    """
    if data is None:
        return None
    divided = _reader(data)
    kind = "Dataset" if isinstance(data, Dataset) else type(data).__name__
    if divided is not None:
        raise UserError(f"{_WANTED}, not a single {kind}; divide it with homophily.data.{divided}")
    if isinstance(data, Mapping):
        return [replace(_peer(one, f"peer {name!r}"), name=str(name)) for name, one in data.items()]
    if isinstance(data, str):
        raise UserError(f"{_WANTED}, not {data!r}; a name goes into the config as data.name")
    if isinstance(data, PeerData):
        raise UserError(f"{_WANTED}, not a single PeerData")
    if not isinstance(data, Sequence):
        raise UserError(f"{_WANTED}, not {kind}")
    return [_peer(one, f"item {number}") for number, one in enumerate(data)]


def _reader(data: object) -> str | None:
    """Return the call that divides an object with the samples of all peers; None: it is none."""
    kind = type(data).__name__
    if isinstance(data, Dataset):
        return "from_dataset(data, peer=...)"
    if kind == "DataFrame":
        return "from_frame(data, peer=..., target=...)"
    if kind == "DatasetDict" or (kind == "Dataset" and hasattr(data, "column_names")):  # of Hugging Face
        return "from_datasets(data, peer=..., target=...)"
    return None


def _peer(one: object, where: str) -> PeerData:
    if isinstance(one, PeerData):
        return one
    if isinstance(one, Dataset):
        return read_dataset(one, where)
    if isinstance(one, tuple) and len(one) == 2:
        return PeerData(*one)
    raise UserError(f"{_WANTED}, and {where} is {type(one).__name__}, not PeerData, (x, y) or a torch Dataset")
