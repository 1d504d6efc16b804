"""What a run records by round, in its folder ``history``: who is recorded, and a bounded file for each kind of entry.

docs/run-folder.md describes the files, their limits and the order in which peers are recorded.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from homophily.atomic_io import plain, read_json, write_json, writing
from homophily.errors import UserError
from homophily.runs.record_file import Arrays, Content, RecordFile, decoded, read_entries

FORMAT = 1
LIMITS = {"scores": 1 << 20, "merges": 2 << 20, "similarities": 1 << 19, "diagnostics": 1 << 19}  # bytes of each file
MOST_PEERS = 1000  # peers that are recorded
WATCHED = 8  # recorded peers whose similarities are recorded
_FLUSH_SECONDS = 1.0
Numbers = np.ndarray[Any, np.dtype[Any]]


def history_file(folder: Path, kind: str) -> Path:
    return folder / f"{kind}.record"


class HistoryWriter:
    """The writing side of a folder ``history``. Entries are appended about once per second, and at checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = {kind: RecordFile(history_file(folder, kind), limit) for kind, limit in LIMITS.items()}
        self._described: dict[str, Any] | None = None
        self._flushed = 0.0

    def add(self, round: int, entries: Mapping[str, Arrays], about: dict[str, Any]) -> None:
        """Add the entries of a round, by their kind. about: who is recorded, the content of ``peers.json``."""
        if self._described is not about:
            self._describe(about)
        for kind, arrays in entries.items():
            self._files[kind].add(round, arrays)
        if time.monotonic() >= self._flushed + _FLUSH_SECONDS:
            self.flush()

    def _describe(self, about: dict[str, Any]) -> None:
        """Write ``peers.json``, if it differs. A real peer may get to know others; names of former ones are kept."""
        path = self.folder / "peers.json"
        before = {str(id): name for id, name in History(self.folder).names.items()} if path.exists() else {}
        content = plain({"format": FORMAT, **about, "names": before | about["names"]})
        if not path.exists() or read_json(path) != content:
            with writing(path):
                self.folder.mkdir(exist_ok=True)
            write_json(path, content)
        self._described = about

    @property
    def paths(self) -> list[Path]:
        """The files that exist."""
        return [file.path for file in self._files.values() if file.path.exists()]

    def flush(self) -> None:
        """Append all entries that wait in memory."""
        for file in self._files.values():
            file.flush()
        self._flushed = time.monotonic()

    def cut(self, last: int) -> None:
        """Remove the entries of rounds after ``last``."""
        for file in self._files.values():
            file.cut(last)


@dataclass(frozen=True)
class Similarities:
    """The similarities that a peer measured in a round to the peers ``ids`` [M]: values [M], NaN for a diverged one."""

    round: int
    ids: Numbers
    values: Numbers


@dataclass(frozen=True)
class Diagnostics:
    """What a method reported in a round, by name.

    values: about all peers together; peers: [M, ...] with a row for each of the peers ``ids`` [M]; watched: [W, ...]
    with a row for each watched peer.
    """

    round: int
    values: dict[str, Numbers]
    ids: Numbers
    peers: dict[str, Numbers]
    watched: dict[str, Numbers]


class History:
    """Reads the folder ``history`` of a run that has finished, was stopped, or still runs; P peers are recorded."""

    def __init__(self, folder: Path) -> None:
        """folder: the folder ``history`` of a run."""
        self.folder = folder
        about = read_json(folder / "peers.json")
        try:
            known = about["format"] == FORMAT
            self._order = np.array(about["peers"], dtype=np.int64).reshape(-1)
            self._watched, self.total = int(about["watched"]), int(about["total"])
            self._clusters: list[str] | None = about["clusters"] and [str(name) for name in about["clusters"]]
            self.names: dict[int, str] = {int(id): str(name) for id, name in about["names"].items()}
            fits = self._clusters is None or len(self._clusters) == len(self._order)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise UserError(f"{folder / 'peers.json'} is damaged: {error!r}") from error
        if not known or not fits or not 0 <= self._watched <= len(self._order):
            raise UserError(f"{folder / 'peers.json'} is damaged, or of another version")
        self._sorted = self._order.argsort()
        self._read: dict[str, Content] = {}  # each file as it was when it was first asked for

    @property
    def peers(self) -> Numbers:
        """[P] ids of the recorded peers, ascending: all peers, or in a large federation a sample."""
        return self._order[self._sorted]

    @property
    def watched(self) -> Numbers:
        """[W] ids of the peers whose similarities are recorded."""
        return self._order[: self._watched]

    @property
    def clusters(self) -> list[str] | None:
        """The cluster of each of ``peers``; None if clusters are not known."""
        return None if self._clusters is None else [self._clusters[place] for place in self._sorted]

    def every(self, kind: str) -> int:
        """Of how many rounds one entry is kept; kind: scores, merges, similarities or diagnostics."""
        return self._file(kind).every

    # Scores

    @property
    def rounds(self) -> Numbers:
        """[R] the rounds whose scores are recorded, ascending."""
        return self._rounds("scores")

    @cached_property
    def scores(self) -> dict[str, Numbers]:
        """By name: [R, P] float32, the score of each peer in each of ``rounds``; NaN for a diverged peer."""
        found: dict[str, list[Numbers]] = {}
        entries = list(self._entries("scores"))
        for number, (round, arrays) in enumerate(entries):
            for name, row in arrays.items():
                self._need(row.shape == self._order.shape and row.dtype.kind == "f", "scores", round)
                rows = found.setdefault(name, [np.full(len(self._order), np.nan, np.float32)] * number)
                rows.append(row.astype(np.float32)[self._sorted])
            for rows in found.values():
                if len(rows) <= number:  # a score that this round does not have
                    rows.append(np.full(len(self._order), np.nan, np.float32))
        return {name: np.stack(rows) for name, rows in found.items()}

    # Merges

    @property
    def merge_rounds(self) -> Numbers:
        """The rounds whose merges are recorded, ascending."""
        return self._rounds("merges")

    def merges(self, round: int) -> Numbers:
        """[M, 2] (peer, partner): in this ``round``, the peer merged the partner's model.

        Raises a UserError if the merges of this round are not recorded.
        """
        arrays = self._entry("merges", round)
        counts, partners = self._counted("merges", round, arrays, "partners")
        return np.stack([np.repeat(self._order[: len(counts)], counts), partners], axis=1)

    def contacts(self, round: int) -> dict[str, Numbers]:
        """A real peer's ``round``: ``met`` and ``unreachable``, the ids of the peers whose models came, and did not."""
        arrays = self._entry("merges", round)
        return {name: arrays[name].astype(np.int64) for name in ("met", "unreachable") if name in arrays}

    # Similarities and diagnostics

    def similarities(self, peer: int) -> list[Similarities]:
        """What a watched ``peer`` measured, by round. Raises a UserError if the peer is not watched."""
        if peer not in self.watched:
            watched = ", ".join(map(str, self.watched.tolist()))
            raise UserError(f"the similarities of peer {peer} are not recorded, but those of {watched}")
        place, found = self.watched.tolist().index(peer), []
        for round, arrays in self._entries("similarities"):
            counts, others = self._counted("similarities", round, arrays, "others")
            values = arrays.get("values", np.zeros(0))
            self._need(values.shape == others.shape and len(counts) > place, "similarities", round)
            first = int(counts[:place].sum())
            mine = slice(first, first + int(counts[place]))
            found.append(Similarities(round, others[mine], values[mine]))
        return found

    @cached_property
    def diagnostics(self) -> list[Diagnostics]:
        """What the method reported, in ascending rounds; empty if it reports nothing."""
        found = []
        for round, arrays in self._entries("diagnostics"):
            parts: dict[str, dict[str, Numbers]] = {"value": {}, "peer": {}, "watched": {}}
            for name, array in arrays.items():
                kind, _, rest = name.partition("/")
                self._need(kind in parts and bool(rest), "diagnostics", round)
                parts[kind][rest] = array
            ids = parts["peer"].pop("id", np.zeros(0)).astype(np.int64)
            rows = {"peer": ids.shape, "watched": self.watched.shape}
            fits = all(array.shape[:1] == rows[kind] for kind in rows for array in parts[kind].values())
            self._need(fits, "diagnostics", round)
            found.append(Diagnostics(round, parts["value"], ids, parts["peer"], parts["watched"]))
        return found

    # Files

    def _file(self, kind: str) -> Content:
        if kind not in LIMITS:
            raise UserError(f"{kind!r} is not recorded: the kinds of entries are {', '.join(LIMITS)}")
        if kind not in self._read:
            self._read[kind] = read_entries(self._path(kind))
        return self._read[kind]

    def _path(self, kind: str) -> Path:
        return history_file(self.folder, kind)

    def _rounds(self, kind: str) -> Numbers:
        return np.array([entry.round for entry in self._file(kind).entries], dtype=np.int64)

    def _entries(self, kind: str) -> Iterator[tuple[int, dict[str, Numbers]]]:
        for entry in self._file(kind).entries:
            yield entry.round, decoded(self._path(kind), entry)

    def _entry(self, kind: str, round: int) -> dict[str, Numbers]:
        for entry in self._file(kind).entries:
            if entry.round == round:
                return decoded(self._path(kind), entry)
        raise UserError(f"{self._path(kind)} has no entry of round {round}: it keeps 1 of {self.every(kind)} rounds")

    def _counted(self, kind: str, round: int, arrays: Arrays, name: str) -> tuple[Numbers, Numbers]:
        """How many entries of the array ``name`` belong to each of the first recorded peers, and that array of ids."""
        counts, values = (arrays.get(key, np.zeros(0)) for key in ("counts", name))
        flat = counts.ndim == values.ndim == 1 and counts.dtype.kind in "iu" and values.dtype.kind in "iu"
        self._need("counts" in arrays and flat and len(counts) <= len(self._order), kind, round)
        counts = counts.astype(np.int64)
        self._need(bool((counts >= 0).all()) and sum(counts.tolist()) == len(values), kind, round)
        return counts, values.astype(np.int64)

    def _need(self, fits: bool, kind: str, round: int) -> None:
        if not fits:
            raise UserError(f"{self._path(kind)} is damaged in the entry of round {round}: its arrays do not fit")
