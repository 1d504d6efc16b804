"""One peer's samples, as a user passes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

Array = Tensor | np.ndarray[Any, Any] | Sequence[Any]
Inputs = Array | Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class PeerData:
    """One peer's samples, as numpy arrays, torch tensors or nested lists with one row per sample.

    x: [n, ...] uint8 pixels, float features (NaN: missing) or integer tokens; or a dict of such arrays by the names of
    the network's arguments.
    y: the targets (docs/tasks.md): [n] integer classes or strings; [n, length] integer classes of positions, -100 for
    one that does not count; [n, labels] booleans; or [n] or [n, outputs] floats.
    validation_x, validation_y: validation samples; None: taken from x and y, as many as ``data.validation`` says.
    test_x, test_y: test samples; None: taken from x and y, as many as ``data.test`` says, or a fifth.
    cluster: name or number of the true cluster, if it is known.
    name: name of the peer in messages and scores.
    person: [n] numbers or strings, the person of each row of x (docs/privacy.md).
    """

    x: Inputs
    y: Array
    validation_x: Inputs | None = None
    validation_y: Array | None = None
    test_x: Inputs | None = None
    test_y: Array | None = None
    cluster: str | int | None = None
    name: str | None = None
    person: Array | None = None
