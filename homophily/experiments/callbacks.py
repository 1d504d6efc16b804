"""Callbacks: observe a run round by round, add metrics, stop it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from homophily.config.schema import Config
from homophily.errors import UserError
from homophily.runs.fields import RESERVED


class RunHandle(Protocol):
    """What a callback sees of the run that calls it."""

    @property
    def config(self) -> Config:
        """The config with every default filled in."""

    @property
    def path(self) -> Path:
        """The run's folder."""

    @property
    def round(self) -> int:
        """Rounds that are over."""

    def state_dict(self, peer: int) -> dict[str, Tensor]:
        """A peer's current model, under the names of its state dict."""

    def stop(self) -> None:
        """Finish the run after this round."""


class Callback:
    """Base class of callbacks: override what you need. One object is called from the first round to the last."""

    def on_start(self, run: RunHandle) -> None:
        """Called before the first round of ``run``, and again when a stopped run is resumed."""

    def on_round(self, run: RunHandle, metrics: dict[str, Any]) -> None:
        """Called after each round of ``run`` with its metrics; ``run.stop()`` ends the run.

        New names that it adds to ``metrics`` (numbers, strings, lists or tables) are stored with the round, unless it
        raises an exception.
        """

    def on_end(self, run: RunHandle, summary: dict[str, Any]) -> None:
        """Called when ``run`` has finished, with its ``summary``."""

    def state(self) -> dict[str, Any]:
        """The state of this callback for a checkpoint, as JSON."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint, with the ``state`` that it holds."""


class Callbacks:
    """The callbacks of one run, in order."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        wanted = "callbacks=: must be a list of homophily.Callback objects"
        if not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
            raise UserError(f"{wanted}, not {type(callbacks).__name__}")
        for one in callbacks:
            if isinstance(one, type):
                raise UserError(f"{wanted}, and one is the class {one.__name__}; call it to make one")
            if not isinstance(one, Callback):
                raise UserError(f"{wanted}, and one is {type(one).__name__}")
        self._all, self._observers = list(callbacks), list[Callback]()

    def __bool__(self) -> bool:
        """Whether there are callbacks, each of which may end the run."""
        return bool(self._all)

    def observed_by(self, *observers: Callback) -> Callbacks:
        """These callbacks, and after them observers, which do not end a run and have no state in checkpoints."""
        found = Callbacks(self._all)
        found._observers = [*self._observers, *observers]
        return found

    def start(self, run: RunHandle) -> None:
        for one in [*self._all, *self._observers]:
            one.on_start(run)

    def round(self, run: RunHandle, metrics: dict[str, Any]) -> None:
        """Let each callback add to the metrics; the metrics that exist stay as they are."""
        for one in [*self._all, *self._observers]:
            seen = dict(metrics)
            one.on_round(run, seen)
            metrics |= _added(type(one).__name__, metrics, seen)

    def follow(self, run: RunHandle, metrics: Mapping[str, Any]) -> None:
        """Show each callback the metrics of a run that another process plays; what it adds is not stored."""
        for one in self._all:
            one.on_round(run, dict(metrics))

    def end(self, run: RunHandle, summary: Mapping[str, Any]) -> None:
        for one in [*self._all, *self._observers]:
            one.on_end(run, dict(summary))

    def state(self) -> list[dict[str, Any]]:
        """For a checkpoint."""
        return [_storable(type(one).__name__, one.state()) for one in self._all]

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Continue from a checkpoint, if the same number of callbacks is passed again."""
        if len(states) == len(self._all):
            for one, state in zip(self._all, states, strict=True):
                one.restore(state)


def _added(name: str, metrics: Mapping[str, Any], seen: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that a callback added, checked."""
    added = {key: value for key, value in seen.items() if key not in metrics}
    for key in added:
        if key in RESERVED:
            raise UserError(f"callback {name}: {key!r} is a name of the run's own metrics; give yours another name")
    if any(key not in seen or seen[key] is not metrics[key] for key in metrics):
        raise UserError(f"callback {name}: on_round may add metrics, and must not change those of the round")
    return _storable(name, added)


def _storable(name: str, values: Any) -> dict[str, Any]:
    try:
        json.dumps(values)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"callback {name}: what it stores must be numbers, strings, lists or tables{_place(values)}: {error}"
        ) from error
    if not isinstance(values, dict):
        raise UserError(f"callback {name}: what it stores must be a table, not {type(values).__name__}")
    return values


def _place(values: Any) -> str:
    """Which entry cannot be stored, for an error message."""
    for key, value in values.items() if isinstance(values, dict) else ():
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            return f", but {key!r} is not" + (" (its method item() returns a number)" if hasattr(value, "item") else "")
    return ""
