"""What a comparison is asked to run: the methods, each with its config for all values of the swept keys, and seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from homophily.config.overlay import flat, read, unflat
from homophily.config.schema import Config
from homophily.errors import UserError
from homophily.experiments.sweeps import Combination, combinations
from homophily.methods import Method
from homophily.methods import methods as registered
from homophily.methods.server import ServerMethod
from homophily.plugins.parameters import accepted, keys_of, refuse_unknown, required
from homophily.plugins.registry import GIVEN
from homophily.runs.comparison import Contents, ordered, short_names
from homophily.simulation.configuration import make, overlaid

MethodObject = Method | ServerMethod
Compared = str | MethodObject | type[Method] | type[ServerMethod]
_OWN_KEYS = ("methods", "seeds", "sweep")  # of a comparison, beside those of a run


@dataclass(frozen=True)
class Variant:
    """A method to compare, with one value of each swept key."""

    method: str  # its name in tables
    config: Config
    swept: Combination  # the values of the swept keys that apply to the method
    object: MethodObject | None = None

    @property
    def name(self) -> str:
        """The method and the values of swept keys, as in tables."""
        short = short_names(list(self.swept))
        return " ".join([self.method, *(f"{short[key]}={value}" for key, value in self.swept.items())])


@dataclass(frozen=True)
class Asked:
    """A comparison that is asked for."""

    variants: list[Variant]
    seeds: list[int]
    swept: list[str]  # dotted keys
    everyone: bool  # all registered methods that can work with the data


def asked_for(
    config: Config | str | Path | Mapping[str, Any] | None,
    overrides: Mapping[str, Any],
    methods: Any,
    seeds: Sequence[int] | None,
    sweep: Mapping[str, Sequence[Any]] | None,
) -> Asked:
    """Read the arguments of ``compare``. Raises UserError for a mistake in any of them."""
    named, objects = _given_methods(methods)
    below = _below(config, overrides, named)
    _refuse_a_name(config, below, overrides, named)
    if below and overrides:
        _asked(below, named, seeds, sweep, objects)  # a mistake in the file is reported even if it is overridden
    return _asked(overlaid(below, overrides), named, seeds, sweep, objects)


def _asked(
    values: Mapping[str, Any],
    methods: Any,
    seeds: Sequence[int] | None,
    sweep: Mapping[str, Sequence[Any]] | None,
    objects: Mapping[str, MethodObject],
) -> Asked:
    chosen = methods if methods is not None else values.get("methods")
    names = _names(chosen)
    numbers = _seeds(seeds if seeds is not None else values.get("seeds"), values.get("seed", 0))
    rest = {key: value for key, value in values.items() if key not in _OWN_KEYS}
    found: dict[str, Variant] = {}
    swept = combinations(sweep if sweep is not None else values.get("sweep", {}))
    for combination in swept:
        for one in _variants(overlaid(rest, unflat(combination)), names, objects, combination):
            found.setdefault(one.name, one)  # a method without a swept key is compared once
    in_order = sorted(found.values(), key=lambda one: names.index(one.method))
    return Asked(in_order, numbers, list(swept[0]), _is_all(chosen))


def _variants(
    values: Mapping[str, Any], names: Sequence[str], objects: Mapping[str, MethodObject], combination: Combination
) -> list[Variant]:
    """Each method with the values of one combination."""
    table = values.get("method", {})
    if not isinstance(table, Mapping):
        make(values)  # says what it must be
    swept = [key.removeprefix("method.") for key in combination if key.startswith("method.")]
    changed = {name: _changed(method, {key: table[key] for key in swept}) for name, method in objects.items()}
    tables = {name: {**_settings(method), "name": GIVEN} for name, method in changed.items()}
    known = [key for key in swept if any(key in settings for settings in tables.values())]
    tables |= _keys(table, [name for name in names if name not in objects], known)
    out = []
    for name in names:
        for key in swept:
            if key in _own(table, name):
                raise UserError(f"method.{name}.{key}: leave it out, or leave out sweep.method.{key}")
        config = make({**values, "method": tables[name]})
        mine = flat(config.toml())
        kept = {key: mine[key] for key in combination if key in mine}
        for key in combination:
            if key not in kept and not key.startswith("method."):
                raise UserError(f"sweep.{key}: this key cannot be swept, since its values do not stand in the config")
        out.append(Variant(name, config, kept, changed.get(name)))
    return out


def _changed(method: MethodObject, values: Mapping[str, Any]) -> MethodObject:
    """A method object with those of the values that it has settings for."""
    mine = {key: value for key, value in values.items() if key in _settings(method)}
    return replace(method, **mine) if mine and is_dataclass(method) else method


def _settings(method: MethodObject) -> dict[str, Any]:
    """The settings of a method object: its [method] table, so that a stopped comparison resumes with the same ones."""
    settings = {field.name: getattr(method, field.name) for field in fields(method)} if is_dataclass(method) else {}
    return {key: value for key, value in settings.items() if isinstance(value, bool | int | float | str)}


def _own(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The table [method.NAME] of one compared method."""
    found = table.get(name, {})
    return found if isinstance(found, Mapping) else {}


def _keys(table: Mapping[str, Any], names: Sequence[str], known: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The [method] table of each compared method that is named. known: keys that others have."""
    common = {key: value for key, value in table.items() if not isinstance(value, Mapping) and key != "name"}
    special = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    methods = list(dict.fromkeys([*registered, *names]))
    refuse_unknown("method", special, methods, f"the methods are {', '.join(methods)}")
    takes = {name: accepted(registered.get(name), registered.passed) for name in names}
    taken = [key for keys in takes.values() for key in (common if keys is None else keys)]
    anyone = list(dict.fromkeys([*taken, *known]))
    refuse_unknown("method", common, anyone, keys_of("the compared methods", anyone))
    out = {}
    for name, keys in takes.items():
        mine = {key: value for key, value in common.items() if keys is None or key in keys}
        out[name] = {**mine, **special.get(name, {}), "name": name}
    return out


def _given_methods(methods: Any) -> tuple[Any, dict[str, MethodObject]]:
    """What is asked for as names, and the objects among them by name. A class is made with its defaults."""
    if methods is None or isinstance(methods, str):
        return methods, {}
    single = isinstance(methods, Method | ServerMethod | type)
    items = methods if isinstance(methods, Mapping) else [methods] if single else methods
    if not isinstance(items, Mapping | Sequence):
        return methods, {}  # a mistake that is reported later
    named = items if isinstance(items, Mapping) else {}
    pairs = list(named.items()) if named else [(_name_of(one), one) for one in items]
    names = [name for name, _ in pairs]
    if len(set(map(str, names))) < len(names) and not all(isinstance(one, str) for _, one in pairs):
        raise UserError("methods: two of them have one name; give each its own: methods={'small': ..., 'large': ...}")
    objects = {name: _object(one) for name, one in pairs if not isinstance(one, str)}
    for name, one in pairs:
        if isinstance(one, str) and name != one:
            raise UserError(f"methods: {name!r} must be a Method object or class to be shown under another name")
    wrong = [one for one in objects.values() if not isinstance(one, Method | ServerMethod)]
    if wrong:
        raise UserError(f"methods: must be names, homophily.Method objects or classes, and one is {wrong[0]!r}")
    return names, objects


def _object(method: Any) -> Any:
    """A method, or what a class makes with its defaults."""
    if not isinstance(method, type) or not issubclass(method, Method | ServerMethod):
        return method
    if missing := required(method):
        raise UserError(f"methods: {method.__name__} needs {missing[0]}; call it to make an object")
    return method()


def _name_of(method: Any) -> Any:
    """What a method is called in tables: its registered name, or that of its class."""
    if isinstance(method, str):
        return method
    kind = method if isinstance(method, type) else type(method)
    return next((name for name in registered if registered.get(name) is kind), kind.__name__)


def _below(
    config: Config | str | Path | Mapping[str, Any] | None, overrides: Mapping[str, Any], methods: Any
) -> Mapping[str, Any]:
    """The nested keys of a config, of a TOML file, or of a comparison's folder."""
    if isinstance(config, Config):
        return config.toml()
    if not isinstance(config, str | Path):
        return config or {}
    if (contents := Contents.read(Path(config))) is not None:
        return _of_folder(contents, overrides, methods)
    if Path(config).is_dir():
        raise UserError(f"{config} is not the folder of a comparison: give a TOML file, or key=value")
    return read(Path(config))


def _of_folder(contents: Contents, overrides: Mapping[str, Any], methods: Any) -> dict[str, Any]:
    """The config of a comparison's folder: all its methods, seeds and swept values, unless others are asked for."""
    named = [name for name, table in contents.methods.items() if table["name"] != GIVEN]
    chosen = methods if methods is not None else overrides.get("methods")
    names = named if chosen is None else _names(chosen)
    common = overrides.get("method", {})
    tables = {name: contents.methods[name] for name in names if name in named}
    own = {n: {k: v for k, v in table.items() if k != "name" and k not in common} for n, table in tables.items()}
    swept: dict[str, list[Any]] = {}
    for one in ordered(contents.runs):
        for key, value in one.swept.items():
            if key.startswith("method.") and not any(_has(name, key.removeprefix("method.")) for name in names):
                continue
            values = swept.setdefault(key, [])
            values += [] if value in values else [value]
    seeds = sorted({one.seed for one in contents.runs})
    return {**unflat(contents.shared), "methods": names, "seeds": seeds, "sweep": swept, "method": own}


def _has(name: str, key: str) -> bool:
    """Whether a registered method has this key."""
    keys = accepted(registered.get(name), registered.passed)
    return keys is None or key in keys


def _refuse_a_name(
    config: object, below: Mapping[str, Any], overrides: Mapping[str, Any], methods: Sequence[str] | None
) -> None:
    """Raise a UserError if the config names a single method: a comparison takes several."""
    on_top = methods is not None or "methods" in overrides
    made_for_run = isinstance(config, Config) or (on_top and isinstance(config, str | Path))
    for values in (overrides,) if made_for_run else (overrides, below):
        table = values.get("method")
        name = table.get("name") if isinstance(table, Mapping) else table
        if isinstance(name, str):
            several = on_top or "methods" in below
            hint = "only: leave method.name out" if several else f"(did you mean methods={name}?)"
            raise UserError(f"method.name = {name!r}: a comparison takes methods=... {hint}")


def _is_all(asked: Any) -> bool:
    return asked is None or asked == "all" or asked == ["all"]


def _names(asked: Any) -> list[str]:
    if _is_all(asked):
        return list(registered)
    names = [part.strip() for part in asked.split(",")] if isinstance(asked, str) else asked
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) and name for name in names):
        raise UserError(f'methods = {asked!r}: must be names separated by commas, or "all"')
    if len(set(names)) < len(names):
        raise UserError(f"methods = {','.join(names)}: each method once")
    return list(names)


def _seeds(asked: Any, default: int) -> list[int]:
    if asked is None:
        return [default]
    parts: Sequence[Any] = (
        asked.split(",") if isinstance(asked, str) else asked if isinstance(asked, Sequence) else [asked]
    )
    try:
        numbers = [int(part) for part in parts if isinstance(part, str) or type(part) is int]
    except (TypeError, ValueError):
        numbers = []
    if not numbers or len(numbers) != len(parts) or min(numbers) < 0 or len(set(numbers)) < len(numbers):
        raise UserError(f"seeds = {asked!r}: must be different whole numbers separated by commas")
    return numbers
