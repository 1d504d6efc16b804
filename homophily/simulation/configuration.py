"""A config checked against what it names: the keys of a table are the parameters of its method, model or topology."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from homophily.config.overlay import as_tables, read
from homophily.config.schema import TABLES, Config, Lora
from homophily.config.table import OpenTable, Table
from homophily.data.shifts import shifts
from homophily.data.sources import sources
from homophily.data.tables import reader_of, readers
from homophily.errors import UserError
from homophily.federation.merging import given_to, merges
from homophily.federation.topology import topologies
from homophily.methods import methods
from homophily.models import models
from homophily.plugins.parameters import accepted, checked, keys_of, must_take, parsed, refuse_unknown
from homophily.plugins.registry import GIVEN, Registry
from homophily.trackers import trackers
from homophily.training.losses import losses
from homophily.training.objectives import objectives
from homophily.training.score_metrics import score_metrics
from homophily.training.torch_optimisers import check_optimizer

_REGISTRIES: dict[str, Registry[Any]] = {"model": models, "method": methods, "topology": topologies}
_OWNERS: dict[str, Registry[Any]] = {**_REGISTRIES, "source": sources, "shift": shifts}


def load(path: Path | None, overrides: Mapping[str, Any] | None = None) -> Config:
    """The config in a TOML file (or the defaults) with nested ``overrides`` over it."""
    below = read(path) if path is not None else {}
    if below and overrides:
        make(below)  # report a mistake in the file even if it is overridden
    return make(overlaid(below, overrides or {}))


def over(config: Config, overrides: Mapping[str, Any]) -> Config:
    """A config with nested ``overrides`` over it."""
    return make(overlaid(config.toml(), overrides))


def make(values: Mapping[str, Any]) -> Config:
    """A config from nested values, every key of every table checked."""
    values = as_tables(values)
    refuse_unknown("", values, list(Config.model_fields))
    for table, model in TABLES.items():
        if isinstance(values.get(table), dict) and not issubclass(model, OpenTable):
            _refuse_unknown_fields(table, values[table], model)
    if isinstance(values.get("model"), dict) and isinstance(lora := values["model"].get("lora"), dict):
        _refuse_unknown_fields("model.lora", lora, Lora)
    config: Config = parsed(Config, values)
    for name in config.extra_metrics:
        if ":" not in name and name not in score_metrics:
            listed = ", ".join(score_metrics)
            raise UserError(f"extra_metrics = {name!r}: must be package.module:name, or one of {listed}")
    merge = merges.get(config.merge)
    must_take(merge, given_to(merge), f"merge = {config.merge!r}")
    if config.training.loss not in ("auto", GIVEN):
        losses.get(config.training.loss)
    check_optimizer(config.training)
    _check_keys("training.objective", objectives, config.training.objective)
    for position, tracker in enumerate(config.tracker or []):
        _check_keys("tracker", trackers, tracker)
        if tracker in (config.tracker or [])[:position]:
            raise UserError(f"tracker: {tracker.name!r} is there twice with the same keys")
    for table, registry in _REGISTRIES.items():
        section = getattr(config, table)
        if section.name == GIVEN:
            continue
        _check_keys(table, registry, section)
    return config


def _refuse_unknown_fields(table: str, keys: Mapping[str, Any], model: type[Table]) -> None:
    names = list(model.model_fields)
    refuse_unknown(table, keys, names, f"[{table}] has {', '.join(names)}")


def idle_settings(config: Config) -> list[str]:
    """What a user should know before the first round: settings that cannot have the effect that they are made for."""
    training, out = config.training, []
    if training.warmup >= config.rounds:
        never = "the learning rate never reaches its full value"
        out.append(f"training.warmup = {training.warmup} and rounds = {config.rounds}: {never}")
    if training.stop_on != "loss" and not training.patience:
        out.append(f"training.stop_on = {training.stop_on!r} has no effect without training.patience")
    return out


def _check_keys(table: str, registry: Registry[Any], section: Any) -> None:
    """Check the keys given; a missing one is reported when the function is called."""
    function, owner = registry.get(section.name), f"{registry.kind} {section.name!r}"
    names = accepted(function, registry.passed)
    if names is not None:
        allowed = [*type(section).model_fields, *names]
        refuse_unknown(table, section.keys, allowed, keys_of(owner, allowed))
    absent = [name for name in names or [] if name not in section.keys]
    checked(table, owner, function, section.keys, [*registry.passed, *absent])


def overlaid(below: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` wins. Naming another method, model, topology, data set or shift drops the keys of the one before."""
    out = dict(as_tables(below))
    for key, value in as_tables(over).items():
        if key not in TABLES or not isinstance(value, Mapping):
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
    """Entries of a table that stay under ``value``: all, or those that still apply if ``value`` has another name."""
    fields = TABLES[table].model_fields
    if table == "training":
        return _still_fitting_training(kept, value)
    if table == "headline" and value.get("name", kept.get("name")) != kept.get("name"):
        return {}
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


def _still_fitting_training(kept: Mapping[str, Any], value: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of [training] that stay: options go with their optimizer, and the keys of an objective with its name."""
    out = dict(kept)
    if value.get("optimizer", kept.get("optimizer")) != kept.get("optimizer"):
        out.pop("optimizer_options", None)
    before, after = kept.get("objective"), value.get("objective")
    if (
        isinstance(before, Mapping)
        and isinstance(after, Mapping)
        and after.get("name", before.get("name")) != before.get("name")
    ):
        out.pop("objective")
    return out


def _keys_of(table: str, key: str, name: Any) -> list[str] | None:
    """The keys that belong to what a table's name or shift stands for; None: any."""
    kind = {("data", "name"): "source", ("data", "shift"): "shift"}.get((table, key), table)
    read = reader_of(name) if kind == "source" and isinstance(name, str) else None
    if read is not None:
        return accepted(read, readers.passed)
    if not isinstance(name, str) or name == GIVEN or (kind == "source" and name not in sources and ":" not in name):
        return []  # not given, a folder, or a mistake that is reported later
    return accepted(_OWNERS[kind].get(name), _OWNERS[kind].passed)
