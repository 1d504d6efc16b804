"""The config: one TOML file, ``key=value`` over it, defaults under it. Everything wrong ends in one sentence."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
from pydantic import Field

from homophily.data import shifts, sources
from homophily.errors import UserError
from homophily.keys import accepted, checked, must_take, parsed, refuse_unknown
from homophily.losses import losses
from homophily.merging import given_to, merges
from homophily.methods import methods
from homophily.models import models
from homophily.registry import GIVEN, Registry
from homophily.topology import topologies

# What the program itself passes to a function that a table names; its other parameters are the table's keys.
PASSED: dict[str, tuple[str, ...]] = {
    "method": (),
    "model": ("inputs", "outputs"),
    "topology": ("peers", "seed"),
    "shift": ("source", "peers", "seed"),
    "source": ("seed",),
}


_MANY = 10**9


def _amount(least: int, word: str) -> Any:
    """A whole number of at least ``least``, or a word."""

    def check(value: Any) -> Any:
        if value == word or value is None or (type(value) is int and value >= least):
            return value
        raise ValueError(f'must be a whole number of at least {least} or "{word}"')

    return Annotated[Any, pydantic.AfterValidator(check)]


class Table(pydantic.BaseModel):
    """A closed table: its keys are its fields."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class OpenTable(Table):
    """A table with the keys of what it names as well."""

    model_config = pydantic.ConfigDict(frozen=True, extra="allow")

    @property
    def keys(self) -> dict[str, Any]:
        """The keys beyond the table's own."""
        return dict(self.model_extra or {})


class Data(OpenTable):
    name: str = "digits"
    shift: str | None = None
    sizes: list[Annotated[int, Field(ge=1)]] | None = None
    normalise: Literal["standard", "half", "unit"] | None = None
    train: _amount(1, "all") = None  # type: ignore[valid-type]
    validation: int | None = Field(None, ge=0)
    test: _amount(1, "all") = None  # type: ignore[valid-type]
    balanced: bool = False


class Model(OpenTable):
    name: str = "mlp"
    personal: list[str] = []


class Training(Table):
    optimizer: Literal["sgd", "adam"] = "sgd"
    loss: str = "auto"
    lr: float = Field(0.05, gt=0, le=1e30, allow_inf_nan=False)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0, le=1e6, allow_inf_nan=False)
    decay: float = Field(0.99, gt=0, le=1)
    batch: int = Field(10, ge=1, le=_MANY)
    epochs: int = Field(3, ge=1, le=_MANY)
    patience: int = Field(0, ge=0, le=_MANY)


class Method(OpenTable):
    name: str = "kin"


class Topology(OpenTable):
    name: str = "full"


class Config(Table):
    seed: int = Field(0, ge=0, lt=1 << 63)
    peers: int | None = Field(None, ge=1, le=10**7)
    rounds: int = Field(60, ge=1, le=_MANY)
    score: Literal["after-merge", "after-training"] = "after-merge"
    merge: str = "uniform"
    topology: Topology = Topology()
    engine: Literal["auto", "stacked", "vectorised", "one-by-one"] = "auto"
    precision: Literal["full", "fast"] = "full"
    init: Literal["common", "independent"] = "common"
    book: _amount(1, "all") = "all"  # type: ignore[valid-type]
    evaluate: int = Field(1, ge=1, le=_MANY)
    checkpoint: int = Field(10, ge=1, le=_MANY)
    extra_metrics: list[str] = []
    data: Data = Data()
    model: Model = Model()
    training: Training = Training()
    method: Method = Method()

    def toml(self) -> dict[str, Any]:
        """As a TOML table, without what was left out."""
        return self.model_dump(exclude_none=True)


_TABLES: dict[str, type[Table]] = {
    "data": Data, "model": Model, "training": Training, "method": Method, "topology": Topology,
}  # fmt: skip
_NAMED = ("data", "model", "method", "topology")
_REGISTRIES: dict[str, Registry[Any]] = {"model": models, "method": methods, "topology": topologies}
_OWNERS: dict[str, Registry[Any]] = {**_REGISTRIES, "source": sources, "shift": shifts}  # of keys, as in PASSED


def load(path: Path | None, overrides: Mapping[str, Any] | None = None) -> Config:
    """The config in a TOML file (or the defaults) with nested ``overrides`` over it."""
    below = read(path) if path is not None else {}
    if below and overrides:
        make(below)  # a mistake in the file is told even where it is overridden
    return make(overlaid(below, overrides or {}))


def over(config: Config, overrides: Mapping[str, Any]) -> Config:
    """A config with nested ``overrides`` over it."""
    return make(overlaid(config.toml(), overrides))


def differing(one: Config, other: Config) -> dict[str, tuple[Any, Any]]:
    """The keys, written with dots, in which two configs differ, with both values (None: left out)."""
    a, b = _flat(one.toml()), _flat(other.toml())
    return {key: (a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)}


def _flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in table.items():
        out |= _flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return out


def make(values: Mapping[str, Any]) -> Config:
    """A config from nested values, every key of every table checked."""
    values = _tables(values)
    refuse_unknown("", values, list(Config.model_fields), "there are")
    for table, model in _TABLES.items():
        if isinstance(values.get(table), dict) and not issubclass(model, OpenTable):
            refuse_unknown(table, values[table], list(model.model_fields), f"[{table}] has")
    config: Config = parsed(Config, values)
    for name in config.extra_metrics:
        if ":" not in name:
            raise UserError(f"extra_metrics = {name!r}: must be package.module:name")
    merge = merges.get(config.merge)
    must_take(merge, given_to(merge), f"merge = {config.merge!r}")
    if config.training.loss not in ("auto", GIVEN):
        losses.get(config.training.loss)
    for table, registry in _REGISTRIES.items():
        section = getattr(config, table)
        if section.name == GIVEN:
            continue
        _check_keys(table, f"{registry.kind} {section.name!r}", registry.get(section.name), section)
    return config


def _check_keys(table: str, owner: str, function: Callable[..., Any], section: OpenTable) -> None:
    """The keys that are there; whether one is missing is told when ``function`` is called."""
    names = accepted(function, PASSED[table])
    if names is not None:
        refuse_unknown(table, section.keys, [*type(section).model_fields, *names], f"{owner} has")
    absent = [name for name in names or [] if name not in section.keys]
    checked(table, owner, function, section.keys, [*PASSED[table], *absent])


def read(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"cannot read the config {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a TOML file: {error}") from error


def _tables(values: Mapping[str, Any]) -> dict[str, Any]:
    """A name may stand for its table: method = "oracle"; so may a file of edges: topology = "edges.csv"."""
    out = {k: {"name": v} if k in _NAMED and isinstance(v, str) else _plain(v) for k, v in values.items()}
    topology = out.get("topology")
    if isinstance(topology, Mapping) and str(topology.get("name")).endswith((".csv", ".graphml")):
        out["topology"] = {**topology, "name": "file", "path": topology["name"]}
    return out


def _plain(value: Any) -> Any:
    """Python's own numbers in place of NumPy's."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value.item() if isinstance(value, np.generic) else value


def overlaid(below: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` wins. Naming another method, model, topology, data set or shift drops the keys of the one before."""
    out = dict(_tables(below))
    for key, value in _tables(over).items():
        if key not in _TABLES or not isinstance(value, Mapping):
            out[key] = value
            continue
        kept = out.get(key, {})
        out[key] = _deep({**_still_fitting(key, kept, value)}, value) if isinstance(kept, Mapping) else kept
    return out


def _deep(below: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` wins key by key, in inner tables ([method.NAME]) too."""
    for key, value in over.items():
        old = below.get(key)
        below[key] = _deep(dict(old), value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return below


def _still_fitting(table: str, kept: Mapping[str, Any], value: Mapping[str, Any]) -> dict[str, Any]:
    """What stays of a table under ``value``: all, or what has a place still where that names something else in it."""
    fields = _TABLES[table].model_fields
    before = {key: kept.get(key, fields[key].default) for key in ("name", "shift") if key in fields}
    after = {key: value.get(key, old) for key, old in before.items()}
    if after == before:
        return dict(kept)
    if "shift" in after and "shift" not in value and after["name"] != before["name"]:
        after["shift"] = None  # a shift goes with its data set
        kept = {key: what for key, what in kept.items() if key != "shift"}
    allowed = set(fields)
    for key, name in after.items():
        names = _keys_of(table, key, name)
        if names is None:
            return dict(kept)
        allowed |= set(names)
    return {key: what for key, what in kept.items() if key in allowed}


def _keys_of(table: str, key: str, name: Any) -> list[str] | None:
    """The keys that belong to what a table's name or shift stands for; None: any."""
    kind = {("data", "name"): "source", ("data", "shift"): "shift"}.get((table, key), table)
    if not isinstance(name, str) or name == GIVEN or (kind == "source" and name not in sources and ":" not in name):
        return []  # left out, a mistake that is told later, or a folder
    return accepted(_OWNERS[kind].get(name), PASSED[kind])


def assignment(text: str) -> tuple[list[str], Any]:
    """``training.lr=0.1`` as its path and value: a TOML value where it is one, else a text."""
    key, equals, value = text.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not equals or not all(path):
        raise UserError(f"{text!r}: must be key=value")
    try:
        parsed_value: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed_value = value
    return path, parsed_value


def split(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The config file, if the first word is no key=value, and the rest."""
    if words and "=" not in words[0]:
        return Path(words[0]), list(words[1:])
    return None, list(words)


def nested(assignments: Sequence[str]) -> dict[str, Any]:
    """Several ``key=value`` texts as nested tables; a later one wins."""
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
        if last in _NAMED and not path and isinstance(value, str) and isinstance(table.get(last), dict):
            table[last]["name"] = value
        else:
            table[last] = value
    return out
