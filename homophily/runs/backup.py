"""Backup and restore of a run's folder, or of a peer's state folder, as one tar file with the hash of every file.

A backup may be taken while the run goes on. All files are opened first, the last checkpoint before the metrics and the
history, so that these hold every round of the checkpoint; later rounds are removed when the run resumes. A file that is
replaced while it is copied is copied as it was.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from homophily.atomic_io import shard_files, sync, writing
from homophily.errors import UserError
from homophily.privacy.ledger import LEDGER
from homophily.runs.stored_models import CHECKPOINTS, checkpoints
from homophily.version import __version__

FORMAT = 1
MANIFEST = "homophily-backup.json"  # the last entry of a backup
_KEYS = {"files": dict, "round": int, "left_out": list}  # of the manifest
_FINAL = ("summary.json", "scores.json", "merges.safetensors", "models.safetensors", "inputs.safetensors")
_KEY_BYTES = 1 << 16  # a private key is a smaller file
_TRIES, _PAUSE = 20, 0.05
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Backup:
    """What a backup holds. round: of its checkpoint, 0 if there is none; left_out: private keys and links."""

    files: int
    bytes: int
    round: int
    left_out: tuple[str, ...]


class _ChangedError(Exception):
    """A file was replaced or removed while the files were opened."""


def back_up(folder: Path, file: Path) -> Backup:
    """Write the content of a run's folder to a new tar file, readable by its owner only; private keys are left out."""
    if not (folder / "config.toml").is_file():
        raise UserError(f"{folder} is not the folder of a run or a peer: it has no config.toml")
    if file.exists():
        raise UserError(f"{file} already exists: name a new file")
    if file.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{file} is inside {folder}: name a file outside the folder")
    partial = file.with_name(file.name + ".part")
    with ExitStack() as stack, writing(file):
        opened, left_out, round = _opened(folder, stack)
        try:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as raw, tarfile.open(fileobj=raw, mode="w") as tar:
                hashes = {name: _add(tar, name, source) for name, source in opened.items()}
                about = {"format": FORMAT, "version": __version__, "time": time.time(), "round": round}
                content = json.dumps({**about, "files": hashes, "left_out": left_out}, indent=2).encode()
                entry = tarfile.TarInfo(MANIFEST)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
            sync(partial)
            os.link(partial, file)  # fails if the file appeared in the meantime
            sync(file.parent)
        finally:
            partial.unlink(missing_ok=True)
    return Backup(len(hashes), sum(one["bytes"] for one in hashes.values()), round, tuple(left_out))


def restore(file: Path, folder: Path, nothing_since: bool = False) -> Backup:
    """Write the content of a backup to a new folder, which appears complete or not at all. Every hash is checked.

    nothing_since: a peer with [privacy] has released nothing since the backup; without it, such a backup is refused.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} already exists: name a new folder, or move it away")
    partial = folder.with_name(folder.name + ".part")
    with writing(folder):
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
            found, manifest = _extracted(file, partial)
            if manifest is None or found != manifest["files"]:
                raise UserError(f"{file} is damaged: {_difference(found, manifest)}; nothing was restored")
            if LEDGER in found and "summary.json" not in found and not nothing_since:
                raise UserError(
                    f"{file}: this peer promises privacy, and may have released models after this backup; it would "
                    "release them again with other noise. Pass --nothing-since if it has not run since, or set "
                    "peer.state to a new folder, whose promise adds to the one before"
                )
            partial.replace(folder)
            sync(folder.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    total = sum(one["bytes"] for one in found.values())
    return Backup(len(found), total, manifest["round"], tuple(manifest["left_out"]))


def _opened(folder: Path, stack: ExitStack) -> tuple[dict[str, IO[bytes]], list[str], int]:
    """All files of the folder by name, the names that are left out, and the round of the checkpoint."""
    for _ in range(_TRIES):
        with ExitStack() as attempt:
            try:
                found = _open_once(folder, attempt)
            except (FileNotFoundError, _ChangedError):
                time.sleep(_PAUSE)
                continue
            stack.push(attempt.pop_all())
            return found
    raise UserError(f"{folder} changes too fast to be copied: stop its process, and try again")


def _open_once(folder: Path, stack: ExitStack) -> tuple[dict[str, IO[bytes]], list[str], int]:
    round, last = next(iter(checkpoints(folder)[-1:]), (0, None))
    before = _final_files(folder)
    first = [] if last is None else [*_tensor_files(last), last / "state.json"]
    others = (path for path in sorted(folder.rglob("*")) if not path.is_relative_to(folder / CHECKPOINTS))
    rest = filter(_counts, others)
    opened: dict[str, IO[bytes]] = {}
    left_out: list[str] = []
    for path in [*first, *rest]:
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            left_out.append(name)
        elif path.is_file() or path in first:
            source = stack.enter_context(path.open("rb"))
            if _is_private_key(source):
                left_out.append(name)
            else:
                opened[name] = source
    if _final_files(folder) != before:
        raise _ChangedError
    return opened, left_out, round


def _tensor_files(checkpoint: Path) -> list[Path]:
    """The files of a checkpoint that hold tensors, one for each rank of the run."""
    try:
        return shard_files(checkpoint)
    except UserError as error:
        if isinstance(error.__cause__, FileNotFoundError):  # it was replaced by a newer one
            raise _ChangedError from error
        raise


def _counts(path: Path) -> bool:
    """Whether a path belongs to the folder's content; files that are being written have names that end with .part."""
    return not any(part.endswith(".part") for part in path.parts)


def _final_files(folder: Path) -> list[tuple[str, int, int]]:
    """Which results of a finished run are there: they belong together."""
    found = [(name, folder / name) for name in _FINAL if (folder / name).exists()]
    return [(name, (about := path.stat()).st_ino, about.st_mtime_ns) for name, path in found]


def _is_private_key(source: IO[bytes]) -> bool:
    start = source.read(_KEY_BYTES)
    source.seek(0)
    return b"PRIVATE KEY-----" in start


def _add(tar: tarfile.TarFile, name: str, source: IO[bytes]) -> dict[str, Any]:
    """Add an open file as long as it is now: a log may grow meanwhile."""
    entry, about = tarfile.TarInfo(name), os.fstat(source.fileno())
    entry.size, entry.mtime = about.st_size, int(about.st_mtime)
    reader = _Hashing(source)
    tar.addfile(entry, reader)  # type: ignore[arg-type]  # it only reads
    return {"bytes": entry.size, "sha256": reader.hash.hexdigest()}


class _Hashing:
    """A file that is hashed as it is read."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source, self.hash = source, hashlib.sha256()

    def read(self, size: int) -> bytes:
        block = self._source.read(size)
        self.hash.update(block)
        return block


def _extracted(file: Path, folder: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Write all entries below a folder; returns their sizes and hashes, and the manifest, None if it is missing."""
    found: dict[str, Any] = {}
    manifest = None
    try:
        with _reading(file) as raw, tarfile.open(fileobj=raw, mode="r:") as tar:
            for entry in tar:
                source = tar.extractfile(entry) if entry.isreg() else None
                if source is None or not _is_inside(entry.name) or manifest is not None or entry.name in found:
                    raise UserError(f"{file} is not a backup of homophily: unexpected entry {entry.name!r}")
                if entry.name == MANIFEST:
                    manifest = _read_manifest(file, source.read())
                else:
                    found[entry.name] = _write(folder / entry.name, source)
    except tarfile.TarError as error:
        raise UserError(f"{file} is damaged, or not a backup of homophily: {error}") from error
    return found, manifest


def _reading(file: Path) -> IO[bytes]:
    try:
        return file.open("rb")
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from error


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and bool(path.parts)


def _read_manifest(file: Path, content: bytes) -> dict[str, Any]:
    damaged = f"{file} is damaged: its list of files cannot be read"
    try:
        manifest: dict[str, Any] = json.loads(content)
        form = manifest["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(damaged) from error
    if form != FORMAT:
        raise UserError(f"{file} has format {form}, but this version of homophily reads {FORMAT}: use another version")
    if not all(isinstance(manifest.get(key), kind) for key, kind in _KEYS.items()):
        raise UserError(damaged)
    return manifest


def _write(path: Path, source: IO[bytes]) -> dict[str, Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    reader, length = _Hashing(source), 0
    with path.open("wb") as target:
        while block := reader.read(_BLOCK):
            target.write(block)
            length += len(block)
        target.flush()
        os.fsync(target.fileno())
    return {"bytes": length, "sha256": reader.hash.hexdigest()}


def _difference(found: dict[str, Any], manifest: dict[str, Any] | None) -> str:
    """Which file differs from the list at the end of a backup."""
    if manifest is None:
        return "its end is missing"
    names = sorted(set(found) | set(manifest["files"]))
    wrong = next(name for name in names if found.get(name) != manifest["files"].get(name))
    return f"{wrong} is not what was backed up"
