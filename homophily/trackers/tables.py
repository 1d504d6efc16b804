"""CSV and Parquet: a table with a row per round, and a table with one row for the config and the results."""

from __future__ import annotations

import csv
import io
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from homophily.atomic_io import write_bytes, write_text
from homophily.plugins.optional import imported
from homophily.trackers.base import Identity, TrackedRun, Tracker, Values, own_folder, trackers

_PAUSES = 20  # after a Parquet file was written, times that this took until it is written again

Row = dict[str, Any]
_Folder = Annotated[
    str | None, Field(description="where each run gets a folder of its own. Left out: a folder in the run's folder")
]


class TableTracker(Tracker, ABC):
    """Writes ``metrics`` and ``summary`` files of one format."""

    stays = True
    ending: ClassVar[str]

    def __init__(self, folder: _Folder = None) -> None:
        self._folder = folder

    def open(self, run: TrackedRun, identity: Identity | None) -> Identity:
        folder = own_folder(run, self.ending, self._folder, identity)
        folder.mkdir(parents=True, exist_ok=True)
        self._path, self._results = folder / f"metrics.{self.ending}", folder / f"summary.{self.ending}"
        self._rows: list[Row] = []
        if identity is not None and self._path.is_file():
            self._rows = [row for row in self.read(self._path) if row["round"] <= run.logged]
            self.write(self._path, self._rows)
        self._about = {"run": run.name, "group": run.group, **run.parameters}
        return {"folder": str(folder)}

    def log(self, round: int, values: Mapping[str, float]) -> None:
        row = {"round": round, **{name: value for name, value in values.items() if name != "round"}}
        self.append(self._path, self._rows, row)  # not flushed: the run folder has the same numbers
        self._rows.append(row)

    def finish(self, summary: Values) -> None:
        found = {f"summary/{name}": value for name, value in summary.items()}
        plain = {key: str(value) if isinstance(value, list | dict) else value for key, value in self._about.items()}
        self.write(self._results, [{**plain, **found}])

    def append(self, path: Path, rows: Sequence[Row], row: Row) -> None:
        """Add ``row`` after the ``rows`` that the file has."""
        self.write(path, [*rows, row])

    @abstractmethod
    def write(self, path: Path, rows: Sequence[Row]) -> None:
        """Write a file with all rows."""

    @abstractmethod
    def read(self, path: Path) -> list[Row]:
        """The complete rows of a file."""


@trackers("csv")
class Csv(TableTracker):
    """CSV: metrics.csv with a row per round, summary.csv with the config and the results."""

    ending = "csv"

    def __init__(self, folder: _Folder = None) -> None:
        super().__init__(folder)
        self._columns: dict[Path, list[str]] = {}  # of the files that were written

    def append(self, path: Path, rows: Sequence[Row], row: Row) -> None:
        columns = self._columns.get(path, [])
        if not set(row) <= set(columns):
            super().append(path, rows, row)
            return
        with path.open("a", encoding="utf-8", newline="") as file:
            file.write(_lines(columns, [row]))

    def write(self, path: Path, rows: Sequence[Row]) -> None:
        columns = self._columns[path] = _columns(rows)
        write_text(path, _lines(columns, [dict(zip(columns, columns, strict=True)), *rows]), flush=False)

    def read(self, path: Path) -> list[Row]:
        *lines, _ = path.read_text(encoding="utf-8").split("\n")  # the last may be incomplete
        rows = csv.DictReader(lines)
        return [{key: _number(text) for key, text in row.items() if text} for row in rows]


@trackers("parquet")
class Parquet(TableTracker):
    """Parquet: metrics.parquet with a row per round, summary.parquet with the config and the results."""

    ending = "parquet"

    def __init__(self, folder: _Folder = None) -> None:
        super().__init__(folder)
        self._arrow = imported("pyarrow", "tables", "tracker 'parquet'")
        self._parquet = imported("pyarrow.parquet", "tables", "tracker 'parquet'")

    def open(self, run: TrackedRun, identity: Identity | None) -> Identity:
        self._kept, self._pause = run.logged, 0.0  # the last round in the file; until when it is not written again
        return super().open(run, identity)

    def append(self, path: Path, rows: Sequence[Row], row: Row) -> None:
        """Write the whole file, since Parquet ends with an index, but not in every round."""
        began = time.monotonic()
        if began >= self._pause:
            super().append(path, rows, row)
            now = time.monotonic()
            self._kept, self._pause = row["round"], now + _PAUSES * (now - began)

    def kept(self, round: int) -> int:
        return self._kept

    def flush(self) -> None:
        if self._rows and self._rows[-1]["round"] > self._kept:
            self.write(self._path, self._rows)
            self._kept = self._rows[-1]["round"]

    def finish(self, summary: Values) -> None:
        self.flush()
        super().finish(summary)

    def write(self, path: Path, rows: Sequence[Row]) -> None:
        table = self._arrow.table({name: [row.get(name) for row in rows] for name in _columns(rows)})
        buffer = io.BytesIO()
        self._parquet.write_table(table, buffer)
        write_bytes(path, buffer.getvalue(), flush=False)

    def read(self, path: Path) -> list[Row]:
        rows: list[Row] = self._parquet.read_table(path).to_pylist()
        return [{key: value for key, value in row.items() if value is not None} for row in rows]


def _columns(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _lines(columns: Sequence[str], rows: Sequence[Row]) -> str:
    out = io.StringIO()
    csv.DictWriter(out, columns, lineterminator="\n").writerows(rows)
    return out.getvalue()


def _number(text: str) -> float:
    return int(text) if text.lstrip("-").isdigit() else float(text)
