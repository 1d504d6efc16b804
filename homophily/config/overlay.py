"""A config as nested tables, read from TOML or from ``key=value`` arguments of the command line."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from homophily.config.schema import Config
from homophily.errors import UserError

NAMED = ("data", "model", "method", "topology", "headline")  # tables that can be given as a name only


def read(path: Path, what: str = "config") -> dict[str, Any]:
    """The content of a TOML file. what: its name in error messages. Raises UserError if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"cannot read the {what} {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a TOML file: {error}") from error


def as_tables(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace names by tables: "oracle" by { name = "oracle" }, the topology "edges.csv" by { name = "file", ... }."""
    out = {k: {"name": v} if k in NAMED and isinstance(v, str) else _plain(v) for k, v in values.items()}
    if "tracker" in out:
        out["tracker"] = _tracker_tables(out["tracker"])
    training = out.get("training")
    if isinstance(training, Mapping) and isinstance(training.get("objective"), str):
        out["training"] = {**training, "objective": {"name": training["objective"]}}
    topology = out.get("topology")
    if isinstance(topology, Mapping) and str(topology.get("name")).endswith((".csv", ".graphml")):
        out["topology"] = {**topology, "name": "file", "path": topology["name"]}
    return out


def _tracker_tables(value: Any) -> Any:
    """One tracker or several, each by its name or as a table, as a list of tables."""
    several = [value] if isinstance(value, str | Mapping) else value
    if not isinstance(several, list):
        return value
    return [{"name": one} if isinstance(one, str) else one for one in several]


def _plain(value: Any) -> Any:
    """Replace NumPy scalars by Python numbers, also inside lists and tables."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value.item() if isinstance(value, np.generic) else value


def differing(one: Config, other: Config) -> dict[str, tuple[Any, Any]]:
    """The dotted keys in which two configs differ, each with both values (None: left out)."""
    a, b = flat(one.toml()), flat(other.toml())
    return {key: (a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)}


def flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted keys."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        out |= flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return out


def unflat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as nested tables."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        *path, last = key.split(".")
        table = out
        for part in path:
            table = table.setdefault(part, {})
        table[last] = value
    return out


def assignment(text: str) -> tuple[list[str], Any]:
    """Split ``training.lr=0.1`` into its path and its value: a TOML value if it is valid TOML, else a string."""
    key, equals, value = text.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not equals or not all(path):
        raise UserError(f"{text!r}: must be key=value")
    try:
        parsed_value: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError as error:
        if value.startswith(("[", "{")) and path[0] != "sweep":  # no name begins so; swept lists do
            raise UserError(f"{text}: the value is not TOML ({error}); strings in brackets need quotes") from None
        parsed_value = value
    return path, parsed_value


def split(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Split arguments into a config file (the first one, if it is not key=value) and the remaining arguments."""
    if words and "=" not in words[0]:
        return Path(words[0]), list(words[1:])
    return None, list(words)


def nested(assignments: Sequence[str]) -> dict[str, Any]:
    """Several ``key=value`` arguments as nested tables; a later one overrides an earlier one."""
    out: dict[str, Any] = {}
    for text in assignments:
        (*path, last), value = assignment(text)
        table = out
        for part in path:
            if isinstance(table.get(part), str):
                table[part] = {"name": table[part]}
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise UserError(f"{text!r}: {part} is not a table")
        named = (last in NAMED and not path) or [*path, last] == ["training", "objective"]
        if named and isinstance(value, str) and isinstance(table.get(last), dict):
            table[last]["name"] = value
        else:
            table[last] = value
    return out
