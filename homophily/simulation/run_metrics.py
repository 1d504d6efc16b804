"""The metrics by which a run scores its models: the headline metric, and extra metrics, by name or given in Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

from homophily.config.schema import Config
from homophily.data.task_kinds import IGNORED, MULTI_LABEL, REGRESSION, TOKENS
from homophily.data.types import FederatedData
from homophily.errors import UserError
from homophily.plugins.parameters import accepted, checked, keys_of, must_take, refuse_unknown, taken
from homophily.plugins.registry import import_object
from homophily.runs.fields import RESERVED
from homophily.runs.headline import Headline
from homophily.simulation.evaluation import COLUMNS
from homophily.simulation.user_objects import UserObjects
from homophily.training.score_metrics import (
    HeadlineMetric,
    PeerMetric,
    ScoreMetric,
    peer_by_peer,
    registered_metric,
    score_metrics,
)


@dataclass(frozen=True)
class RunMetrics:
    """The metrics of a run."""

    headline: HeadlineMetric
    extra: Mapping[str, ScoreMetric]


def metrics_of_run(config: Config, given: UserObjects, data: FederatedData) -> RunMetrics:
    """The metrics that a config and a Python caller ask for, checked."""
    named = {path.partition(":")[2] or path: path for path in config.extra_metrics}
    if len(named) < len(config.extra_metrics) or any(name in named for name in given.extra_metrics):
        raise UserError("extra_metrics: two of them have the same name; give one another")
    registered = [name for name, path in named.items() if path in score_metrics]
    functions = {name: import_object(path, "extra metric") for name, path in named.items() if name not in registered}
    functions |= given.extra_metrics
    headline = _headline(config, data, functions)
    name = headline.headline.name
    if config.headline.name == name:  # one of the functions, which is not computed twice
        functions.pop(name, None)
    fields = {name, f"{name}_over_clusters", f"{name}_by_cluster", *COLUMNS}
    wrong = [one for one in functions if one in fields | RESERVED] + [one for one in registered if one in fields]
    if wrong:
        raise UserError(f"extra_metrics: {wrong[0]!r} is a score that every run has; give yours another name")
    extra = {one: registered_metric(one, data.kind, "extra_metrics").compute for one in registered}
    extra |= {one: peer_by_peer(f"extra_metrics: {one}", function) for one, function in functions.items()}
    return RunMetrics(headline, extra)


def _headline(config: Config, data: FederatedData, extra: Mapping[str, PeerMetric]) -> HeadlineMetric:
    """The headline metric. extra: functions that the config may name as headline."""
    asked = config.headline
    name = asked.name or data.kind.headline
    if name in score_metrics:
        return _registered(name, config, data)
    if name not in extra and ":" not in name:
        raise UserError(f"{score_metrics.unknown(name)}, or one of extra_metrics")
    if name.startswith("torchmetrics.") and find_spec("torchmetrics") is None:
        raise UserError(f"headline.name = {name!r}: needs torchmetrics: pip install 'homophily[metrics]'")
    function = extra[name] if name in extra else import_object(name, "headline metric")
    if asked.better is None:
        raise UserError(f"headline.name = {name!r}: set headline.better too, to 'higher' or 'lower'")
    short = name.partition(":")[2] or name
    if short in RESERVED or short in COLUMNS:
        raise UserError(f"headline.name = {name!r}: {short!r} is a field that every run has; rename the function")
    compute = peer_by_peer(f"headline: {short}", _with_keys(name, function, asked.keys, data))
    return HeadlineMetric(Headline(short, short, asked.better), compute, shaped=False)


def _registered(name: str, config: Config, data: FederatedData) -> HeadlineMetric:
    asked, found = config.headline, registered_metric(name, data.kind, "headline.name")
    allowed = [*type(asked).model_fields]
    refuse_unknown("headline", asked.keys, allowed, keys_of(f"headline metric {name!r}", allowed))
    if asked.better not in (None, found.headline.better):
        raise UserError(f"headline.better = {asked.better!r}: {found.headline.better} is better for {name}")
    return found


def _with_keys(name: str, function: PeerMetric, keys: Mapping[str, Any], data: FederatedData) -> PeerMetric:
    """A user's function with its config keys, and with what torchmetrics' functions ask for, if it has parameters so.

    The first two parameters are the outputs and the targets, whatever they are called.
    """
    about = {
        "task": "multilabel" if data.kind is MULTI_LABEL else "multiclass",
        "num_classes": data.classes,
        "num_labels": data.outputs,
        "ignore_index": IGNORED if data.kind is TOKENS else None,
    }
    known = {} if data.kind is REGRESSION else {key: value for key, value in about.items() if key not in keys}
    passed = taken(function, known)
    first_two = (accepted(function) or [])[:2]
    own = checked("headline", f"headline metric {name!r}", function, keys, [*first_two, *passed])
    must_take(function, ["outputs", "targets"], f"headline.name = {name!r}", [*passed, *own])
    return partial(function, **passed, **own)
