"""One real peer made ready from its file: its keys, its data, its network and its side of the exchange."""

from __future__ import annotations

from dataclasses import dataclass, replace
from inspect import signature

import networkx as nx
import torch
from torch import Tensor

from homophily.config.schema import Config
from homophily.data import Shares, sources
from homophily.data.types import Split
from homophily.data.user_data import read_file
from homophily.errors import UnsuitableError, UserError
from homophily.experiments.runner import chosen_device
from homophily.federation.merging import merges
from homophily.federation.similarity import needs_path
from homophily.methods.base import Method, methods
from homophily.methods.baselines import Oracle
from homophily.methods.server import ServerMethod
from homophily.peer.blob_transfer import Mail
from homophily.peer.exchange import FieldExchange, Pace
from homophily.peer.identity import Authority, Identity, Refused, number_of
from homophily.peer.manifest import MOST_BYTES
from homophily.peer.membership import SILENCE, Announcer, Members, Status, seal
from homophily.peer.refusals import Refusals
from homophily.peer.settings import PeerSettings
from homophily.peer.wire import MOST_PRINT, Expected, network_number
from homophily.runs.reader import Run, RunFolder
from homophily.simulation.configuration import make, overlaid
from homophily.simulation.rounds import Simulation
from homophily.simulation.setup import (
    Given,
    Ground,
    Known,
    check_merge,
    data_of,
    graph_of,
    ground,
    measurer_of,
    method_of,
    task_fingerprints,
)

_EVERY = 1.0  # seconds between two announcements of a status that has not changed
_HOP_SECONDS = 10.0  # for a request over one hop
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Ready:
    """All that a peer needs to play, but for its links."""

    config: Config
    base: Ground
    exchange: FieldExchange
    simulation: Simulation
    authority: Authority

    @property
    def device(self) -> torch.device:
        return self.base.task.ids.device


def made_ready(asked: PeerSettings) -> Ready:
    """Everything that a peer's file asks for, and every mistake in it told."""
    device = chosen_device(asked.peer.device, "peer.device")
    identity, authority = _credentials(asked)
    base, config = _grounded(asked, _completed(asked), device)
    start = base.network.start(config, base.task.layout, base.task.ids.tolist(), device)
    exchange = _exchange(asked, config, base, start.rows, identity, authority)
    return Ready(config, base, exchange, Simulation(base.problem(config, Given(), start, exchange)), authority)


def _credentials(asked: PeerSettings) -> tuple[Identity, Authority]:
    """Who this peer is, and who decides whom to believe."""
    identity = Identity(asked.peer.name, asked.certificate, asked.key)
    authority = Authority(asked.path(asked.peer.ca), asked.peer.allow)
    try:
        authority.open(identity.seal({}))  # as the others will
    except Refused as error:
        raise UserError(f"{asked.certificate} will be refused by the others: {error}") from None
    return identity, authority


def _completed(asked: PeerSettings) -> Config:
    """A peer trains one model the plain way, like the simulator's reference."""
    return _decided(asked, asked.config.model_copy(update={"engine": "one-by-one", "checkpoint": 1}))


def _decided(asked: PeerSettings, config: Config) -> Config:
    """What a method makes of the number of rounds (t1) is decided when a state begins, and kept if it is extended."""
    name, state = config.method.name, asked.state
    began = Run(state).config if RunFolder(state).begun else config
    if began.method.name != name:
        return config  # which is told later
    left_open = [key for key, p in signature(methods.get(name)).parameters.items() if p.default is None]
    _, keys = method_of(began, Given(), len(asked.peer.allow))
    decided = {key: keys[key] for key in left_open if key not in config.method.keys and keys.get(key) is not None}
    return make(overlaid(config.toml(), {"method": {"name": name, **decided}}))


def _grounded(asked: PeerSettings, config: Config, device: torch.device) -> tuple[Ground, Config]:
    """Data, network and engine of this one peer, where it trains."""
    peer = asked.peer
    id = _ids(asked)[peer.name]
    shares, config = _shares(asked, config)
    if peer.classes is not None:
        if shares.classes is None or shares.classes > peer.classes:
            raise UserError(f"peer.classes = {peer.classes}: this peer's data has {shares.classes or 'no'} classes")
        shares = replace(shares, classes=peer.classes, outputs=peer.classes)
    ids = torch.tensor([id], device=device)
    return ground(config, Given(), shares, shares.to(device), ids, None, Known()), config


def _shares(asked: PeerSettings, config: Config) -> tuple[Shares, Config]:
    """This peer's data: its part of simulated data, or its own."""
    if asked.peer.share is not None:
        config = config.model_copy(update={"peers": len(asked.peer.allow)})
        return _one(data_of(config, Given(), _CPU, Known())[1], asked.peer.share), config
    own = asked.path(config.data.name)
    given = Given()
    if own.suffix == ".npz":
        given = Given(data=[read_file(own)])
    elif own.is_file():
        raise UserError(f"data.name = {config.data.name!r}: a peer's own data is a .npz file")
    elif own.is_dir() and config.data.name not in sources:
        config = config.model_copy(update={"data": config.data.model_copy(update={"name": str(own)})})
    config = config.model_copy(update={"peers": None})
    shares = data_of(config, given, _CPU, Known())[1]
    if shares.peers != 1:
        raise UserError(f"data.name = {config.data.name!r} is the data of {shares.peers} peers: a peer needs its own")
    return shares, config


def _one(shares: Shares, peer: int) -> Shares:
    """One peer's part of everyone's data."""

    def cut(split: Split) -> Split:
        x, y = split.peer(peer)
        return Split(x.clone(), y.clone(), torch.zeros(1, dtype=torch.int64), split.count[peer : peer + 1])

    validation = None if shares.validation is None else cut(shares.validation)
    return replace(
        shares,
        train=cut(shares.train),
        test=cut(shares.test),
        validation=validation,
        cluster=None,
        cluster_names=(),
        preparation=shares.preparation.of(peer),
    )


def _plan(config: Config) -> str:
    """What all peers should agree on, in words."""
    return f"{config.method.name} with merge {config.merge} for {config.rounds} rounds"


def _ids(asked: PeerSettings) -> dict[str, int]:
    """Everyone's id by name: the places in the list where a simulation is played, else from the name."""
    names = asked.peer.allow
    if asked.peer.share is not None:
        return {name: place for place, name in enumerate(names)}
    return {name: number_of(name) for name in names}


def peer_method(config: Config, peers: int) -> Method:
    """The method of a config, or a sentence about what real peers cannot do."""
    method, _ = method_of(config, Given(), peers)
    if isinstance(method, ServerMethod):
        raise UnsuitableError(f"method.name = {config.method.name!r}: has a server, and peers have none")
    if isinstance(method, Oracle):
        raise UnsuitableError(f"method.name = {config.method.name!r}: knows who is alike, and peers do not")
    if config.book != "all":
        raise UnsuitableError(f"book = {config.book}: real peers know all that their files allow")
    if getattr(method, "on", "own") == "peer":
        raise UnsuitableError("method.on = 'peer': a real peer judges models on its own data only")
    if method.metric is not None and needs_path(method.metric) and config.init != "common":
        raise UnsuitableError(f"metric = {method.metric!r} compares ways from one start, so init must be 'common'")
    return method


def _far(asked: PeerSettings, config: Config) -> dict[str, int]:
    """Hops from this peer to each that it can reach in the topology of a simulation."""
    names = asked.peer.allow
    graph, _ = graph_of(config, len(names))
    far = nx.single_source_shortest_path_length(graph or nx.complete_graph(len(names)), _ids(asked)[asked.peer.name])
    return {names[place]: hops for place, hops in far.items() if hops}


def _exchange(
    asked: PeerSettings, config: Config, base: Ground, start: Tensor, identity: Identity, authority: Authority
) -> FieldExchange:
    peer, task = asked.peer, base.task
    method = peer_method(config, len(peer.allow))
    measurer = measurer_of(method, task, base.engine, base.resolved.measure_pairs)
    check_merge(config, measurer)
    ids = _ids(asked)
    book = dict(sorted((id, name) for name, id in ids.items() if name != peer.name))
    number = network_number(task.layout, config.seed, task.layout.frozen_hash(task.module))
    expected = Expected(task.layout.sent_numbers, task.layout.dtype, method.shares, number, len(peer.allow))
    if expected.most_bytes > MOST_BYTES:
        raise UserError(f"model: {expected.most_bytes} bytes would travel at a time, and at most {MOST_BYTES} can")
    mail = Mail(
        peer.federation,
        identity,
        authority,
        {"model": expected.most_bytes, "before": expected.most_bytes, "print": MOST_PRINT},
        Refusals(),
        timeout=max(_HOP_SECONDS, peer.deadline / 2),  # on a slow link what is asked for at a time takes long
        slots=peer.slots,
        waiting=peer.waiting,
        pulls=peer.pulls,
        window=peer.window,
        cache_bytes=peer.cache_mb << 20,
    )
    members = Members(
        peer.name, peer.allow, peer.mesh == "full", lambda: mail.links.neighbours(), max(SILENCE, peer.deadline)
    )
    mail.members = members

    def tell(status: Status) -> None:
        mail.links.tell(seal(status, peer.federation, identity))

    others = len(peer.allow) - 1
    lockstep = peer.pace == "lockstep"
    wait_for = peer.wait_for if peer.wait_for is not None else others if lockstep else 0
    far = _far(asked, config) if lockstep and peer.wait_for is None and peer.share is not None else None
    return FieldExchange(
        method,
        merges.get(config.merge),
        measurer,
        start,
        int(task.data.train.count[0]),
        ids[peer.name],
        config.seed,
        book,
        expected,
        lambda: task_fingerprints(task, config.seed).to(_CPU),
        Pace(lockstep, peer.deadline, peer.staleness, min(wait_for, others), peer.lease, far),
        mail,
        members,
        Announcer(tell, lambda: mail.links.neighbours(), _EVERY, _plan(config)),
    )
