"""One real peer from start to end: made ready, joined, played round by round, its state folder always whole."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import torch
from torch import Tensor

from homophily.api import chosen_device
from homophily.api import settings as torch_settings
from homophily.config import Config
from homophily.data import Shares
from homophily.data.own import read_file
from homophily.data.types import Split
from homophily.errors import UnsuitableError, UserError
from homophily.layout import Layout
from homophily.merging import merges
from homophily.methods.base import Method
from homophily.methods.server import ServerMethod
from homophily.peer.exchange import FieldExchange, Pace
from homophily.peer.identity import Authority, Identity, Refused, number_of
from homophily.peer.links import Address, Ears, ZenohLinks
from homophily.peer.mail import Mail
from homophily.peer.members import Announcer, Members, Status, opened, seal
from homophily.peer.parcels import MOST_PRINT, Expected
from homophily.peer.refusals import Refusals, log_to
from homophily.peer.settings import PeerSettings, only_loopback
from homophily.prepare import (
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
from homophily.runs import Run, RunFolder
from homophily.similarity import needs_path
from homophily.simulate import Simulation
from homophily.storage import write_json

Progress = Callable[[dict[str, Any]], None]
_EVERY = 1.0  # seconds between two announcements of a status that has not changed
_HOP_SECONDS = 10.0  # for a chunk over one hop
_CPU = torch.device("cpu")


def play(asked: PeerSettings, insecure: bool = False, progress: Progress | None = None) -> Run:
    """Be a peer until the last round; goes on where the state folder ends."""
    peer = asked.peer
    if insecure and not only_loopback(peer):
        raise UserError("--insecure is for this machine alone: peer.listen and peer.connect must be loopback addresses")
    device = chosen_device(peer.device, "peer.device")
    config = _completed(asked)
    identity = Identity(peer.name, asked.certificate, asked.key)
    authority = Authority(asked.path(peer.ca), peer.allow)
    try:
        authority.open(identity.seal({}))  # as the others will
    except Refused as error:
        raise UserError(f"{asked.certificate} will be refused by the others: {error}") from None
    base, config = _grounded(asked, config, device)
    start = base.network.start(config, base.task.layout, base.task.ids.tolist(), device)
    exchange = _exchange(asked, config, base, start.rows, identity, authority)
    simulation = Simulation(base.problem(config, Given(), start, exchange))
    folder = _opened_folder(asked, config, base, simulation)
    tls = None if insecure else (asked.path(peer.ca), asked.certificate, asked.key)
    address = Address(
        peer.name, peer.federation, tuple(peer.allow), tuple(peer.listen), tuple(peer.connect),
        peer.mesh == "full", peer.lease, tls,
    )  # fmt: skip
    with (
        _logged(folder.path / "peer.log"),
        _joined(exchange, address, authority),
        torch_settings(config, base.resolved, device),
        _stopping(),
    ):
        _rounds(simulation, exchange, folder, asked, progress)
        summary, scores = simulation.result()
        folder.finish(simulation, {**summary, "run": str(folder.path)}, scores)
        exchange.announcer.announce(finished=True)
        _linger(exchange, peer.deadline)
    return Run(folder.path)


def _completed(asked: PeerSettings) -> Config:
    """A peer trains one model the plain way, like the simulator's reference."""
    return asked.config.model_copy(update={"engine": "one-by-one", "checkpoint": 1})


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
    given = Given(data=[read_file(own)]) if own.suffix == ".npz" else Given()
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
        shares, train=cut(shares.train), test=cut(shares.test), validation=validation, cluster=None, cluster_names=()
    )


def _ids(asked: PeerSettings) -> dict[str, int]:
    """Everyone's id by name: the places in the list where a simulation is played, else from the name."""
    names = asked.peer.allow
    if asked.peer.share is not None:
        return {name: place for place, name in enumerate(names)}
    return {name: number_of(name) for name in names}


def peer_method(config: Config, peers: int) -> Method:
    """The method of a config, which must do without a server."""
    method, _ = method_of(config, Given(), peers)
    if isinstance(method, ServerMethod):
        raise UnsuitableError(f"method.name = {config.method.name!r}: has a server, and peers have none")
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
    if getattr(method, "on", "own") == "peer":
        raise UnsuitableError("method.on = 'peer': a real peer judges models on its own data only")
    if method.metric is not None and needs_path(method.metric) and config.init != "common":
        raise UnsuitableError(f"metric = {method.metric!r} compares ways from one start, so init must be 'common'")
    ids = _ids(asked)
    book = dict(sorted((id, name) for name, id in ids.items() if name != peer.name))
    before = measurer is not None and measurer.updates
    expected = Expected(task.layout.sent_numbers, task.layout.dtype, before, method.shares, len(peer.allow))
    mail = Mail(
        peer.federation,
        identity,
        authority,
        {"model": expected.most_bytes, "print": MOST_PRINT},
        Refusals(),
        timeout=_HOP_SECONDS,
        slots=peer.slots,
        waiting=peer.waiting,
        pulls=peer.pulls,
        window=peer.window,
        cache_bytes=peer.cache_mb << 20,
    )
    members = Members(peer.name, peer.allow, peer.mesh == "full", lambda: mail.links.neighbours())
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
        Announcer(tell, lambda: mail.links.neighbours(), _EVERY),
    )


@contextmanager
def _logged(path: Path) -> Iterator[None]:
    handler = log_to(path)
    try:
        yield
    finally:
        logging.getLogger("homophily.peer").removeHandler(handler)
        handler.close()


@contextmanager
def _joined(exchange: FieldExchange, address: Address, authority: Authority) -> Iterator[None]:
    """Links open, serving and listening; closed at the end."""
    mail, members = exchange.mail, exchange.members

    def heard(sealed: bytes) -> None:
        try:
            news = members.update(*opened(sealed, authority, address.federation, len(address.allowed)))
        except Refused as error:
            mail.refusals.add(error)
            return
        if news and not address.full:  # for those further away
            links.tell(sealed)

    def came(name: str) -> None:
        members.came(name)
        exchange.announcer.soon()  # who has just come has heard nothing yet

    def went(name: str) -> None:
        members.went(name)
        exchange.announcer.soon()  # what others know of my links is out of date

    def stranger(name: str) -> None:
        mail.refusals.add("link of a name not allowed", name)

    links = mail.links = ZenohLinks(address)
    links.listen(Ears(heard, mail.asked, came, went, stranger))
    exchange.announcer.start()
    try:
        yield
    finally:
        exchange.announcer.stop()
        links.close()
        mail.close()


def _opened_folder(asked: PeerSettings, config: Config, base: Ground, simulation: Simulation) -> RunFolder:
    """A new state folder, or the old one and everything restored from it."""
    path = asked.state
    if (path / "config.toml").is_file():
        folder = RunFolder(path)
        if Layout.from_json(Run(path).about["layout"]) != base.task.layout:
            raise UserError(f"{path} holds the state of another network: name another state folder")
        folder.restore(simulation)
        folder.write_config(config)
        return folder
    folder = RunFolder.create(path, asked.peer.name)
    folder.describe(config, base.resolved, base.task, base.task.ids.device)
    return folder


def _rounds(
    simulation: Simulation, exchange: FieldExchange, folder: RunFolder, asked: PeerSettings, progress: Progress | None
) -> None:
    """Whoever has missed rounds, or is so slow that its models are too old for others, goes on at theirs."""
    last, behind = simulation.problem.rounds, 0
    exchange.come_together(simulation.round)
    while not simulation.finished:
        simulation.round = exchange.keep_pace(simulation.round, last, behind)
        behind = last if exchange.pace.lockstep else exchange.pace.behind
        line = simulation.step()
        folder.append(line)
        folder.save(simulation)
        write_json(folder.path / "status.json", _status(simulation, exchange, asked, line))
        if progress is not None:
            progress({**line, "rounds": asked.config.rounds})


def _status(
    simulation: Simulation, exchange: FieldExchange, asked: PeerSettings, line: dict[str, Any]
) -> dict[str, Any]:
    """What ``homophily status`` shows."""
    return {
        "peer": asked.peer.name,
        "federation": asked.peer.federation,
        "time": time.time(),
        "round": simulation.round,
        "rounds": simulation.problem.rounds,
        "accuracy": line.get("accuracy", line.get("mse")),
        "neighbours": sorted(exchange.mail.links.neighbours()),
        "reachable": exchange.members.hops(),
        "merged": line.get("merged", []),
        "similarities": line.get("similarities", {}),
        "unreachable": line.get("unreachable", []),
        "bytes_received": exchange.traffic.bytes,
        "refused": exchange.mail.refusals.counts(),
    }


def _linger(exchange: FieldExchange, seconds: float) -> None:
    """Others may still want the last model: stay until everyone has it, or a while."""
    members = exchange.members
    members.wait(lambda: all(members.status(name).finished for name in members.alive()), seconds)


@contextmanager
def _stopping() -> Iterator[None]:
    """SIGTERM is like Ctrl-C: the state folder holds every round that is over."""

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
