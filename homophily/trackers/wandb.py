"""Weights & Biases: offline, unless WANDB_MODE says otherwise."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from homophily.plugins.optional import imported
from homophily.trackers.base import Identity, TrackedRun, Tracker, Values, trackers

_SELF = "tracker 'wandb'"


@trackers("wandb")
class Wandb(Tracker):
    """Weights & Biases: history by round, config and summary; offline unless WANDB_MODE says otherwise."""

    _open: ClassVar[dict[str, Any]] = {}  # W&B's runs of this process that are not finished, by id

    def __init__(
        self,
        project: Annotated[str, Field(description="the project")] = "homophily",
        folder: Annotated[
            str | None, Field(description="where W&B writes its folder `wandb`. Left out: the run's folder")
        ] = None,
    ) -> None:
        self._project, self._folder = project, folder
        self._wandb = imported("wandb", "trackers", _SELF)

    def open(self, run: TrackedRun, identity: Identity | None) -> Identity:
        mode = os.environ.get("WANDB_MODE", "offline")
        id = identity["id"] if identity is not None else secrets.token_hex(4)
        if (before := self._open.pop(id, None)) is not None:  # the run was stopped in this process
            before.finish()
        folder = Path(self._folder or run.path)
        folder.mkdir(parents=True, exist_ok=True)
        self._run = self._open[id] = self._wandb.init(
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

    def finish(self, summary: Values) -> None:
        self._run.summary.update({f"summary/{name}": value for name, value in summary.items()})
        self._run.finish()
        self._open.pop(self._run.id, None)
