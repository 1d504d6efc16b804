"""Users' own data: arrays per peer, from memory or from a folder of .npz files."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from homophily.data.missing import impute
from homophily.data.normalise import as_floats
from homophily.data.normalise import normalise as scaled
from homophily.data.types import Shares, Split
from homophily.errors import UserError
from homophily.randomness import Purpose, permutation

Array = Tensor | np.ndarray[Any, Any] | Sequence[Any]
Amount = int | Literal["all"] | None


@dataclass(frozen=True, eq=False)
class PeerArrays:
    """One peer's samples, as numpy arrays, torch tensors or nested lists with a row for each sample.

    x: [n, ...] uint8 pixels, float features (NaN: missing) or integer tokens.
    y: [n] integer classes, or [n] or [n, outputs] float targets.
    """

    x: Array
    y: Array
    validation_x: Array | None = None
    validation_y: Array | None = None
    test_x: Array | None = None
    test_y: Array | None = None
    cluster: str | int | None = None
    name: str | None = None


_KEYS_OF_A_FILE = [field.name for field in fields(PeerArrays) if field.name != "name"]


def read_folder(path: Path | str) -> list[PeerArrays]:
    """The peers of a folder: a .npz file each, with x, y and any other field of PeerArrays, in order of file name."""
    files = sorted(file for file in Path(path).glob("*.npz") if file.is_file())
    if not files:
        raise UserError(f"{path}: there is no .npz file in this folder; it must hold one for each peer")
    return [_read_file(file) for file in files]


def _read_file(file: Path) -> PeerArrays:
    try:
        loaded = np.load(file, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise UserError(f"{file}: holds a single array instead of x and y")
        with loaded as archive:
            found = {key: _read_key(file, archive, key) for key in archive.files}
    except UserError:
        raise
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{file}: is damaged or no .npz file: {error}") from error
    for key in ("x", "y"):
        if key not in found:
            raise UserError(f"{file}: the key {key!r} is missing")
    return PeerArrays(**found, name=file.stem)


def _read_key(file: Path, archive: np.lib.npyio.NpzFile, key: str) -> Any:
    if key not in _KEYS_OF_A_FILE:
        raise UserError(f"{file}: unknown key {key!r}; there are {', '.join(_KEYS_OF_A_FILE)}")
    try:
        array = archive[key]
    except ValueError:
        raise UserError(f"{file}: {key!r} holds Python objects instead of numbers, and no pickles are read") from None
    if key != "cluster":
        return array
    if array.shape != () or array.dtype.kind not in "iuU":
        raise UserError(f"{file}: 'cluster' must be one name or one whole number")
    return array.item()


@dataclass(frozen=True)
class _Part:
    """Checked samples. x: [n, ...]; y: [n] int64 or [n, outputs] float32."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, chosen: Tensor) -> _Part:
        """The chosen samples, in the order they came in."""
        chosen = chosen.sort().values
        return _Part(self.x[chosen], self.y[chosen])


@dataclass(frozen=True)
class _Peer:
    """One peer's checked samples; ``label`` names it in messages."""

    label: str
    own: _Part
    validation: _Part | None
    test: _Part | None

    def parts(self) -> list[_Part]:
        return [part for part in (self.own, self.validation, self.test) if part is not None]


def share_own(
    peers: Sequence[PeerArrays],
    train: Amount,
    validation: int | None,
    test: Amount,
    seed: int,
    normalise: str = "unit",
) -> Shares:
    """Every peer gets its own samples; validation and test samples it did not bring are cut from them by a keyed draw.

    ``train`` and ``test`` None or "all": all there are, or a fifth as test samples where they have to be cut.
    ``validation`` None: what peers brought; 0: none.
    """
    if not peers:
        raise UserError("there are no peers")
    _check_amount("train", train, least=1)
    _check_amount("validation", validation, least=0)
    _check_amount("test", test, least=1)
    checked = [_checked_peer(peer, i) for i, peer in enumerate(peers)]
    _check_alike(checked)
    if validation is None:
        _check_all_or_none_validate(checked)
    shared = [_divided(peer, train, validation, test, seed, i) for i, peer in enumerate(checked)]
    trained, validated, tested = (
        _split([parts[k] for parts in shared]) if len(shared[0][k]) else None for k in range(3)
    )


def _check_amount(key: str, value: Amount, least: int) -> None:
    if value is None or (value == "all" and key != "validation"):
        return
    if not isinstance(value, int) or value < least:
        other = "" if key == "validation" else ' or "all"'
        raise UserError(f"{key} must be a whole number of at least {least}{other}, not {value!r}")
