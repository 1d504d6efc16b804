"""Weights & Biases: offline, unless WANDB_MODE says otherwise."""

from __future__ import annotations

import json
import os
import secrets
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from homophily.plugins.optional import imported
from homophily.trackers.base import Identity, TrackedRun, Tracker, Values, trackers

_SELF = "tracker 'wandb'"
_HEADER, _BLOCK = 7, 32768  # bytes of a .wandb file's header, and of a record's header; bytes of a block
_WHOLE, _LAST = 1, 4  # kinds of a record's parts: a whole record, the last part of one


@trackers("wandb")
class Wandb(Tracker):
    """Weights & Biases: history by round, config and summary; offline unless WANDB_MODE says otherwise."""

    _open: ClassVar[dict[str, Wandb]] = {}  # of this process, by the id of W&B's run that is not finished

    def __init__(
        self,
        project: Annotated[str, Field(description="the project")] = "homophily",
        folder: Annotated[
            str | None, Field(description="where W&B writes its folder `wandb`. Left out: the run's folder")
        ] = None,
    ) -> None:
        self._project, self._folder = project, folder
        self._kept = self._logged = 0  # the last round that is on the disk, and the last one that was logged
        self._wandb = imported("wandb", "trackers", _SELF)
        self._messages = imported("wandb.proto.wandb_internal_pb2", "trackers", _SELF)

    def open(self, run: TrackedRun, identity: Identity | None) -> Identity:
        mode = os.environ.get("WANDB_MODE", "offline")
        id = identity["id"] if identity is not None else secrets.token_hex(4)
        self._kept = self._logged = run.logged
        if (before := self._open.get(id)) is not None:  # the run was stopped in this process
            before.flush()
            self._kept = before.kept(0)
        folder = Path(self._folder or run.path)
        folder.mkdir(parents=True, exist_ok=True)
        if identity is not None and mode == "offline":
            self._kept = max([self._kept, *self._rounds(folder, id)])
        self._open[id] = self
        self._run = self._wandb.init(
            project=self._project,
            id=id,
            name=run.name,
            group=run.group,
            config=run.parameters,
            dir=str(folder),
            mode=mode,
            resume="allow" if mode == "online" else None,  # offline, a later part has the same id
            reinit="create_new",
            settings=self._wandb.Settings(console="off", silent=True, disable_git=True, disable_code=True),
        )
        return {"id": id}

    def log(self, round: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=round, commit=True)
        self._logged = round

    def kept(self, round: int) -> int:
        """Those of earlier processes: W&B writes blocks, and a block that is not full is lost with the process."""
        return self._kept

    def flush(self) -> None:
        """Close this part of the run; a later one has the same id."""
        self._close()

    def finish(self, summary: Values) -> None:
        self._run.summary.update({f"summary/{name}": value for name, value in summary.items()})
        self._close()

    def _close(self) -> None:
        self._run.finish()
        self._open.pop(self._run.id, None)
        self._kept = max(self._kept, self._logged)

    def _rounds(self, folder: Path, id: str) -> Iterator[int]:
        """The rounds in the offline parts of a run."""
        for path in folder.glob(f"wandb/offline-run-*/run-{id}.wandb"):
            for content in _records(path.read_bytes()):
                record = self._messages.Record.FromString(content)
                for item in record.history.item:
                    if "_step" in (item.key, *item.nested_key):
                        yield int(json.loads(item.value_json))


def _records(content: bytes) -> Iterator[bytes]:
    """The complete records of a .wandb file, whose format is that of LevelDB's log."""
    at, parts = _HEADER, b""
    while at + _HEADER <= len(content):
        if _BLOCK - at % _BLOCK < _HEADER:  # no place for another header in this block
            at += _BLOCK - at % _BLOCK
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        at += _HEADER + length
        if at > len(content):
            return
        parts += content[at - length : at]
        if kind in (_WHOLE, _LAST):
            yield parts
            parts = b""
