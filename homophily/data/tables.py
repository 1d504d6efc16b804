"""Peers' data from tables: a pandas DataFrame, a CSV file or a Parquet file. A row is a sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from torch import Tensor

from homophily.data.peer_data import PeerData
from homophily.errors import UserError
from homophily.plugins.optional import imported
from homophily.plugins.registry import Registry

readers: Registry[Callable[..., list[PeerData]]] = Registry("table file", passed=("path",))
"""The readers of table files, by the ending of the file's name."""

_MISSING = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "?"]  # cells of a CSV file that have no value
_SPLITS = {"train": "", "validation": "validation_", "test": "test_"}  # prefixes of PeerData's fields

_Peer = Annotated[
    str | None, Field(description="the column that names the peer of each row. Left out: all rows are of one peer")
]
_Target = Annotated[
    str | list[str],
    Field(
        description="the target column: whole numbers or strings are classes, numbers with a decimal point a "
        "regression. A list of columns is a regression with several outputs"
    ),
]
_Features = Annotated[
    str | list[str] | None, Field(description="the input columns. Left out: all columns that have no other use")
]
_Split = Annotated[
    str | None,
    Field(description='the column that is `"train"`, `"validation"` or `"test"`. Left out: all rows are for training'),
]
_Cluster = Annotated[
    str | None, Field(description="the column with the true cluster of the peer. Left out: it is not known")
]
_Person = Annotated[
    str | None,
    Field(description='the column that says whose row it is, for `privacy.unit = "person"`. Left out: it is not known'),
]


def from_frame(
    frame: Any,
    *,
    target: str | list[str],
    peer: str | None = None,
    features: str | list[str] | None = None,
    split: str | None = None,
    cluster: str | None = None,
    person: str | None = None,
) -> list[PeerData]:
    """Return the data of the peers in a pandas DataFrame, in order of the peers' names.

    frame: one row per sample; its index is ignored.
    target: the target column. Whole numbers, booleans or strings are classes, other numbers a regression; a list of
    columns is a regression with several outputs.
    peer: the column that names the peer of each row; None: all rows are of one peer.
    features: the input columns: numbers (NaN: missing), one column of lists or arrays, or several such columns, which
    become named inputs; None: all columns that have no other use.
    split: the column that is "train", "validation" or "test"; None: all rows are for training.
    cluster: the column with the true cluster of the peer; None: it is not known.
    person: the column that says whose row it is; None: it is not known.
    Raises UserError for bad input, with the column and the row (counted from 1).
    """
    pandas = _pandas()
    if not isinstance(frame, pandas.DataFrame):
        raise UserError(f"from_frame: must be given a pandas DataFrame, not {type(frame).__name__}")
    return _peers(_Table(frame, "the frame"), "all", peer, target, features, split, cluster, person)


@readers("csv")
def from_csv(
    path: Path | str,
    *,
    target: _Target,
    peer: _Peer = None,
    features: _Features = None,
    split: _Split = None,
    cluster: _Cluster = None,
    person: _Person = None,
) -> list[PeerData]:
    """Return the data of the peers in a CSV file, whose first line names the columns.

    path: of the file. An empty cell, NA, N/A, NaN, null and ? are missing values.
    target, peer, features, split, cluster, person: as for ``from_frame``.
    """
    pandas = _pandas()
    names = [name for name in (peer, split, cluster, person) if name is not None]  # as they are written: 007 is not 7
    as_written = dict.fromkeys(names, str)
    frame = _read(pandas.read_csv, path, converters=as_written, keep_default_na=False, na_values=_MISSING)
    for name in {*as_written} & {*frame.columns}:
        frame[name] = frame[name].str.strip().replace("", None)
    return _peers(_Table(frame, str(path)), Path(path).stem, peer, target, features, split, cluster, person)


@readers("parquet")
def from_parquet(
    path: Path | str,
    *,
    target: _Target,
    peer: _Peer = None,
    features: _Features = None,
    split: _Split = None,
    cluster: _Cluster = None,
    person: _Person = None,
) -> list[PeerData]:
    """Return the data of the peers in a Parquet file.

    path: of the file.
    target, peer, features, split, cluster, person: as for ``from_frame``.
    """
    imported("pyarrow", "tables", "a Parquet file")
    frame = _read(_pandas().read_parquet, path, engine="pyarrow")
    return _peers(_Table(frame, str(path)), Path(path).stem, peer, target, features, split, cluster, person)


def _pandas() -> Any:
    return imported("pandas", "tables", "a table")


def reader_of(name: str) -> Callable[..., list[PeerData]] | None:
    """Return the reader of the table file called ``name``; None: it is not the name of a table file."""
    ending = Path(name).suffix.removeprefix(".")
    return readers.get(ending) if ending in readers else None


def _read(read: Callable[..., Any], path: Path | str, **options: Any) -> Any:
    if not Path(path).exists():
        raise UserError(f"{path}: there is no such file")
    try:
        return read(path, **options)
    except (OSError, ValueError) as error:  # the errors of pandas and pyarrow are ValueErrors
        raise UserError(f"{path} cannot be read: {error}") from error


@dataclass(frozen=True)
class _Table:
    """A DataFrame whose columns are read with error messages that name file, column and row."""

    frame: Any
    where: str

    def check(self, key: str, asked: str | Sequence[str] | None) -> None:
        """Refuse columns that the table does not have. key: which of the reader's arguments names them."""
        names = list(self.frame.columns)
        for name in [asked] if isinstance(asked, str) else asked or ():
            if name in names:
                continue
            hint = get_close_matches(name, [one for one in names if isinstance(one, str)], n=1)
            known = f"did you mean {hint[0]!r}?" if hint else f"its columns are {', '.join(map(str, names))}"
            raise UserError(f"{key}: {self.where} has no column {name!r}; {known}")

    def column(self, name: str) -> Any:
        """Return a column, without the index."""
        names = list(self.frame.columns)
        if names.count(name) > 1:
            raise UserError(f"{self.where} has {names.count(name)} columns {name!r}")
        return self.frame[name].reset_index(drop=True)

    def wrong(self, name: str, row: int, problem: str) -> UserError:
        return UserError(f"{self.where}: column {name!r}, row {row + 1}: {problem}")

    def complete(self, name: str) -> Any:
        """Return a column in which every row has a value."""
        series = self.column(name)
        missing = np.flatnonzero(series.isna())
        if len(missing):
            raise self.wrong(name, int(missing[0]), "the value is missing")
        return series

    def strings(self, name: str) -> np.ndarray[Any, Any]:
        """Return a column as strings."""
        return np.array([str(value) for value in self.complete(name)], dtype=object)

    def numbers(self, name: str, remedy: str = "") -> np.ndarray[Any, Any]:
        """Return a column as float32 [n], with NaN for missing values. remedy: what to do if it has no numbers."""
        pandas, series = _pandas(), self.column(name)
        if series.dtype.kind in "Mmc":
            raise UserError(f"{self.where}: column {name!r} contains {series.dtype}, which is not a number")
        numeric = pandas.to_numeric(series.astype(object), errors="coerce")
        wrong = np.flatnonzero(numeric.isna() & series.notna())
        if len(wrong):
            raise self.wrong(name, int(wrong[0]), f"{series[int(wrong[0])]!r} is not a number{remedy}")
        values = numeric.to_numpy(dtype="float32", na_value=np.nan)
        infinite = np.flatnonzero(np.isinf(values))
        if len(infinite):
            raise self.wrong(name, int(infinite[0]), "the value is infinite or too large")
        return np.asarray(values)

    def has_arrays(self, name: str) -> bool:
        """Whether the cells of a column are lists or arrays."""
        values = self.column(name).dropna()
        return len(values) > 0 and isinstance(values.iloc[0], list | tuple | np.ndarray | Tensor)

    def arrays(self, name: str) -> list[np.ndarray[Any, Any]]:
        """Return the lists or arrays in the cells of a column."""
        found = []
        for row, cell in enumerate(self.complete(name)):
            try:
                values = _array(cell)
            except ValueError as error:
                raise self.wrong(name, row, f"its lists differ in length: {error}") from None
            if values.dtype.kind not in "biuf" or not values.shape:
                raise self.wrong(name, row, "it must be a list of numbers")
            found.append(values)
        return found


def _array(cell: Any) -> np.ndarray[Any, Any]:
    values = np.asarray(cell)
    return values if values.dtype != object else np.array([_array(inner) for inner in values])


_Column = np.ndarray[Any, Any] | list[np.ndarray[Any, Any]]  # a list: one array for each row, of different lengths


def _peers(
    table: _Table,
    whole: str,
    peer: str | None,
    target: str | list[str],
    features: str | list[str] | None,
    split: str | None,
    cluster: str | None,
    person: str | None,
) -> list[PeerData]:
    """Return the peers of a table. whole: the name of the only peer if no column names them."""
    rows = len(table.frame)
    if not rows:
        raise UserError(f"{table.where} has no rows")
    targets = [target] if isinstance(target, str) else list(target)
    if not targets:
        raise UserError(f"{table.where}: target names no column")
    asked = {"target": target, "peer": peer, "features": features, "split": split, "cluster": cluster, "person": person}
    for key, columns in asked.items():
        table.check(key, columns)
    y = _targets(table, target)
    names = table.strings(peer) if peer is not None else np.full(rows, whole, dtype=object)
    parts = _splits(table, split) if split is not None else np.full(rows, "train", dtype=object)
    clusters = table.strings(cluster) if cluster is not None else None
    persons = table.strings(person) if person is not None else None
    other = (peer, split, cluster, person, *targets)
    x = _inputs(table, [name for name in table.frame.columns if name not in other] if features is None else features)
    found = []
    for name in _in_order(names):
        own = np.flatnonzero(names == name)
        fields: dict[str, Any] = {}
        for part, prefix in _SPLITS.items():
            which = own[parts[own] == part]
            if len(which):
                fields |= {f"{prefix}x": _rows(x, which), f"{prefix}y": _rows(y, which)}
        if persons is not None:
            fields["person"] = persons[own[parts[own] == "train"]]
        if "x" not in fields:
            raise UserError(f"{table.where}: peer {name!r} has no row whose {split!r} is 'train'")
        found.append(PeerData(**fields, name=name, cluster=_cluster(table, clusters, cluster, own, name)))
    return found


def _inputs(table: _Table, features: str | Sequence[str]) -> _Column | dict[str, _Column]:
    """Return the inputs: numbers [n, features], the arrays of one column, or those of several columns by name."""
    columns = [features] if isinstance(features, str) else list(features)
    if not columns:
        raise UserError(f"{table.where}: there are no input columns")
    lists = [name for name in columns if table.has_arrays(name)]
    if lists and len(lists) < len(columns):
        other = next(name for name in columns if name not in lists)
        raise UserError(
            f"{table.where}: column {lists[0]!r} holds lists, and {other!r} does not: name one kind in features"
        )
    if lists:
        found = {name: _stacked(table.arrays(name)) for name in lists}
        return found[lists[0]] if len(found) == 1 else found
    remedy = "; encode the column as numbers (0 and 1 for each category, a list of tokens for text), or leave it out "
    remedy += "of features"
    return np.stack([table.numbers(name, remedy) for name in columns], axis=1)


def _targets(table: _Table, target: str | list[str]) -> _Column:
    """Return the targets: classes [n] as whole numbers or strings, or numbers [n] or [n, outputs]."""
    if not isinstance(target, str):
        for name in target:
            table.complete(name)
        return np.stack([table.numbers(name) for name in target], axis=1)
    series = table.complete(target)
    if table.has_arrays(target):
        return _stacked(table.arrays(target))
    kind = _pandas().api.types
    if kind.is_integer_dtype(series) or kind.is_bool_dtype(series):
        return np.asarray(series.to_numpy(dtype="int64"))
    if kind.is_numeric_dtype(series):
        return table.numbers(target)
    for row, value in enumerate(series):
        if not isinstance(value, str):
            raise table.wrong(target, row, f"{value!r} is neither a number nor a string")
    return np.array(series.tolist(), dtype=str)


def _stacked(arrays: list[np.ndarray[Any, Any]]) -> _Column:
    """Return arrays of one shape as one array; others stay a list, and are padded later."""
    return np.stack(arrays) if len({array.shape for array in arrays}) == 1 else arrays


def _rows(column: _Column | dict[str, _Column], which: np.ndarray[Any, Any]) -> Any:
    if isinstance(column, dict):
        return {name: _rows(one, which) for name, one in column.items()}
    return [column[int(row)] for row in which] if isinstance(column, list) else column[which]


def _splits(table: _Table, split: str) -> np.ndarray[Any, Any]:
    parts = table.strings(split)
    for row, part in enumerate(parts):
        if part not in _SPLITS:
            raise table.wrong(split, row, f"must be one of {', '.join(_SPLITS)}, not {part!r}")
    return parts


def _cluster(
    table: _Table, clusters: np.ndarray[Any, Any] | None, column: str | None, own: np.ndarray[Any, Any], name: str
) -> str | None:
    """Return the cluster of the peer called ``name``, which has the rows ``own``."""
    if clusters is None:
        return None
    first = str(clusters[own[0]])
    other = own[clusters[own] != first]
    if len(other):
        problem = f"peer {name!r} is in cluster {clusters[other[0]]!r} here, but in {first!r} in row {own[0] + 1}"
        raise table.wrong(str(column), int(other[0]), problem)
    return first


def _in_order(names: np.ndarray[Any, Any]) -> list[str]:
    """Return the distinct names in alphabetical order, or in numerical order if all are whole numbers."""
    distinct = sorted(set(names.tolist()))
    return sorted(distinct, key=int) if all(name.isdecimal() for name in distinct) else distinct
