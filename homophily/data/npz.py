"""Reads peers' samples from .npz files, one per peer. Pickles are not read."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from homophily.data.peer_data import PeerData
from homophily.errors import UserError

_FILE_KEYS = [field.name for field in fields(PeerData) if field.name != "name"]
_INPUTS = ("x", "validation_x", "test_x")  # may have named fields: x.input_ids


def read_folder(path: Path | str) -> list[PeerData]:
    """Return the peers of a folder in order of file name: one .npz file per peer, as read_file reads it."""
    files = sorted(file for file in Path(path).glob("*.npz") if not file.is_dir())
    if not files:
        raise UserError(f"{path}: there is no .npz file in this folder; it must contain one for each peer")
    return [read_file(file) for file in files]


def read_file(file: Path) -> PeerData:
    """Return one peer's samples from a .npz file with x, y and, optionally, other fields of PeerData.

    Inputs with named fields have one key for each: ``x.input_ids``.
    """
    try:
        with file.open("rb") as opened:
            if opened.read(4) not in (b"PK\x03\x04", b"PK\x05\x06", b"\x93NUM"):  # neither zip nor npy: may be a pickle
                raise UserError(f"{file} is damaged or not a .npz file")
        loaded = np.load(file, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise UserError(f"{file} contains a single array instead of x and y")
        with loaded as archive:
            found = {key: _read_key(file, archive, key) for key in archive.files}
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{file}: there is no such file") from None
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{file} is damaged or not a .npz file: {error}") from error
    found = _with_fields(file, found)
    for key in ("x", "y"):
        if key not in found:
            raise UserError(f"{file}: the key {key!r} is missing")
    return PeerData(**found, name=file.stem)


def _with_fields(file: Path, found: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays with those of named fields, ``x.input_ids``, in one dict ``x``."""
    out: dict[str, Any] = {}
    for key, array in found.items():
        part, dot, name = key.partition(".")
        if not dot:
            out[key] = array
            continue
        if part in found:
            raise UserError(f"{file}: has both {part!r} and its field {key!r}; keep one of them")
        out.setdefault(part, {})[name] = array
    return out


def _read_key(file: Path, archive: np.lib.npyio.NpzFile, key: str) -> Any:
    if key not in _FILE_KEYS and key.partition(".")[0] not in _INPUTS:
        raise UserError(f"{file}: unknown key {key!r}; allowed keys are {', '.join(_FILE_KEYS)}")
    try:
        array = archive[key]
    except ValueError:
        raise UserError(f"{file}: {key!r} contains Python objects (pickles), which are not read; use numbers") from None
    if key != "cluster":
        return array
    if array.shape != () or array.dtype.kind not in "iuU":
        raise UserError(f"{file}: 'cluster' must be a string or a whole number")
    return array.item()
