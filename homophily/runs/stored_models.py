"""The models in the folder of a run, which may go on meanwhile: the final ones, or those of its newest checkpoint."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from homophily.atomic_io import TensorFile, read_json, shard_files
from homophily.errors import UserError

SUMMARY = "summary.json"
CHECKPOINTS = "checkpoints"
_CHECKPOINT = re.compile(r"round-(\d{6,})")
_TRIES = 100  # to open the newest checkpoint; a peer may write one in milliseconds, and then remove the one before
_HELD = ("best", "scored", "current")  # models in a checkpoint; the first that it has are those of the final scores


def checkpoints(run: Path) -> list[tuple[int, Path]]:
    """Complete checkpoints, oldest first."""
    folder = run / CHECKPOINTS
    entries = folder.iterdir() if folder.is_dir() else ()
    return sorted((int(m[1]), p) for p in entries if (m := _CHECKPOINT.fullmatch(p.name)))


@dataclass(frozen=True)
class StoredModels:
    """Models in open files, which stay readable if they are removed. round: after which they were written."""

    round: int
    files: list[TensorFile]  # each has the rows of some peers, in the order of the peers
    prefix: str = ""  # of the tensors' names

    @property
    def peers(self) -> int:
        return sum(file.rows(f"{self.prefix}rows") for file in self.files)

    def of(self, peer: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The row of a peer's model [D], and its buffers that are kept outside the row."""
        for file in self.files:
            here = file.rows(f"{self.prefix}rows")
            if peer < here:
                start = f"{self.prefix}kept/"
                kept = [name for name in file.names if name.startswith(start)]
                row = file.row(f"{self.prefix}rows", peer)
                return row, {name.removeprefix(start): file.row(name, peer) for name in kept}
            peer -= here
        raise IndexError(peer)


def stored_models(run: Path) -> StoredModels | None:
    """The final models; if the run has not finished, those of its newest complete checkpoint; None: it has none yet.

    The run may go on meanwhile: files that were replaced while they were opened are opened again.
    """
    for _ in range(_TRIES):
        seen = _seen(run)
        summary, last = seen
        try:
            if summary is not None:
                rounds = int(read_json(run / SUMMARY)["rounds"])
                found = StoredModels(rounds, [TensorFile(run / "models.safetensors")])
                if _seen(run)[0] == summary:  # they belong together
                    return found
            elif last is None:
                return None
            else:
                return _opened(*last)  # complete, even if it has been removed now
        except UserError:
            if _seen(run) == seen:
                raise
    raise UserError(f"{run} changes too fast to be read: try again")


def _seen(run: Path) -> tuple[tuple[int, int] | None, tuple[int, Path] | None]:
    """Which summary and which checkpoint there are."""
    last = next(iter(checkpoints(run)[-1:]), None)
    try:
        found = (run / SUMMARY).stat()
    except FileNotFoundError:
        return None, last
    return (found.st_ino, found.st_mtime_ns), last


def _opened(round: int, path: Path) -> StoredModels:
    files = [TensorFile(file) for file in shard_files(path)]
    held = next((name for name in _HELD if all(f"{name}/rows" in file.names for file in files)), None)
    if held is None or not files:
        raise UserError(f"{path} is damaged, or of another version: it has no models")
    return StoredModels(round, files, f"{held}/")
