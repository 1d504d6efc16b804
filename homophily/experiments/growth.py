"""A comparison's folder takes more methods, seeds and swept values later, and refuses what contradicts its runs."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from homophily.atomic_io import plain
from homophily.config.overlay import flat
from homophily.config.schema import TABLES, Config
from homophily.config.table import OpenTable
from homophily.errors import UserError
from homophily.experiments.asked import Variant
from homophily.plugins.registry import GIVEN
from homophily.runs.comparison import Contents, Entry, is_shared, short_names
from homophily.runs.reader import Run
from homophily.runs.writer import RunWriter

_LONG = 60  # characters of a run's folder name; a longer one ends with a hash


@dataclass(frozen=True)
class Wanted:
    """A variant to compare and its config with every default filled in."""

    variant: Variant
    complete: Config

    def values(self) -> dict[str, Any]:
        """The dotted keys and values that were asked for; objects that were passed in Python have no name."""
        filled = flat(self.complete.toml())
        asked = flat(self.variant.config.toml())
        named = {key: GIVEN for key, value in filled.items() if value == GIVEN}
        return {key: value for key, value in plain({**asked, **named}).items() if key != "seed"}

    def value(self, key: str) -> Any:
        """The value of a dotted key, a default if it was left out; None if it does not apply."""
        return self.variant.swept.get(key, plain(flat(self.complete.toml())).get(key))


def grown(
    folder: Path, found: Contents | None, wanted: Sequence[Wanted], seeds: Sequence[int], sweep: Sequence[str]
) -> Contents:
    """The contents of a folder with all wanted runs added; those that are there stay as they are.

    found: the contents before, None for a new folder; sweep: the keys in which wanted runs differ. Raises UserError if
    the wanted runs contradict those.
    """
    old = found or Contents({}, {}, [], [])
    swept = list(dict.fromkeys([*old.swept, *sweep]))
    if found is not None:
        _refuse_contradictions(folder, found, wanted, swept)
    runs = _with_swept(folder, old, swept)
    known, names = {one.key for one in runs}, {one.folder for one in runs}
    for seed in seeds:
        for one in wanted:
            new = entry(one, seed, swept)
            if new.key not in known:
                runs.append(replace(new, folder=_folder_name(new, swept, names)))
                known.add(new.key)
                names.add(runs[-1].folder)
    shared = dict(found.shared) if found else _common([one.values() for one in wanted])
    tables = {one.variant.method: _method_table(one.values()) for one in wanted}
    methods = old.methods | {name: table for name, table in tables.items() if name not in old.methods}
    return Contents(
        {key: value for key, value in shared.items() if is_shared(key) and key not in swept},
        {name: {k: v for k, v in table.items() if f"method.{k}" not in swept} for name, table in methods.items()},
        swept,
        runs,
    )


def entry(one: Wanted, seed: int, swept: Sequence[str]) -> Entry:
    """A wanted run with its values of the keys that its folder sweeps; its own folder is not named yet."""
    values = {key: one.value(key) for key in swept}
    return Entry("", one.variant.method, seed, {key: value for key, value in values.items() if value is not None})


def _with_swept(folder: Path, old: Contents, swept: Sequence[str]) -> list[Entry]:
    """The runs of a folder with their values of all swept keys; runs not begun are dropped if keys are new."""
    new = [key for key in swept if key not in old.swept]
    if not new:
        return list(old.runs)
    out = []
    for one in old.runs:
        if RunWriter(folder / one.folder).begun:
            values = plain(flat(Run(folder / one.folder).config.toml()))
            out.append(replace(one, swept=one.swept | {key: values[key] for key in new if key in values}))
    return out


def _refuse_contradictions(folder: Path, found: Contents, wanted: Sequence[Wanted], swept: Collection[str]) -> None:
    """Raise a UserError that names the first key in which a wanted run differs from the runs of the folder."""
    begun = {one.method: Run(folder / one.folder) for one in found.runs if RunWriter(folder / one.folder).begun}
    for one in wanted:
        name = one.variant.method
        there, here = dict(found.shared), one.values()
        if name in found.methods:
            there |= {f"method.{key}": value for key, value in found.methods[name].items()}
        else:
            here = {key: value for key, value in here.items() if is_shared(key)}
        witness = begun.get(name) or next(iter(begun.values()), None)
        filled = plain(flat(witness.config.toml())) if witness else {}
        for key in sorted((there.keys() | here.keys()) - set(swept)):
            before, now = there.get(key, filled.get(key)), here.get(key, one.value(key))
            if before != now and not (now is None and swept and _is_open(key)):
                raise UserError(f"{folder} holds another comparison: {_difference(key, before, now)}")


def _difference(key: str, before: Any, now: Any) -> str:
    shown = ["left out" if value is None else f"{value!r}" for value in (before, now)]
    simple = all(isinstance(value, int | float | str) and value != GIVEN for value in (before, now))
    sweep = f", or compare both with sweep.{key}={before},{now}" if simple and key != "method.name" else ""
    return f"{key} is {shown[0]} there and {shown[1]} here; name another folder{sweep}"


def _is_open(key: str) -> bool:
    """Whether a key belongs to what its table names, so that it does not apply if a swept key changes the name."""
    table, _, last = key.partition(".")
    return table in TABLES and issubclass(TABLES[table], OpenTable) and last not in TABLES[table].model_fields


def _common(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The keys and values that all tables have."""
    return {key: value for key, value in tables[0].items() if all(table.get(key) == value for table in tables)}


def _method_table(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removeprefix("method."): value for key, value in values.items() if key.startswith("method.")}


def _folder_name(one: Entry, swept: Sequence[str], taken: Collection[str]) -> str:
    """The name of a run's folder: METHOD-SEED, with a sweep METHOD-KEY=VALUE-SEED."""
    short = short_names(swept)
    parts = [one.method, *(f"{short[key]}={value}" for key, value in one.swept.items()), str(one.seed)]
    name = "-".join("".join(c if c.isalnum() or c in "-_.=" else "." for c in part) for part in parts)
    if len(name) > _LONG or name in taken:
        name = f"{name[:_LONG]}-{hashlib.sha256(repr(one.key).encode()).hexdigest()[:8]}"
    return name
