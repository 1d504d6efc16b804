"""The ledger of a real peer: what it has released, on disk before the bytes leave.

It is a text file with one JSON object per line: the promise, then one line for each release. A release whose line is
not complete has not left, so an incomplete last line is removed.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from homophily.atomic_io import sync, writing
from homophily.errors import UserError
from homophily.privacy.accountant import epsilon_of
from homophily.privacy.loss_distribution import Release

LEDGER = "released/ledger.jsonl"  # in the state folder of a peer


class Ledger:
    """All releases of a peer by name, and their epsilon, which never exceeds the promise."""

    def __init__(self, path: Path, epsilon: float, delta: float) -> None:
        """Open a ledger, or begin one at ``path``."""
        self._path, self._epsilon, self._delta = path, epsilon, delta
        self._releases: dict[str, Release] = {}
        promise = {"epsilon": epsilon, "delta": delta}
        _remove_incomplete_line(path)
        found, self._releases = _content(path)
        if found is None:
            self._append(promise)
            sync(path.parent)
        elif found != promise:
            raise UserError(f"{path} is the ledger of another promise, {found}, than {promise}")

    @property
    def releases(self) -> dict[str, Release]:
        return dict(self._releases)

    @property
    def spent(self) -> float:
        """Epsilon of all releases together."""
        return epsilon_of(list(self._releases.values()), self._delta)

    def charge(self, name: str, release: Release) -> None:
        """Write a release down before it leaves; nothing is done if it is in the ledger already.

        Raises a UserError, and writes nothing, if it would break the promise.
        """
        if name in self._releases:
            return
        after = epsilon_of([*self._releases.values(), release], self._delta)
        if after > self._epsilon:
            raise UserError(
                f"privacy.epsilon = {self._epsilon:g}: {name} would bring what this peer has released to {after:.4g}, "
                f"so it is not released ({self._path})"
            )
        self._append({"name": name, **asdict(release)})
        self._releases[name] = release

    def _append(self, line: dict[str, Any]) -> None:
        with writing(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def releases_in(path: Path) -> dict[str, Release]:
    """What a ledger says was released, by name; nothing if it does not exist. The file is only read."""
    return _content(path)[1]


def _content(path: Path) -> tuple[dict[str, Any] | None, dict[str, Release]]:
    """The promise and the releases of the complete lines of a ledger; None: it has no line yet."""
    text = path.read_bytes() if path.exists() else b""
    lines = text[: text.rfind(b"\n") + 1].decode(errors="replace").splitlines()
    if not lines:
        return None, {}
    try:
        promise, *rest = [json.loads(line) for line in lines]
        return promise, {entry.pop("name"): Release(**entry) for entry in rest}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is damaged, so what this peer has released is unknown: {error}") from error


def _remove_incomplete_line(path: Path) -> None:
    """Remove the last line of a ledger if it is incomplete."""
    if not path.exists():
        return
    with writing(path):
        text = path.read_bytes()
        complete = text.rfind(b"\n") + 1
        if complete < len(text):
            os.truncate(path, complete)
            sync(path)
