"""From a config to a problem made ready: data shared out, network laid out, engine and chunk sizes resolved."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from homophily.config.schema import Config, Training
from homophily.data import FederatedData, PeerData, PreparedData, prepared_data
from homophily.errors import UnsuitableError, UserError
from homophily.federation.layout import Layout
from homophily.federation.merging import merges, needs_similarity
from homophily.federation.rows import Federation
from homophily.federation.similarity import cost_of
from homophily.federation.topology import all_distances, topologies, view_of_all
from homophily.fingerprints.compute import fingerprints
from homophily.fingerprints.embedding import Targets
from homophily.fingerprints.fingerprint import Fingerprints, format_of
from homophily.methods import Method, methods
from homophily.methods.base import metric_cost, metric_of, usable
from homophily.methods.server import ServerMethod
from homophily.models.builder import Network
from homophily.models.copying import on_device
from homophily.models.keyed_dropout import with_keyed_dropout
from homophily.plugins.parameters import checked, taken
from homophily.plugins.registry import GIVEN, import_object
from homophily.randomness import Purpose
from homophily.runs.fields import RESERVED
from homophily.simulation.evaluation import COLUMNS, ExtraMetric, Scorer
from homophily.simulation.exchange import Exchange, PeerExchange
from homophily.simulation.observers import ClusterObserver
from homophily.simulation.pairwise import PairwiseEvaluator
from homophily.simulation.rounds import Experiment
from homophily.simulation.server_exchange import ServerExchange
from homophily.simulation.sources import InMemory
from homophily.training.engines import engine_of, read_chain
from homophily.training.losses import Loss, losses
from homophily.training.probe import ASKED_WITH, ModuleTraits, probe
from homophily.training.resources import ExecutionPlan, deciding_device, plan_execution, threads
from homophily.training.stacked.chain import Chain
from homophily.training.task import Engine, Settings, Task

_LEAST_DEVIATION = 1e-6  # of targets that do not vary


@dataclass(frozen=True)
class UserObjects:
    """What a Python caller hands over instead of naming it in the config."""

    model: nn.Module | None = None
    data: Sequence[PeerData] | None = None
    loss: Loss | None = None
    method: Method | ServerMethod | None = None
    extra_metrics: Mapping[str, ExtraMetric] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.model is not None and not isinstance(self.model, nn.Module):
            wanted = "model=: must be one nn.Module, from which every peer starts"
            raise UserError(_other(wanted, self.model, "model.name"))
        if self.data is not None:
            _refuse_other_data(self.data)
        if self.loss is not None and not callable(self.loss):
            raise UserError(_other("loss=: must be a function of (outputs, targets)", self.loss, "training.loss"))
        if self.method is not None and not isinstance(self.method, Method | ServerMethod):
            raise UserError(_other("method=: must be a homophily.Method object", self.method, "method.name"))
        if not isinstance(self.extra_metrics, Mapping):
            raise UserError("extra_metrics=: must be functions by name")


def _refuse_other_data(data: object) -> None:
    wanted = "data=: must be a list of PeerData, one for each peer"
    if isinstance(data, PeerData):
        raise UserError(f"{wanted}, not a single PeerData")
    if isinstance(data, str) or not isinstance(data, Sequence):
        raise UserError(_other(wanted, data, "data.name"))
    for number, peer in enumerate(data):
        if not isinstance(peer, PeerData):
            raise UserError(f"{wanted}, and item {number} is {type(peer).__name__}")


def _other(wanted: str, given: object, key: str) -> str:
    """An error message: what was ``wanted``, what was ``given``, and what to do if that is a name or a class."""
    if isinstance(given, str):
        return f"{wanted}, not {given!r}; a name goes into the config as {key}"
    if isinstance(given, type):
        return f"{wanted}, not the class {given.__name__}; call it to make one"
    return f"{wanted}, not {type(given).__name__}"


@dataclass
class SetupCache:
    """What other runs of the same caller have made already, by what made it."""

    data: dict[str, tuple[PreparedData, FederatedData]] = field(
        default_factory=dict
    )  # as it was made, and on the device
    networks: dict[str, tuple[ModuleTraits, Layout, Chain | str]] = field(default_factory=dict)

    def forget(self) -> None:
        """All data but the last: the next run's may be the same."""
        for name in list(self.data)[:-1]:
            del self.data[name]


def prepare(
    config: Config,
    given: UserObjects,
    device: torch.device,
    plan: ExecutionPlan | None = None,
    cache: SetupCache | None = None,
) -> tuple[Experiment, Config, ExecutionPlan]:
    """The experiment, the config with every default filled in, and how it is computed (as planned, if a plan is given).

    What is made here is added to the cache.
    """
    cache = SetupCache() if cache is None else cache
    data, shares = data_of(config, given, device, cache)
    _check_sizes(config, given, data.shares.peers)
    method, method_keys = method_of(config, given, data.shares.peers)
    ready = training_setup(config, given, data.shares, shares, torch.arange(shares.peers, device=device), plan, cache)
    network, task, engine, plan = ready.network, ready.task, ready.engine, ready.plan
    start = start_of(network, config, task.layout, task.ids.tolist(), device)
    exchange: Exchange
    graph, topology_keys = graph_of(config, shares.peers)
    if isinstance(method, ServerMethod):
        rows = _server_rows(network, config, task.layout, method.count, device)
        exchange = ServerExchange(method, task, engine, rows, plan.measure_pairs, _ignored_by_a_server(config))
    else:
        exchange = _peer_exchange(config, method, task, engine, start, graph, plan.measure_pairs)
    experiment = ready.experiment(config, given, start, exchange)
    keys = {"data": data.settings, "model": network.keys, "method": method_keys, "topology": topology_keys}
    return experiment, _complete(config, given, shares.peers, keys), plan


@dataclass(frozen=True)
class TrainingSetup:
    """Network, task and engine, made ready."""

    network: Network
    task: Task
    engine: Engine
    plan: ExecutionPlan

    def experiment(self, config: Config, given: UserObjects, start: Federation, exchange: Exchange) -> Experiment:
        metrics, plan = _extra_metrics(config, given), self.plan
        return Experiment(
            self.task,
            self.engine,
            Scorer(self.task, self.engine, plan.score_peers, plan.score_samples, metrics),
            start,
            exchange,
            config.rounds,
            config.score == "after-training",
            config.evaluate,
            config.training.patience,
        )


def training_setup(
    config: Config,
    given: UserObjects,
    made: FederatedData,
    shares: FederatedData,
    ids: Tensor,
    plan: ExecutionPlan | None,
    cache: SetupCache,
) -> TrainingSetup:
    """Network, task and engine for the peers ``ids``. made: their data as it was made; shares: on their device."""
    if config.training.patience and made.validation is None:
        raise UserError("training.patience needs validation samples: set data.validation to at least 1")
    network = Network(config, given.model, made.inputs, made.outputs)
    loss = _loss(config.training, given, made)
    module = with_keyed_dropout(network.common(config.seed)).eval()
    traits, layout, chain = _read(module, config, loss, made, cache)
    plan = plan or plan_execution(config.engine, config.training.batch, made, layout, traits, chain, ids.device)
    task = Task(
        on_device(module, ids.device), layout, loss, shares, torch.full_like(ids, config.seed), ids,
        Settings(**config.training.model_dump(exclude={"loss", "patience"})), traits.coupled, traits.draws,
    )  # fmt: skip
    _check_batches(task)
    fast = config.precision == "fast"
    engine = engine_of(task, plan.engine, chain, plan.chunk, plan.workers, fast)
    return TrainingSetup(network, task, engine, plan)


def data_of(
    config: Config, given: UserObjects, device: torch.device, cache: SetupCache
) -> tuple[PreparedData, FederatedData]:
    """Everyone's data, as it was made and on the device."""
    section = config.data
    name = f"{section.model_dump_json()} {config.peers} {config.seed} {device}"
    if name not in cache.data:
        settings = {key: getattr(section, key) for key in type(section).model_fields if key != "name"}
        with threads(1):  # the same bits however many there are: a resumed run must find the very same data
            data = prepared_data(section.name, section.keys, settings, config.peers, config.seed, given.data)
        cache.data[name] = data, data.shares.to(device)
    return cache.data[name]


def _read(
    module: nn.Module, config: Config, loss: Loss, shares: FederatedData, cache: SetupCache
) -> tuple[ModuleTraits, Layout, Chain | str]:
    """What the network is like, how its numbers are laid out, and what it is as a chain of layers (or why it is none).

    Its weights, which differ from seed to seed, do not matter.
    """
    name = f"{config.model.model_dump_json()} {config.training.loss} {shares.inputs} {shares.outputs}"
    if name not in cache.networks:
        traits = _character(module, loss, shares)
        layout = Layout.of(module, config.model.personal, traits.unused, traits.changing)
        cache.networks[name] = traits, layout, read_chain(module, layout, loss, shares)
    return cache.networks[name]


def _character(module: nn.Module, loss: Loss, shares: FederatedData) -> ModuleTraits:
    """What the network is like, asked with a few samples of the first peers."""
    dtype = next((p.dtype for p in module.parameters()), torch.float32)
    some = shares.train.x[:ASKED_WITH], shares.train.y[:ASKED_WITH]
    x, y = (t.to(dtype) if t.is_floating_point() else t for t in some)
    classes = shares.classes if loss is losses.get("cross-entropy") else None
    return probe(module, loss, x, y, classes or 0)


def _ignored_by_a_server(config: Config) -> list[str]:
    """A note on settings that mean nothing where a server averages."""
    asked = {
        "topology": config.topology.name != "full",
        "contacts": config.contacts != "all",
        "merge": config.merge != "uniform",
    }
    ignored = [key for key, said in asked.items() if said]
    return [f"{config.method.name} has a server: without effect is {', '.join(ignored)}"] if ignored else []


def _check_sizes(config: Config, given: UserObjects, peers: int) -> None:
    """Refuse keys that ask for more peers than there are; a method object may, and then takes all there are."""
    named = given.method is None and config.method.name != GIVEN
    for key in ("k", "l") if named else ():
        value = config.method.keys.get(key)
        if isinstance(value, int) and not 1 <= value <= max(1, peers - 1):
            raise UserError(f"method.{key} = {value}: must be from 1 to peers - 1, which is {peers - 1}")
    if config.contacts != "all" and config.contacts > peers - 1:
        raise UserError(f"contacts = {config.contacts}: must be at most peers - 1, which is {peers - 1}")


def _loss(training: Training, given: UserObjects, shares: FederatedData) -> Loss:
    if given.loss is not None:
        return given.loss
    if training.loss == "auto":
        return losses.get("mse" if shares.classes is None else "cross-entropy")
    if training.loss == GIVEN:
        raise UserError("training.loss: this run's loss was given in Python; hand it over again as loss=...")
    if training.loss == "cross-entropy" and shares.classes is None:
        raise UserError("training.loss = 'cross-entropy' needs classes, and this data has numbers as targets")
    if training.loss == "mse" and shares.classes is not None:
        raise UserError("training.loss = 'mse' needs numbers as targets, and this data has classes")
    return losses.get(training.loss)


def method_of(config: Config, given: UserObjects, peers: int) -> tuple[Method | ServerMethod, dict[str, Any]]:
    """The method, and all its keys; a default of k or l that is too large for so few peers is cut."""
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
    """A method with what follows from the rounds; of a server's nothing does."""
    if isinstance(method, ServerMethod):
        return method
    found = usable(method).in_rounds(rounds)
    if not isinstance(found, Method):
        raise UserError(f"method: {type(method).__name__}.in_rounds must return a Method, not {type(found).__name__}")
    return found


def _given_method(method: Method | ServerMethod, config: Config) -> tuple[Method | ServerMethod, dict[str, Any]]:
    """A method object with what follows from the rounds, or on resume what followed when the run began."""
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


def start_of(network: Network, config: Config, layout: Layout, ids: Sequence[int], device: torch.device) -> Federation:
    """The models of the peers ``ids`` before the first round: one common initialisation, or everyone's own."""
    peers = len(ids)
    if config.init == "common":
        row, kept = layout.read(network.common(config.seed))
        tables = {name: buffer.expand(peers, *buffer.shape) for name, buffer in kept.items()}
        rows = row.expand(peers, -1)
    else:
        drawn = [layout.read(network.fresh(config.seed, id)) for id in ids]
        rows = torch.stack([row for row, _ in drawn])
        tables = {name: torch.stack([kept[name] for _, kept in drawn]) for name in layout.kept}
    return Federation(layout, rows.to(device).clone(), {name: t.to(device).clone() for name, t in tables.items()})


def _server_rows(network: Network, config: Config, layout: Layout, count: int, device: torch.device) -> Tensor:
    """A server's models before the first round: the common one, and others with weights of their own. [c, D]."""
    others = (network.fresh(config.seed, Purpose.SERVER, i) for i in range(1, count))
    return torch.stack([layout.read(module)[0] for module in (network.common(config.seed), *others)]).to(device)


def _peer_exchange(
    config: Config, method: Method, task: Task, engine: Engine, start: Federation, graph: Any, chunk: int
) -> PeerExchange:
    data = task.data
    contacts = None if config.contacts == "all" else int(config.contacts)
    where = deciding_device(data.peers, contacts, task.ids.device)
    cluster = None if data.cluster is None else data.cluster.to(where)
    view = view_of_all(data.peers, config.seed, graph, method.hops, contacts, cluster, where)
    method.check(view)
    merge, evaluator = merges.get(config.merge), evaluator_of(method, task, engine, chunk)
    check_merge(config, evaluator)
    source = InMemory(
        view,
        start.rows,
        data.train.count.to(where),
        lambda: task_fingerprints(task, config.seed, data.peers),
        distances=all_distances(graph).to(where) if method.uses_fingerprints and graph is not None else None,
        limited=contacts is not None and contacts < data.peers - 1,
    )
    observer = ClusterObserver(view, cluster, method.finds, _start_notes(method, start.rows))
    return PeerExchange(method, merge, evaluator, source, observer, data.peers, where)


def _start_notes(method: Method, start: Tensor) -> list[str]:
    """A note if displacements are compared of peers that start from different models."""
    if not metric_cost(method).common_start or bool((start == start[:1]).all()):
        return []
    return [f"metric = {method.metric!r} compares displacements from one common start, and these peers start apart"]


def check_merge(config: Config, evaluator: PairwiseEvaluator | None) -> None:
    if needs_similarity(merges.get(config.merge)) and evaluator is None:
        raise UnsuitableError(
            f"merge = {config.merge!r} needs a method that compares models, and {config.method.name!r} does not"
        )


def task_fingerprints(task: Task, seed: int, peers: int) -> Fingerprints:
    """The fingerprint of every peer of a task, which may be one of a federation of ``peers``."""
    data = task.data
    mean, std = data.target_scale or (None, None)
    targets = Targets(data.classes, mean, None if std is None else std.clamp(min=_LEAST_DEVIATION))
    return fingerprints(data.train, targets, task.ids, seed, format_of(peers))


def evaluator_of(method: Method, task: Task, engine: Engine, chunk: int) -> PairwiseEvaluator | None:
    """What measures the similarities that a method compares by; None: it compares nobody."""
    found = metric_of(method)
    if found is None:
        return None
    metric, keys = found
    return PairwiseEvaluator(partial(metric, **keys), task, engine, chunk, cost_of(metric, keys))


def _extra_metrics(config: Config, given: UserObjects) -> dict[str, ExtraMetric]:
    named = {path.partition(":")[2]: import_object(path, "extra metric") for path in config.extra_metrics}
    found = {**named, **given.extra_metrics}
    if len(named) < len(config.extra_metrics) or len(found) < len(named) + len(given.extra_metrics):
        raise UserError("extra_metrics: two of them have the same name; give one another")
    for name in found:
        if name in RESERVED or name in COLUMNS:
            raise UserError(f"extra_metrics: {name!r} is a score that every run has; give yours another name")
    return found


def _check_batches(task: Task) -> None:
    if not task.coupled or task.draws:
        return
    if task.settings.batch < 2:
        raise UserError("training.batch = 1: this network couples the samples of a batch (BatchNorm); it needs 2")
    short = (task.data.train.count < 2).nonzero()[:, 0].tolist()
    if short:
        raise UserError(
            f"peer {short[0]} has one training sample, and this network couples the samples of a batch (BatchNorm): "
            "it needs at least two"
        )


def _complete(config: Config, given: UserObjects, peers: int, keys: Mapping[str, Mapping[str, Any]]) -> Config:
    """The config with every default written out, so that a run folder says all."""
    values = config.model_dump()
    values["peers"] = peers
    for table, found in keys.items():
        values[table] |= {key: value for key, value in found.items() if _storable(value)}
    for table, thing in {"data": given.data, "model": given.model, "method": given.method}.items():
        if thing is not None:
            values[table]["name"] = GIVEN
    if given.loss is not None:
        values["training"]["loss"] = GIVEN
    return Config.model_validate(values)


def _storable(value: Any) -> bool:
    """Whether a file can hold it; a user's function may have anything as a default, and has it again on resume."""
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True
