"""Prepares a real peer from its file: keys, data, network and method. It opens no connection."""

from __future__ import annotations

from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any

import networkx as nx
import torch
from torch import Tensor

from homophily.config.schema import Config, Data
from homophily.data import AgreedConstants, FederatedData, PeerData, PreparedData, sources
from homophily.data.setup import peers_in_file
from homophily.data.types import Split
from homophily.errors import UnsuitableError, UserError
from homophily.experiments.runner import chosen_device
from homophily.federation.rows import Federation
from homophily.federation.similarity import cost_of, declares_cost
from homophily.fingerprints.fingerprint import format_of
from homophily.fingerprints.private import system_draws
from homophily.methods.base import Method, methods, metric_of
from homophily.methods.baselines import Oracle
from homophily.methods.server import ServerMethod
from homophily.peer.identity import Authority, Identity, Refused, peer_id
from homophily.peer.manifest import MAX_BLOB_BYTES
from homophily.peer.pacing import SyncPolicy
from homophily.peer.prints import PlainPrints, PrintForm, PrivatePrints
from homophily.peer.releases import Releases, released_noise
from homophily.peer.settings import PeerSettings
from homophily.peer.source import LocalPeer
from homophily.peer.wire import ExpectedModel, network_number
from homophily.privacy.draws import SecretDraws
from homophily.runs.reader import Run
from homophily.runs.writer import RunWriter
from homophily.simulation.configuration import make, overlaid
from homophily.simulation.pairwise import PairwiseEvaluator
from homophily.simulation.privacy import NoiseSource, released_counts
from homophily.simulation.setup import check_merge, evaluator_of, graph_of, method_of
from homophily.simulation.training_setup import (
    SetupCache,
    TrainingSetup,
    data_of,
    start_of,
    task_fingerprints,
    task_private_fingerprints,
    training_setup,
)
from homophily.simulation.user_objects import UserObjects
from homophily.trackers import trackers
from homophily.training.per_peer import PeerNames, values_by_peer
from homophily.training.task import Task

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class PeerSetup:
    """Everything that a peer needs except connections."""

    settings: PeerSettings
    config: Config
    training: TrainingSetup
    start: Federation
    method: Method
    evaluator: PairwiseEvaluator | None
    me: LocalPeer
    expected: ExpectedModel
    policy: SyncPolicy
    identity: Identity
    authority: Authority
    notes: tuple[str, ...]  # what the operator should know of this peer's data

    @property
    def device(self) -> torch.device:
        return self.training.task.ids.device

    def releases(self) -> Releases | None:
        """What this peer has released, in its state folder; None without [privacy]."""
        account, state = self.training.account, self.settings.state
        return None if account is None else Releases(state, account, RunWriter(state).last_round > 0)

    def prints(self, releases: Releases | None) -> PrintForm:
        """How this peer makes its fingerprint and reads those of others."""
        task, seed, peers, network = (
            self.training.task,
            self.config.seed,
            1 + len(self.me.contacts),
            self.expected.network,
        )
        account = self.training.account
        if releases is None or account is None or not self.method.uses_fingerprints:
            return PlainPrints(lambda: task_fingerprints(task, seed, peers).to(_CPU), format_of(peers), network)
        noise = account.fingerprint_noise

        def released() -> Tensor:
            return task_private_fingerprints(task, seed, noise, system_draws).vectors[0]

        return PrivatePrints(released, noise, network, releases)


def prepare_peer(settings: PeerSettings) -> PeerSetup:
    """Prepare what a peer's file asks for. Raises UserError for every mistake in it."""
    device = chosen_device(settings.peer.device, "peer.device")
    _check_trackers(settings.config)
    identity, authority = _credentials(settings)
    training, config, notes = _training(settings, _peer_config(settings), device)
    task, peer = training.task, settings.peer
    start = start_of(training.network, config, task.layout, task.ids.tolist(), device)
    method = peer_method(config, len(peer.allow))
    evaluator = evaluator_of(method, task, training.engine, training.plan.measure_pairs)
    check_merge(config, evaluator)
    return PeerSetup(
        settings,
        config,
        training,
        start,
        method,
        evaluator,
        _me(settings, config, method, task, start.rows),
        _expected(task, config, method, len(peer.allow)),
        _policy(settings, config),
        identity,
        authority,
        notes,
    )


def _check_trackers(config: Config) -> None:
    """Under [privacy], scores on a peer's samples do not leave it."""
    for tracker in (config.tracker or []) if config.privacy is not None else []:
        if not trackers.get(tracker.name).stays:
            raise UserError(
                f"privacy: tracker = {tracker.name!r} may send scores on this peer's samples to another machine; use "
                "'csv', 'parquet' or 'tensorboard'"
            )


def _me(settings: PeerSettings, config: Config, method: Method, task: Task, start: Tensor) -> LocalPeer:
    ids, name = _ids(settings), settings.peer.name
    contacts = dict(sorted((id, other) for other, id in ids.items() if other != name))
    samples = int(released_counts(config, task.data.train.count)[0])
    return LocalPeer(
        ids[name], config.seed, samples, start, contacts, method.hops, method.unknown, resets=method.uses_fingerprints
    )


def _expected(task: Task, config: Config, method: Method, peers: int) -> ExpectedModel:
    frozen = task.layout.frozen_hash(task.module)
    data = task.data
    number = network_number(task.layout, config.seed, frozen, data.kind.name, data.classes, constants_digest(config))
    expected = ExpectedModel(task.layout.sent_parameters, task.layout.dtype, method.shares, number, peers)
    if expected.max_bytes > MAX_BLOB_BYTES:
        raise UserError(
            f"model: it takes {expected.max_bytes} bytes to send, but real peers can send at most {MAX_BLOB_BYTES}"
        )
    return expected


def _policy(settings: PeerSettings, config: Config) -> SyncPolicy:
    peer = settings.peer
    others, lockstep = len(peer.allow) - 1, peer.pace == "lockstep"
    wait_for = peer.wait_for if peer.wait_for is not None else others if lockstep else 0
    expected_hops = (
        _expected_hops(settings, config) if lockstep and peer.wait_for is None and peer.share is not None else None
    )
    return SyncPolicy(lockstep, peer.deadline, peer.staleness, min(wait_for, others), peer.lease, expected_hops)


def _credentials(settings: PeerSettings) -> tuple[Identity, Authority]:
    """The peer's identity, and the authority that decides which peers are trusted."""
    identity = Identity(settings.peer.name, settings.certificate, settings.key)
    authority = Authority(settings.path(settings.peer.ca), settings.peer.allow, settings.absence)
    govern(authority, settings)
    try:
        authority.open(identity.seal({}))  # as other peers will do
    except Refused as error:
        raise UserError(f"other peers will refuse {settings.certificate}: {error}") from None
    return identity, authority


def govern(authority: Authority, settings: PeerSettings) -> None:
    """Trust whom the membership document names, if there is one, without those that the peer denies."""
    document = settings.document
    if document is not None:
        names = {name: common for name, common in document.common_names.items() if name in settings.peer.allow}
        authority.apply(names, document.revoked, document.expires)


def _peer_config(settings: PeerSettings) -> Config:
    """A peer trains one model with the reference engine, and saves a checkpoint after every round."""
    config, own = settings.config, settings.peer.merge_guard
    guard = config.merge_guard if own is None else own
    fixed = {"engine": "one-by-one", "checkpoint": 1, "merge_guard": guard}
    return _with_derived_keys(settings, config.model_copy(update=fixed))


def _with_derived_keys(settings: PeerSettings, config: Config) -> Config:
    """The config with the keys that the method derived from the rounds (t1) when the state folder was made."""
    name, state = config.method.name, settings.state
    began = Run(state).config if RunWriter(state).begun else config
    if began.method.name != name:
        return config  # the process reports the difference
    left_open = [key for key, p in signature(methods.get(name)).parameters.items() if p.default is None]
    _, keys = method_of(began, UserObjects(), len(settings.peer.allow))
    decided = {key: keys[key] for key in left_open if key not in config.method.keys and keys.get(key) is not None}
    return make(overlaid(config.toml(), {"method": {"name": name, **decided}}))


def _training(
    settings: PeerSettings, config: Config, device: torch.device
) -> tuple[TrainingSetup, Config, tuple[str, ...]]:
    """Data, network and engine of this peer, on the device on which it trains; its config; and notes on its data."""
    peer = settings.peer
    id = _ids(settings)[peer.name]
    data, config = _own_data(settings, config)
    notes = () if peer.share is not None else _own_constants(data)
    shares = data.shares
    if shares.class_names is not None and peer.share is None and "class_names" not in data.settings.get("scale", {}):
        raise UserError(
            "data: the classes are strings, so data.scale must give class_names, in the order on which all peers "
            "agree; `homophily scale` writes them"
        )
    if peer.share is None and config.data.length is None and data.settings.get("length") is not None:
        raise UserError("data.length is missing: samples differ in length, and all peers must pad them to the same one")
    agreed_classes = (data.settings.get("scale") or {}).get("classes")
    if None not in (peer.classes, agreed_classes) and peer.classes != agreed_classes:
        raise UserError(f"peer.classes = {peer.classes}, but data.scale has classes = {agreed_classes}")
    if peer.classes is not None:
        if shares.classes is None or shares.classes > peer.classes:
            raise UserError(f"peer.classes = {peer.classes}: this peer's data has {shares.classes or 'no'} classes")
        own = tuple(key for key in shares.own_constants if key != "classes")
        shares = replace(shares, classes=peer.classes, outputs=peer.classes, own_constants=own)
    ids = torch.tensor([id], device=device)
    method = peer_method(config, len(peer.allow))
    noise = NoiseSource(SecretDraws(), released_noise(settings.state))
    ready = training_setup(config, UserObjects(), shares, shares.to(device), ids, None, SetupCache(), method, noise)
    return ready, config, notes


def _own_data(settings: PeerSettings, config: Config) -> tuple[PreparedData, Config]:
    """This peer's data: its part of simulated data (peer.share), or the data that its file names.

    The config holds the constants of data.scale themselves, so that the state folder holds them, too.
    """
    if isinstance(config.data.scale, str):
        config = _with_data(config, scale=str(settings.path(config.data.scale)))
    data, config = _named_data(settings, config)
    return data, _with_data(config, scale=data.settings.get("scale"))


def _with_data(config: Config, **keys: Any) -> Config:
    return config.model_copy(update={"data": config.data.model_copy(update=keys)})


def _with_own_training(config: Config, peers: PeerNames, place: int) -> Config:
    """The config with this peer's own learning rate and epochs, of those that the file gives for all peers."""
    own = {key: values[place] for key, values in values_by_peer(config.training, peers).items()}
    return config.model_copy(
        update={"training": config.training.model_copy(update={**own, **{f"{key}_by_peer": None for key in own}})}
    )


def _named_data(settings: PeerSettings, config: Config) -> tuple[PreparedData, Config]:
    if settings.peer.share is not None:
        config = config.model_copy(update={"peers": len(settings.peer.allow)})
        data = data_of(config, UserObjects(), _CPU, SetupCache())[0]
        config = _with_own_training(config, PeerNames.of(data.roster), settings.peer.share)
        return replace(data, shares=_part_of(data.shares, settings.peer.share)), config
    own = settings.path(config.data.name)
    names = settings.peer.allow
    config = _with_own_training(config, PeerNames(names), names.index(settings.peer.name))
    config = config.model_copy(update={"peers": None})
    arrays = _peer_in_file(settings, own, config)
    if arrays is not None:
        without_keys = Data(**{key: getattr(config.data, key) for key in Data.model_fields})
        given = UserObjects(data=arrays)
        return data_of(config.model_copy(update={"data": without_keys}), given, _CPU, SetupCache())[0], config
    if own.is_file():
        wanted = "must be a .npz, .csv or .parquet file, a folder or package.module:function"
        raise UserError(f"data.name = {config.data.name!r}: {wanted}")
    if own.is_dir() and config.data.name not in sources:
        config = _with_data(config, name=str(own))
    data = data_of(config, UserObjects(), _CPU, SetupCache())[0]
    if data.shares.peers != 1:
        raise UserError(
            f"data.name = {config.data.name!r} holds the data of {data.shares.peers} peers: a peer needs its own"
        )
    return data, config


def _peer_in_file(settings: PeerSettings, file: Path, config: Config) -> list[PeerData] | None:
    """This peer's data in a file: all of it, or the rows with the peer's name; None: data.name is not a file."""
    found = peers_in_file(file, config.data.keys)
    column = config.data.keys.get("peer")
    if found is None or column is None:
        return found
    mine = [one for one in found if one.name == settings.peer.name]
    if not mine:
        raise UserError(f"{file}: no row has {settings.peer.name!r} (peer.name) in the column {column!r} (data.peer)")
    return mine


def _own_constants(data: PreparedData) -> tuple[str, ...]:
    """A note for each constant of the inputs that this peer computes from its own data."""
    prepared, remedy = data.shares.preparation, "give data.scale, written by `homophily scale`"
    scaled = data.settings["normalise"] == "standard" and prepared.scale.mean is not None
    filled = "scale" not in data.settings and prepared.fill is not None
    own = {
        "inputs are scaled by this peer's own data (data.normalise = 'standard')": scaled,
        "missing values are filled with means of this peer's own data": filled,
    }
    return tuple(f"{note}; {remedy}, so that all peers use the same constants" for note, true in own.items() if true)


def constants_digest(config: Config) -> str | None:
    """A hash of the constants of data.scale; None: none are given."""
    return None if config.data.scale is None else AgreedConstants(**config.data.scale).digest


def _part_of(shares: FederatedData, peer: int) -> FederatedData:
    """One peer's part of everyone's data."""

    def cut(split: Split) -> Split:
        x, y = split.peer(peer)
        return Split(x.clone(), y.clone(), torch.zeros(1, dtype=torch.int64), split.count[peer : peer + 1])

    validation = None if shares.validation is None else cut(shares.validation)
    missing = None if shares.missing is None else replace(shares.train, x=shares.missing).peer(peer)[0].clone()
    return replace(
        shares,
        train=cut(shares.train),
        test=cut(shares.test),
        validation=validation,
        cluster=None,
        cluster_names=(),
        preparation=shares.preparation.of(peer),
        missing=missing,
    )


def _ids(settings: PeerSettings) -> dict[str, int]:
    """The ids of all peers by name: positions in peer.allow if they run a simulation, else hashes of the names."""
    names = settings.peer.allow
    if settings.peer.share is not None:
        return {name: place for place, name in enumerate(names)}
    return {name: peer_id(name) for name in names}


def peer_method(config: Config, peers: int) -> Method:
    """The method of a config. Raises UnsuitableError if real peers cannot use it."""
    method, _ = method_of(config, UserObjects(), peers)
    if isinstance(method, ServerMethod):
        raise UnsuitableError(f"method.name = {config.method.name!r}: needs a server, which real peers do not have")
    if isinstance(method, Oracle):
        raise UnsuitableError(
            f"method.name = {config.method.name!r}: needs the true clusters, which real peers do not know"
        )
    if config.contacts != "all":
        raise UnsuitableError(f"contacts = {config.contacts}: must be 'all': a real peer knows every other peer")
    if getattr(method, "on", "own") == "peer":
        raise UnsuitableError("method.on = 'peer': must be 'own': a real peer evaluates models on its own data only")
    if config.init != "common":
        _check_start(config, method)
    return method


def _check_start(config: Config, method: Method) -> None:
    """Refuse a metric that compares displacements if peers start from different models: they know only their own."""
    found = metric_of(method)
    if found is None or not cost_of(*found).displacement:
        return
    problem = f"init = {config.init!r}: must be 'common' for metric {method.metric!r}, which"
    if not declares_cost(found[0]):
        raise UnsuitableError(
            f"{problem} does not declare its cost and may compare displacements; if it does not, declare its cost with "
            "homophily.federation.similarity.costs"
        )
    raise UnsuitableError(f"{problem} compares displacements")


def _expected_hops(settings: PeerSettings, config: Config) -> dict[str, int]:
    """Hops from this peer to each peer that it can reach in the topology of a simulation."""
    names = settings.peer.allow
    graph, _ = graph_of(config, len(names))
    far = nx.single_source_shortest_path_length(
        graph or nx.complete_graph(len(names)), _ids(settings)[settings.peer.name]
    )
    return {names[place]: hops for place, hops in far.items() if hops}
