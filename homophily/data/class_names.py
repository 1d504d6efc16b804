"""Classes given as strings, which become numbers in sorted order over all peers, or in an agreed order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from homophily.data.peer_data import Array, PeerData
from homophily.data.task_kinds import TOKENS
from homophily.errors import UserError

_FIELDS = ("y", "validation_y", "test_y")


def numbered(
    peers: Sequence[PeerData], agreed: Sequence[str] | None, where: str, task: str | None = None
) -> tuple[Sequence[PeerData], tuple[str, ...] | None]:
    """Return the peers with numbers in place of class names, and the names in order; None: no target is a string.

    agreed: the names in the order on which all peers agree; where: what an error message calls them; task: the name of
    the task kind, if it is given.
    """
    texts = [{key: _strings(getattr(peer, key)) for key in _FIELDS} for peer in peers]
    found = sorted({str(name) for fields in texts for y in fields.values() if y is not None for name in y.flat})
    if not found:
        return peers, None if agreed is None else tuple(agreed)
    names = tuple(found if agreed is None else agreed)
    place = {name: number for number, name in enumerate(names)}
    out = []
    for i, (peer, fields) in enumerate(zip(peers, texts, strict=True)):
        label = f"peer {peer.name!r}" if peer.name else f"peer {i}"
        changed: dict[str, Any] = {}
        for key, y in fields.items():
            if y is None:
                if getattr(peer, key) is not None:
                    raise UserError(f"{label}: {key} contains numbers, but the classes of other targets are strings")
                continue
            if task == TOKENS.name and y.ndim == 1:
                wanted = "must be a list of classes for each sample, one per position (task tokens)"
                raise UserError(f"{label}: {key} {wanted}, not one string per sample, such as {str(y[0])!r}")
            for name in y.flat:
                if str(name) not in place:
                    raise UserError(f"{label}: {key} contains the class {str(name)!r}, which {where} does not have")
            changed[key] = np.array([place[str(name)] for name in y.flat], dtype=np.int64).reshape(y.shape)
        out.append(replace(peer, **changed))
    return out, names


def _strings(y: Array | None) -> np.ndarray[Any, Any] | None:
    """Return targets that are strings as an array; None: they are not."""
    if isinstance(y, Sequence) and all(isinstance(one, str) for one in y):
        return np.array(y)
    if isinstance(y, Sequence) and all(_is_list_of_strings(one) for one in y) and len({*map(len, y)}) == 1:
        return np.array(y)
    if isinstance(y, Tensor | Sequence) or not hasattr(y, "dtype"):  # neither a numpy array nor a pandas column
        return None
    values = np.asarray(y)
    return values if values.dtype.kind in "OUT" and all(isinstance(one, str) for one in values.flat) else None


def _is_list_of_strings(values: object) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(one, str) for one in values)
