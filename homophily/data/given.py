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
    if isinstance(data, Mapping):
        return [replace(_peer(one, f"peer {name!r}"), name=str(name)) for name, one in data.items()]
    if isinstance(data, str):
        raise UserError(f"{_WANTED}, not {data!r}; a name goes into the config as data.name")
    if isinstance(data, PeerData):
        raise UserError(f"{_WANTED}, not a single PeerData")
    if isinstance(data, Dataset):
        raise UserError(f"{_WANTED}, not a single Dataset; divide it with homophily.data.from_dataset(data, peer=...)")
    if type(data).__name__ == "DataFrame":
        raise UserError(f"{_WANTED}, not a DataFrame; divide it with homophily.data.from_frame(data, peer=...)")
    if not isinstance(data, Sequence):
        raise UserError(f"{_WANTED}, not {type(data).__name__}")
    return [_peer(one, f"item {number}") for number, one in enumerate(data)]


def _peer(one: object, where: str) -> PeerData:
    if isinstance(one, PeerData):
        return one
    if isinstance(one, Dataset):
        return read_dataset(one, where)
    if isinstance(one, tuple) and len(one) == 2:
        return PeerData(*one)
    raise UserError(f"{_WANTED}, and {where} is {type(one).__name__}, not PeerData, (x, y) or a torch Dataset")
