"""What a tracker is: an object that logs one run, round by round, in an experiment tracker or a file."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from homophily.plugins.registry import Registry

Identity = dict[str, Any]
Values = Mapping[str, float | str]

_COUNTED = ("diverged", "met", "merged", "unreachable")  # lists of peers, of which the length is logged
_REFUSED = re.compile(r"[^A-Za-z0-9_./-]")


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker knows of the run that it logs."""

    path: Path
    """The run's folder."""
    name: str
    """The name of this folder."""
    group: str | None
    """The name of the comparison that the run belongs to; None: it belongs to none."""
    parameters: dict[str, Any]
    """The config, with dotted keys."""
    logged: int
    """The last round that was logged before; 0: none."""


class Tracker:
    """Base class of trackers. The parameters of the constructor are the config keys of ``tracker``.

    An exception in ``open``, ``log`` or ``finish`` does not end the run: it goes on without this tracker.
    """

    stays: ClassVar[bool] = False
    """Whether everything that is logged stays on this machine. A real peer with [privacy] uses no other tracker."""

    def open(self, run: TrackedRun, identity: Identity | None) -> Identity:
        """Begin to log ``run``, or continue.

        identity: None, or what this method returned before for the same run. Returns what the tracker needs to
        continue after a resume, as a dictionary that JSON can hold.
        """
        return {}

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Log the ``values`` of one ``round``, numbers by name. Rounds come in order, and each comes once."""

    def kept(self, round: int) -> int:
        """The last round that the tracker keeps if the process is killed now; ``round`` is the last one logged.

        Override it, and ``flush``, if the tracker holds rounds back. A resume logs those after it again. After
        ``open`` it is the last round that the tracker has.
        """
        return round

    def flush(self) -> None:
        """Write the rounds that were held back and close the tracker, because the run has stopped before its end."""

    def finish(self, summary: Values) -> None:
        """Log the ``summary`` of the finished run, numbers and strings by name, and close the tracker."""


trackers: Registry[type[Tracker]] = Registry("tracker")


def numbers(line: Mapping[str, Any], above: str = "") -> dict[str, float]:
    """The numbers in a round's metrics or a summary; those of inner tables as ``table/key``, lists of peers counted."""
    out: dict[str, float] = {}
    for key, value in line.items():
        if isinstance(value, Mapping):
            out |= numbers(value, f"{above}{key}/")
        elif isinstance(value, list) and key in _COUNTED:
            out[above + key] = len(value)
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            out[above + key] = value
    return out


def ascii_name(name: str) -> str:
    """A metric's name as TensorBoard and MLflow accept it: "0°" becomes "0_degree_sign"."""
    plain = _REFUSED.sub(lambda found: _spelled(found[0]), name)
    return "/".join(part if part.strip(".") else f"_{part.replace('.', '_')}" for part in plain.split("/"))


def _spelled(character: str) -> str:
    if character == " ":
        return "_"
    return "_" + unicodedata.name(character, f"u{ord(character):x}").lower().replace(" ", "_").replace("-", "_")


def own_folder(run: TrackedRun, kind: str, folder: str | None, identity: Identity | None) -> Path:
    """Where a tracker writes: ``kind`` in the run's folder, or a folder of the run's own below ``folder``."""
    if folder is None:
        return run.path / kind
    if identity is not None:
        return Path(identity["folder"])
    first = target = Path(folder).absolute() / (run.group or "") / run.name
    count = 1
    while target.exists():  # another run of the same name
        count += 1
        target = first.with_name(f"{first.name}-{count}")
    return target
