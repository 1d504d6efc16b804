"""Several methods on the same federations: a run per method and seed, and a table of means and standard deviations."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from homophily.atomic_io import locked, plain, read_json, write_json
from homophily.config.overlay import read
from homophily.config.schema import Config
from homophily.data import PeerData
from homophily.errors import UnsuitableError, UserError
from homophily.experiments.callbacks import Callback
from homophily.experiments.queue import RunRequest, execute
from homophily.experiments.runner import chosen_device, form, warn_of_diverged, with_start
from homophily.methods import Method
from homophily.methods import methods as registered
from homophily.methods.server import ServerMethod
from homophily.plugins.parameters import accepted, keys_of, refuse_unknown, required
from homophily.plugins.registry import GIVEN
from homophily.runs.reader import Run
from homophily.runs.writer import RunWriter
from homophily.simulation.configuration import make, overlaid
from homophily.simulation.evaluation import ExtraMetric
from homophily.simulation.setup import prepare
from homophily.simulation.training_setup import SetupCache
from homophily.simulation.user_objects import UserObjects
from homophily.training.losses import Loss

_PLAN = "asked.json"  # what is compared, so that the same call resumes it
_BY_HOPS = "models_per_peer_round_by_hops"  # a seed has counts up to its largest distance; further counts are 0
_NOT_AVERAGED = ("rounds", "run", "ever_diverged", "diverged", "notes")


Compared = str | Method | ServerMethod | type[Method] | type[ServerMethod]


@dataclass(frozen=True)
class Comparison:
    """The runs of a comparison and the folder that holds them."""

    path: Path
    runs: dict[str, list[Run]]  # by method, in order of seeds
    left_out: dict[str, str]  # methods that cannot work here, and why

    def table(self) -> dict[str, dict[str, Any]]:
        """For each method, mean and standard deviation over seeds of all that a summary has: {"mean": ..., "std": ...}.

        None if the number of one seed is not known, as the accuracy of a run whose peers have diverged.
        """
        return {name: _averaged([run.summary for run in runs]) for name, runs in self.runs.items()}


def compare(
    config: Config | str | Path | Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    methods: Compared | Sequence[Compared] | Mapping[str, Compared] | None = None,
    seeds: Sequence[int] | None = None,
    model: nn.Module | None = None,
    data: Sequence[PeerData] | None = None,
    loss: Loss | None = None,
    extra_metrics: Mapping[str, ExtraMetric] | None = None,
    callbacks: Callable[[str, int], Sequence[Callback]] | None = None,
    out: str | Path | None = None,
    device: str = "auto",
) -> Comparison:
    """Run every method with every seed on the same federation.

    config: as for ``run``; it may also have the keys ``methods`` and ``seeds``. The ``method.name`` of a file made for
    ``run`` is ignored if methods are given on top.
    overrides: nested keys that override the config. A key of [method] goes to the methods that have it, a key of
    [method.NAME] to that method.
    methods: names, ``Method`` objects or classes; a mapping gives each the name it has in tables. "all" or None: all
    registered methods that can work with the data.
    seeds: one run per method and seed; None: the seed of the config.
    model, data, loss, extra_metrics, device: as for ``run``, the same for all runs.
    callbacks: a function of a method's name and a seed that returns the callbacks of that run.
    out: a new folder, or the folder of the same comparison if it was stopped.
    Returns the runs as a ``Comparison``. Raises UserError for bad input; warns with DivergedWarning if models have
    diverged.
    """
    below = _below(config)
    named, objects_by_name = _given_methods(methods)
    _refuse_a_name(config, below, overrides or {}, named)
    if below and overrides:
        _configs(below, named, seeds, objects_by_name)  # a mistake in the file is reported even if it is overridden
    values = overlaid(below, overrides or {})
    configs, numbers = _configs(values, named, seeds, objects_by_name)
    objects = UserObjects(model, data, loss, None, extra_metrics or {})
    everyone = _is_all(named if named is not None else values.get("methods"))
    cache = SetupCache()
    left_out = _unsuitable(configs, objects, objects_by_name, device, cache)
    if left_out and not everyone:
        raise UserError(next(iter(left_out.values())))
    configs = {name: one for name, one in configs.items() if name not in left_out}
    source = "own" if data is not None else Path(next(iter(configs.values())).data.name).name
    keys = [(name, seed) for seed in numbers for name in configs]
    asked = {key: make({**configs[key[0]].toml(), "seed": key[1]}) for key in keys}
    folder = _folder(Path(out) if out else None, f"compare-{source}", list(asked.values()))
    paths = {(name, seed): folder / f"{name.replace(':', '.')}-{seed}" for name, seed in asked}
    done, requests = {}, {}
    with locked(folder):
        begun = [path for path in paths.values() if RunWriter(path).begun]  # in a call that was stopped
        if begun:
            objects = with_start(RunWriter(begun[0]), objects)
        for (name, seed), one in asked.items():
            path, method = paths[name, seed], objects_by_name.get(name)
            if path in begun and Run(path).finished:
                experiment, complete, _ = prepare(
                    one, replace(objects, method=method), chosen_device(device), cache=cache
                )
                cache.forget()
                RunWriter(path).check(form(experiment.task), complete, experiment.task.data.digest)
                done[name, seed] = Run(path, model)
            else:
                watching = partial(callbacks, name, seed) if callbacks is not None else tuple
                requests[name, seed] = RunRequest(one, path, watching, method)
        done |= zip(requests, execute(requests.values(), objects, chosen_device(device), cache), strict=True)
    runs = {name: [done[name, seed] for seed in numbers] for name in configs}
    comparison = Comparison(folder, runs, left_out)
    warn_of_diverged(done.values())
    write_json(folder / "compare.json", comparison.table())
    return comparison


def _given_methods(methods: Any) -> tuple[Any, dict[str, Method | ServerMethod]]:
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


def _folder(out: Path | None, name: str, asked: Sequence[Config]) -> Path:
    """A new folder, or the one in which the same comparison was stopped."""
    plan = plain([config.toml() for config in asked])
    if out is not None and (out / _PLAN).is_file():
        if read_json(out / _PLAN) != plan:
            raise UserError(f"{out} holds another comparison: name another folder")
        return out
    folder = RunWriter.create(out, name).path
    write_json(folder / _PLAN, plan)
    return folder


def _below(config: Config | str | Path | Mapping[str, Any] | None) -> Mapping[str, Any]:
    if isinstance(config, Config):
        return config.toml()
    return config if isinstance(config, Mapping) else read(Path(config)) if config is not None else {}


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


def _configs(
    values: Mapping[str, Any],
    methods: Sequence[str] | None,
    seeds: Sequence[int] | None,
    objects: Mapping[str, Method | ServerMethod],
) -> tuple[dict[str, Config], list[int]]:
    """The config of each compared method, and the seeds."""
    names = _names(methods if methods is not None else values.get("methods"))
    numbers = _seeds(seeds if seeds is not None else values.get("seeds"), values.get("seed", 0))
    rest = {key: value for key, value in values.items() if key not in ("methods", "seeds")}
    table = rest.get("method", {})
    if isinstance(table, str):
        table = {"name": table}
    if not isinstance(table, Mapping):
        make(rest)  # says what it must be
    tables = _keys(table, [name for name in names if name not in objects])
    tables |= {name: _table_of(method) for name, method in objects.items()}
    return {name: make({**rest, "method": tables[name]}) for name in names}, numbers


def _table_of(method: Method | ServerMethod) -> dict[str, Any]:
    """The [method] table of a method object: its settings, so that a stopped comparison resumes with the same ones."""
    settings = {field.name: getattr(method, field.name) for field in fields(method)} if is_dataclass(method) else {}
    plain_ones = {key: value for key, value in settings.items() if isinstance(value, bool | int | float | str)}
    return {**plain_ones, "name": GIVEN}


def _unsuitable(
    configs: Mapping[str, Config],
    objects: UserObjects,
    methods: Mapping[str, Method | ServerMethod],
    device: str,
    cache: SetupCache,
) -> dict[str, str]:
    """Methods that cannot work with this federation, and why: found before any run begins."""
    found = {}
    for name, config in configs.items():
        try:
            prepare(config, replace(objects, method=methods.get(name)), chosen_device(device), cache=cache)
        except UnsuitableError as error:
            found[name] = str(error)
    return found


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


def _keys(table: Mapping[str, Any], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The [method] table of each compared method."""
    common = {key: value for key, value in table.items() if not isinstance(value, Mapping) and key != "name"}
    special = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    methods = list(dict.fromkeys([*registered, *names]))
    refuse_unknown("method", special, methods, f"the methods are {', '.join(methods)}")
    takes = {name: accepted(registered.get(name), registered.passed) for name in names}
    anyone = list(dict.fromkeys(key for keys in takes.values() for key in (common if keys is None else keys)))
    refuse_unknown("method", common, anyone, keys_of("the compared methods", anyone))
    out = {}
    for name, keys in takes.items():
        mine = {key: value for key, value in common.items() if keys is None or key in keys}
        out[name] = {**mine, **special.get(name, {}), "name": name}
    return out


def _averaged(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Over seeds: a mean is known only if the number of every seed is, so that no diverged run is left out silently.

    A cluster that a seed does not have is not a number of that seed.
    """
    out: dict[str, Any] = {}
    for key in dict.fromkeys(key for summary in summaries for key in summary):
        cells = [summary[key] for summary in summaries if key in summary]
        if key == _BY_HOPS:
            longest: dict[str, float] = max(cells, key=len)
            cells = [dict.fromkeys(longest, 0.0) | cell for cell in cells]
        if isinstance(cells[0], dict):
            out[key] = _averaged(cells)
        elif key not in _NOT_AVERAGED:
            spread = {"std": statistics.stdev(cells)} if len(cells) > 1 and None not in cells else {}
            out[key] = None if None in cells else {"mean": statistics.fmean(cells), **spread}
    return out
