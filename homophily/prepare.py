"""From a config to a problem made ready: data shared out, network laid out, engine and chunk sizes resolved."""

from __future__ import annotations

import copy
import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from homophily.config import PASSED, Config, Training
from homophily.data import PeerArrays, Shares, ready
from homophily.errors import UserError
from homophily.exchange import PeerExchange
from homophily.federation import Federation
from homophily.keyed_dropout import with_keyed_dropout
from homophily.keys import accepted, checked
from homophily.layout import Layout
from homophily.losses import Loss, losses
from homophily.measuring import Measurer
from homophily.merging import merges
from homophily.methods import Method, methods
from homophily.methods.server import ServerMethod
from homophily.models import models
from homophily.randomness import Purpose, word
from homophily.registry import GIVEN, import_object
from homophily.scoring import ExtraMetric, Scorer
from homophily.server import ServerExchange
from homophily.similarity import metrics, sends
from homophily.simulate import Exchange, Problem
from homophily.topology import topologies, view_of_all
from homophily.training.one_by_one import OneByOne
from homophily.training.probe import Character, probe
from homophily.training.task import Engine, Settings, Task
from homophily.training.vectorised import Vectorised

_SCORES = (
    "accuracy", "accuracy_over_clusters", "accuracy_by_cluster", "mse", "mse_over_clusters", "mse_by_cluster", "loss",
    "value", "cluster", "round", "rounds", "run", "seconds", "sick", "sick_peers", "sick_rounds", "still_sick",
    "stopped", "stopped_early", "neighbour_precision", "neighbour_recall", "same_cluster_merges", "models_received",
    "models_sent_per_peer", "bytes_sent_per_peer", "peak_models_per_peer_round",
)  # fmt: skip
_WORTH_THREADS = 32 << 20  # bytes that a training step of all peers touches


@dataclass(frozen=True)
class Given:
    """What a Python caller hands over instead of naming it in the config."""

    model: nn.Module | None = None
    data: Sequence[PeerArrays] | None = None
    loss: Loss | None = None
    method: Method | None = None
    extra_metrics: Mapping[str, ExtraMetric] = field(default_factory=dict)


@dataclass(frozen=True)
class Resolved:
    """What was decided once for this machine, stored with the run and used again on resume."""

    engine: str
    why: str  # the engine's reason, in words
    chunk: int  # peers trained at a time
    score_peers: int  # peers and samples evaluated at a time
    score_samples: int
    measure_pairs: int  # pairs of models compared at a time
    threads: int


def prepare(
    config: Config, given: Given, device: torch.device, resolved: Resolved | None = None
) -> tuple[Problem, Config, Resolved]:
    """The problem, the config with nothing left out, and what was resolved (taken over where given)."""
    section = config.data
    settings = {key: getattr(section, key) for key in type(section).model_fields if key != "name"}
    with _one_thread():
        data = ready(section.name, section.keys, settings, config.peers, config.seed, given.data)
    peers = data.shares.peers
    _check_sizes(config, data.shares)
    build, model_keys = _builder(config, given.model, data.shares.inputs, data.shares.outputs)
    first = _seeded(build, config.seed)
    loss = _loss(config.training, given, data.shares)
    module = with_keyed_dropout(first)
    module.eval()
    dtype = next((p.dtype for p in module.parameters()), torch.float32)
    sample = data.shares.train.x[: 2 * peers], data.shares.train.y[: 2 * peers]
    x, y = (t.to(dtype) if t.is_floating_point() else t for t in sample)
    character = probe(module, loss, x, y)
    layout = Layout.of(module, config.model.personal, character.unused)
    resolved = resolved or _resolve(config, data.shares, layout, character, device)
    method, method_keys = _method(config, given)
    shares = data.shares.to(device)
    start = _start(config, layout, build, peers, device)
    ids = torch.arange(peers, device=device)
    task = Task(
        module.to(device), layout, loss, shares, torch.full_like(ids, config.seed), ids,
        Settings(**config.training.model_dump(exclude={"loss", "patience"})), character.coupled, character.draws,
    )  # fmt: skip
    _check_batches(task)
    engine: Engine = Vectorised(task, resolved.chunk) if resolved.engine == "vectorised" else OneByOne(task)
    exchange: Exchange
    if isinstance(method, ServerMethod):
        rows = _server_rows(config, layout, build, method.count, device)
        exchange = ServerExchange(method, task, engine, rows, resolved.measure_pairs)
    else:
        exchange = _peer_exchange(config, method, task, engine, start, resolved)
    problem = Problem(
        task,
        engine,
        Scorer(task, engine, resolved.score_peers, resolved.score_samples, _extra_metrics(config, given)),
        start,
        exchange,
        config.rounds,
        config.score == "after-training",
        config.evaluate,
        config.training.patience,
    )
    return problem, _complete(config, given, peers, data.settings, model_keys, method_keys), resolved


@contextmanager
def _one_thread() -> Iterator[None]:
    """The same bits whatever number of threads there is; a resumed run must find the very same data."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _check_sizes(config: Config, shares: Shares) -> None:
    for key in ("k", "l"):
        value = config.method.keys.get(key)
        if isinstance(value, int) and not 1 <= value <= shares.peers - 1:
            raise UserError(f"method.{key} = {value}: must be from 1 to peers - 1, which is {shares.peers - 1}")
    if config.book != "all" and config.book > shares.peers - 1:
        raise UserError(f"book = {config.book}: must be at most peers - 1, which is {shares.peers - 1}")
    if config.training.patience and shares.validation is None:
        raise UserError("training.patience needs validation samples: set data.validation to at least 1")


def pattern_of(config: Config, inputs: tuple[int, ...], outputs: int, given: nn.Module | None) -> nn.Module:
    """A network of the config's kind, whatever its weights."""
    build, _ = _builder(config, given, inputs, outputs)
    return build()


def _builder(
    config: Config, pattern: nn.Module | None, inputs: tuple[int, ...], outputs: int
) -> tuple[Callable[[], nn.Module], dict[str, Any]]:
    """A function that makes the network with fresh weights, and all keys it was made with."""
    if pattern is not None:
        if config.init == "independent":
            return lambda: _reset(copy.deepcopy(pattern)), {}
        return lambda: copy.deepcopy(pattern), {}
    if config.model.name == GIVEN:
        raise UserError("model.name: this run's model was given in Python; hand it over again as model=...")
    make = models.get(config.model.name)
    keys = checked("model", f"model {config.model.name!r}", make, config.model.keys, PASSED["model"])
    told = {"inputs": inputs, "outputs": outputs}
    names = inspect.signature(make).parameters
    passed = {name: value for name, value in told.items() if name in names}

    def build() -> nn.Module:
        try:
            module = make(**passed, **keys)
        except UserError:
            raise
        except Exception as error:  # anyone's constructor may raise anything; the user needs to know what it got
            got = ", ".join(f"{name} = {value!r}" for name, value in {**passed, **keys}.items())
            raise UserError(f"model.name = {config.model.name!r}: fails with {got}: {error}") from error
        if not isinstance(module, nn.Module):
            raise UserError(f"model.name = {config.model.name!r}: must make an nn.Module, not {type(module).__name__}")
        return module

    return build, keys


def _reset(module: nn.Module) -> nn.Module:
    """Fresh weights for every layer; a layer that cannot draw its own is named."""
    for name, layer in module.named_modules():
        reset = getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
        if callable(reset):
            reset()
        elif next(layer.parameters(recurse=False), None) is not None:
            raise UserError(
                f"init = 'independent': layer {name or type(layer).__name__!r} has no reset_parameters(); "
                "give it one, or name the model as package.module:name so that it can be built afresh"
            )
    return module


def _seeded(build: Callable[[], nn.Module], *keys: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(word(keys[0], Purpose.INIT, *keys[1:]) >> 1)
        return build()


def _start(
    config: Config, layout: Layout, build: Callable[[], nn.Module], peers: int, device: torch.device
) -> Federation:
    """The rows before the first round: one common initialisation, or everyone's own."""
    if config.init == "common":
        row, kept = layout.read(_seeded(build, config.seed))
        tables = {name: buffer.expand(peers, *buffer.shape) for name, buffer in kept.items()}
        rows = row.expand(peers, -1)
    else:
        drawn = [layout.read(_seeded(build, config.seed, peer)) for peer in range(peers)]
        rows = torch.stack([row for row, _ in drawn])
        tables = {name: torch.stack([kept[name] for _, kept in drawn]) for name in layout.kept}
    return Federation(layout, rows.to(device).clone(), {name: t.to(device).clone() for name, t in tables.items()})


def _server_rows(
    config: Config, layout: Layout, build: Callable[[], nn.Module], count: int, device: torch.device
) -> Tensor:
    """The server's models before the first round: the common one, and others from initialisations of their own."""
    drawn = [layout.read(_seeded(build, config.seed, *([Purpose.SERVER, i] * (i > 0))))[0] for i in range(count)]
    return torch.stack(drawn).to(device)


def _loss(training: Training, given: Given, shares: Shares) -> Loss:
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


def _method(config: Config, given: Given) -> tuple[Method | ServerMethod, dict[str, Any]]:
    if given.method is not None:
        return given.method, {}
    name = config.method.name
    if name == GIVEN:
        raise UserError("method.name: this run's method was given in Python; hand it over again as method=...")
    make = methods.get(name)
    keys = checked("method", f"method {name!r}", make, config.method.keys)
    method = make(**keys)
    if isinstance(method, ServerMethod):
        return method, keys
    if not isinstance(method, Method):
        raise UserError(f"method.name = {name!r}: must be a homophily.Method, not {type(method).__name__}")
    method = method.in_rounds(config.rounds)
    return method, {key: getattr(method, key, value) for key, value in keys.items()}


def _peer_exchange(
    config: Config, method: Method, task: Task, engine: Engine, start: Federation, resolved: Resolved
) -> PeerExchange:
    data = task.data
    make = topologies.get(config.topology.name)
    keys = checked("topology", f"topology {config.topology.name!r}", make, config.topology.keys, PASSED["topology"])
    passed = {"peers": data.peers, "seed": config.seed}
    graph = make(**{name: passed[name] for name in accepted(make) or passed if name in passed}, **keys)
    book = None if config.book == "all" else int(config.book)
    view = view_of_all(data.peers, config.seed, graph, method.hops, book, data.cluster, task.ids.device)
    measurer = _measurer(method, task, engine, resolved.measure_pairs)
    return PeerExchange(method, view, merges.get(config.merge), measurer, start.rows, data.train.count, data.cluster)


def _measurer(method: Method, task: Task, engine: Engine, chunk: int) -> Measurer | None:
    """The method's metric with those of the method's settings that it takes."""
    if method.metric is None:
        return None
    metric = metrics.get(method.metric)
    keys = {key: getattr(method, key) for key in accepted(metric) or [] if hasattr(method, key)}
    return Measurer(partial(metric, **keys), task, engine, chunk, sends(method.metric, getattr(method, "on", "own")))


def _extra_metrics(config: Config, given: Given) -> dict[str, ExtraMetric]:
    named = {path.partition(":")[2]: import_object(path, "extra metric") for path in config.extra_metrics}
    found = {**named, **given.extra_metrics}
    for name in found:
        if name in _SCORES:
            raise UserError(f"extra_metrics: {name!r} is a score that every run has; give yours another name")
    return found


def _check_batches(task: Task) -> None:
    short = (task.data.train.count < 2).nonzero()[:, 0].tolist() if task.coupled and not task.draws else []
    if short:
        raise UserError(
            f"peer {short[0]} has one training sample, and this network couples the samples of a batch (BatchNorm): "
            "it needs at least two"
        )


def _resolve(config: Config, shares: Shares, layout: Layout, character: Character, device: torch.device) -> Resolved:
    """The engine, and chunk sizes from the memory that is free."""
    if config.engine == "vectorised" and character.obstacle:
        raise UserError(f"engine = 'vectorised': this network cannot be vectorised: {character.obstacle}")
    engine = "one-by-one" if config.engine == "one-by-one" or character.obstacle else "vectorised"
    why = "asked for" if config.engine != "auto" else character.obstacle or "the network vectorises"
    budget = _free_memory(device) // 4
    row = layout.width * layout.dtype.itemsize
    # Twice what autograd saves (gradients of the same size), and rows, gradients and optimiser state.
    training = 2 * character.saved_bytes * config.training.batch + 8 * row
    most = int(shares.test.count.max())
    samples = max(1, min(most, 512))
    scoring = samples * character.saved_bytes + row + most * shares.outputs * 16
    chunk = max(1, min(shares.peers, budget // max(1, training)))
    # One thread where each peer is work of its own, as on a real peer, and where a step is too small to share:
    # threads that wait for one another cost more than they bring, a hundredfold on a busy machine.
    alone = engine == "one-by-one" or chunk * training < _WORTH_THREADS
    return Resolved(
        engine,
        why,
        chunk,
        max(1, min(shares.peers, budget // max(1, scoring))),
        samples,
        max(1, budget // (4 * row + int(shares.train.count.max()) * character.saved_bytes)),
        1 if alone else torch.get_num_threads(),
    )


def _free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _complete(
    config: Config, given: Given, peers: int, data: dict[str, Any], model: dict[str, Any], method: dict[str, Any]
) -> Config:
    """The config with every default written out, so that a run folder says all."""
    values = config.model_dump()
    values["peers"] = peers
    for table, keys in {"data": data, "model": model, "method": method}.items():
        values[table] |= {key: value for key, value in keys.items() if _storable(value)}
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
