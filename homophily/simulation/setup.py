"""From a config to a prepared experiment: data, network, engine, method, topology and exchange."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from homophily.config.schema import Config
from homophily.errors import UnsuitableError, UserError
from homophily.federation.contacts import view_of
from homophily.federation.layout import Layout
from homophily.federation.merging import is_rowwise, merges, needs_similarity
from homophily.federation.rows import Federation
from homophily.federation.similarity import cost_of
from homophily.federation.topology import topologies
from homophily.fingerprints.fingerprint import Fingerprints
from homophily.fingerprints.private import PrivateFingerprints, keyed_draws
from homophily.methods import Method, methods
from homophily.methods.base import metric_cost, metric_of, usable
from homophily.methods.server import ServerMethod
from homophily.models.builder import Network
from homophily.plugins.parameters import checked, taken
from homophily.plugins.registry import GIVEN
from homophily.privacy.draws import KeyedDraws
from homophily.randomness import Purpose
from homophily.simulation.exchange import Exchange, PeerExchange
from homophily.simulation.observers import ClusterObserver
from homophily.simulation.pairwise import PairwiseEvaluator
from homophily.simulation.privacy import NoiseSource, PrivacyAccount, released_counts
from homophily.simulation.recording import RecordedPeers, recorded_peers
from homophily.simulation.rounds import Experiment
from homophily.simulation.server_exchange import ServerExchange
from homophily.simulation.sharded_source import Sharded
from homophily.simulation.shards import ONE_PROCESS, Shards, largest
from homophily.simulation.sources import InMemory
from homophily.simulation.training_setup import (
    SetupCache,
    data_of,
    digest_of,
    start_of,
    task_fingerprints,
    task_private_fingerprints,
    training_setup,
)
from homophily.simulation.user_objects import UserObjects
from homophily.training.resources import ExecutionPlan, deciding_device, free_memory, size_text
from homophily.training.task import Engine, Task


def prepare(
    config: Config,
    given: UserObjects,
    device: torch.device,
    plan: ExecutionPlan | None = None,
    cache: SetupCache | None = None,
    shards: Shards = ONE_PROCESS,
) -> tuple[Experiment, Config, ExecutionPlan]:
    """The experiment, the config with every default filled in, and the execution plan.

    plan: how to compute; None: it is chosen here. cache: data and networks to use again; new ones are added to it.
    shards: the processes that the peers are divided among.
    """
    cache = SetupCache() if cache is None else cache
    data, shares = data_of(config, given, device, cache, shards)
    roster, peers = data.roster, data.roster.peers
    if peers < shards.size:
        raise UserError(f"peers = {peers}: {shards.size} processes need at least as many peers")
    _check_sizes(config, given, peers)
    method, method_keys = method_of(config, given, peers)
    ids = torch.arange(peers, device=device)[shards.mine(peers)]
    source = NoiseSource(KeyedDraws())
    ready = training_setup(config, given, data.shares, shares, ids, plan, cache, method, source, shards, roster)
    network, task, engine, plan = ready.network, ready.task, ready.engine, ready.plan
    start = start_of(network, config, task.layout, task.ids.tolist(), device)
    recorded = recorded_peers(roster, config.seed) if config.record else None
    exchange: Exchange
    graph, topology_keys = graph_of(config, peers)
    if isinstance(method, ServerMethod):
        rows = _server_rows(network, config, task.layout, method.count, device)
        exchange = ServerExchange(
            method, task, engine, rows, plan.measure_pairs, _ignored_by_a_server(config), recorded, shards, peers
        )
    else:
        exchange = _peer_exchange(
            config, method, task, engine, start, graph, plan.measure_pairs, recorded, ready.account,
            roster.cluster, shards, peers,
        )  # fmt: skip
        exchange.guard = ready.merge_guard(config, shards)
    digest = digest_of(config, data.shares) if given.data is None else data.shares.digest
    _check_same(shards, digest)
    experiment = ready.experiment(config, start, exchange, roster, shards, digest)
    keys = {"data": data.settings, "model": network.keys, "method": method_keys, "topology": topology_keys}
    better = ready.metrics.headline.headline.better
    keys["headline"] = {"name": config.headline.name or shares.kind.headline, "better": better}
    return experiment, _complete(config, given, peers, keys, ready.objective_keys), plan


def _check_same(shards: Shards, digest: str | None) -> None:
    """Refuse data that a user's code makes differently in each process. digest: a hash in hexadecimal digits."""
    number = torch.tensor([0 if digest is None else int(digest[:15], 16)])
    if len(shards.gathered(number).unique()) > 1:
        raise UserError("data: it differs between the processes of this run; make it from the same seed in each")


def _ignored_by_a_server(config: Config) -> list[str]:
    """A note on the settings that a server ignores."""
    asked = {
        "topology": config.topology.name != "full",
        "contacts": config.contacts != "all",
        "merge": config.merge != "uniform",
        "merge_guard": config.merge_guard is not None,
    }
    ignored = [key for key, said in asked.items() if said]
    return [f"{config.method.name} uses a server and ignores {', '.join(ignored)}"] if ignored else []


def _check_sizes(config: Config, given: UserObjects, peers: int) -> None:
    """Refuse config keys that ask for more peers than there are; a method object may ask for more and gets all."""
    named = given.method is None and config.method.name != GIVEN
    for key in ("k", "l") if named else ():
        value = config.method.keys.get(key)
        if isinstance(value, int) and not 1 <= value <= max(1, peers - 1):
            raise UserError(f"method.{key} = {value}: must be from 1 to peers - 1, which is {peers - 1}")
    if config.contacts != "all" and config.contacts > peers - 1:
        raise UserError(f"contacts = {config.contacts}: must be at most peers - 1, which is {peers - 1}")


def method_of(config: Config, given: UserObjects, peers: int) -> tuple[Method | ServerMethod, dict[str, Any]]:
    """The method and all its keys; the defaults of k and l are cut to peers - 1."""
    if given.method is not None:
        return _given_method(given.method, config)
    name = config.method.name
    if name == GIVEN:
        raise UserError("method.name: this run's method was given in Python; hand it over again as method=...")
    make = methods.get(name)
    keys = checked("method", f"method {name!r}", make, config.method.keys)
    for key in ("k", "l"):
        if key not in config.method.keys and isinstance(keys.get(key), int):
            keys[key] = max(1, min(keys[key], peers - 1))
    method = make(**keys)
    if not isinstance(method, Method | ServerMethod):
        raise UserError(f"method.name = {name!r}: must be a homophily.Method, not {type(method).__name__}")
    method = _in_rounds(method, config.rounds)
    return method, {key: getattr(method, key, value) for key, value in keys.items()}


def _in_rounds(method: Method | ServerMethod, rounds: int) -> Method | ServerMethod:
    """The method with the settings that follow from the number of rounds; a server's method has none."""
    if isinstance(method, ServerMethod):
        return method
    found = usable(method).in_rounds(rounds)
    if not isinstance(found, Method):
        raise UserError(f"method: {type(method).__name__}.in_rounds must return a Method, not {type(found).__name__}")
    return found


def _given_method(method: Method | ServerMethod, config: Config) -> tuple[Method | ServerMethod, dict[str, Any]]:
    """A method object with the settings that follow from the rounds; on resume, from the rounds the run began with."""
    if not is_dataclass(method):
        return _in_rounds(method, config.rounds), {}
    names = [field.name for field in fields(method)]
    stored = {name: value for name, value in config.method.keys.items() if name in names}
    left_out = {name: value for name, value in stored.items() if getattr(method, name) is None}
    method = _in_rounds(replace(method, **left_out), config.rounds)
    return method, {name: getattr(method, name) for name in names if getattr(method, name) is not None}


def graph_of(config: Config, peers: int) -> tuple[Any, dict[str, Any]]:
    """The topology's graph (None: full), and all its keys."""
    name = config.topology.name
    make = topologies.get(name)
    keys = checked("topology", f"topology {name!r}", make, config.topology.keys, topologies.passed)
    graph = make(**taken(make, {"peers": peers, "seed": config.seed}), **keys)
    if graph is None and name != "full":
        raise UserError(f"topology.name = {name!r}: must return a networkx graph, not None")
    return graph, keys


def _server_rows(network: Network, config: Config, layout: Layout, count: int, device: torch.device) -> Tensor:
    """A server's models before the first round: the common one, and others with different weights. [c, D]."""
    others = (network.fresh(config.seed, Purpose.SERVER, i) for i in range(1, count))
    return torch.stack([layout.read(module)[0] for module in (network.common(config.seed), *others)]).to(device)


def _peer_exchange(
    config: Config,
    method: Method,
    task: Task,
    engine: Engine,
    start: Federation,
    graph: Any,
    chunk: int,
    recorded: RecordedPeers | None,
    account: PrivacyAccount | None,
    cluster: Tensor | None,
    shards: Shards,
    peers: int,
) -> PeerExchange:
    """cluster: of all peers."""
    mine = shards.mine(peers)
    contacts = None if config.contacts == "all" else int(config.contacts)
    where = deciding_device(peers, contacts, task.ids.device)
    cluster = None if cluster is None else cluster.to(where)
    check = partial(_check_contacts, mine.stop - mine.start, method, free_memory(where))
    me = torch.arange(mine.start, mine.stop, device=where)
    view = view_of(me, peers, config.seed, graph, method.hops, contacts, cluster, check, partial(largest, shards))
    method.check(view)
    merge, evaluator = merges.get(config.merge), evaluator_of(method, task, engine, chunk)
    check_merge(config, evaluator)
    cost = metric_cost(method)
    limited = contacts is not None and contacts < peers - 1
    samples = released_counts(config, task.data.train.count).to(where)
    prints = partial(_fingerprints, config, task, peers, account)
    if shards.size == 1:
        source = InMemory(view, start.rows, samples, prints, graph, limited)
    else:
        source = Sharded(view, start.rows, samples, prints, graph, limited, shards, peers, cost.displacement)
    notes = _start_notes(method, start.rows)
    observer = ClusterObserver(view, cluster, method.finds, notes, recorded, shards)
    return PeerExchange(method, merge, evaluator, source, observer, len(view.me), where, shards, peers)


def _fingerprints(
    config: Config, task: Task, peers: int, account: PrivacyAccount | None, earlier: int
) -> Fingerprints | PrivateFingerprints:
    """The fingerprints of a task's peers, which were made so many times ``earlier``. peers: of the federation."""
    if account is None:
        return task_fingerprints(task, config.seed, peers)
    return task_private_fingerprints(task, config.seed, account.fingerprint_noise, keyed_draws(config.seed, earlier))


def decision_bytes(method: Method) -> int:
    """The most bytes that a round's decisions take for each contact of each peer.

    Sets of contacts take a byte, ids and a method's tables 8, and comparisons need a few temporary tables.
    """
    return 64 if method.metric is not None else 32


def _check_contacts(peers: int, method: Method, free: int, contacts: int) -> None:
    """Refuse tables of so many ``contacts`` for each peer if they do not fit into ``free`` bytes."""
    needed = peers * contacts * decision_bytes(method)
    if needed > free:
        raise UserError(
            f"contacts: {peers:,} peers that know up to {contacts:,} peers each take "
            f"{size_text(needed)} for the decisions of a round, but {size_text(free)} are free; "
            f"set contacts to a number, such as contacts = {min(100, contacts)}"
        )


def _start_notes(method: Method, start: Tensor) -> list[str]:
    """A note if the metric needs one common start and the peers start from different models."""
    if not metric_cost(method).common_start or bool((start == start[:1]).all()):
        return []
    needed = f"metric = {method.metric!r} compares displacements from one common start"
    return [f"{needed}, and these peers start from different models"]


def check_merge(config: Config, evaluator: PairwiseEvaluator | None) -> None:
    lora = config.model.lora
    if lora is not None and lora.merge == "product" and is_rowwise(merges.get(config.merge)):
        raise UnsuitableError(
            f"merge = {config.merge!r} has no weights for products: set model.lora.merge to 'factors' or 'freeze-a'"
        )
    if needs_similarity(merges.get(config.merge)) and evaluator is None:
        raise UnsuitableError(
            f"merge = {config.merge!r} needs a method that compares models, and {config.method.name!r} does not"
        )


def evaluator_of(method: Method, task: Task, engine: Engine, chunk: int) -> PairwiseEvaluator | None:
    """The evaluator of the method's metric; None if the method compares no models."""
    found = metric_of(method)
    if found is None:
        return None
    metric, keys = found
    if keys.get("losses") == "validation" and task.data.validation is None:
        raise UserError("method.losses = 'validation' needs validation samples: set data.validation to at least 1")
    return PairwiseEvaluator(partial(metric, **keys), task, engine, chunk, cost_of(metric, keys))


def _complete(
    config: Config, given: UserObjects, peers: int, keys: Mapping[str, Mapping[str, Any]], objective: Mapping[str, Any]
) -> Config:
    """The config with every default written out, so that the run folder is complete."""
    values = config.model_dump()
    values["peers"] = peers
    for table, found in keys.items():
        values[table] |= {key: value for key, value in found.items() if _storable(value)}
    values["training"]["objective"] |= {key: value for key, value in objective.items() if _storable(value)}
    for table, thing in {"data": given.data, "model": given.model, "method": given.method}.items():
        if thing is not None:
            values[table]["name"] = GIVEN
    if given.loss is not None:
        values["training"]["loss"] = GIVEN
    if given.transforms:
        values["data"]["transform"] = GIVEN
    return Config.model_validate(values)


def _storable(value: Any) -> bool:
    """Whether a file can hold the value; a default of a user's function may be anything, and returns on resume."""
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True
