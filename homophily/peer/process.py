"""One real peer from start to end: joined, played round by round, its state folder always whole."""

from __future__ import annotations

import logging
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from homophily.atomic_io import locked, write_json, writing
from homophily.config.overlay import differing
from homophily.config.schema import Config
from homophily.errors import UserError
from homophily.experiments.runner import settings as torch_settings
from homophily.peer import handshakes
from homophily.peer.exchange import FieldExchange
from homophily.peer.identity import Authority, Refused
from homophily.peer.membership import opened
from homophily.peer.refusals import log_to
from homophily.peer.settings import PeerSettings, only_loopback
from homophily.peer.setup import Ready, made_ready
from homophily.peer.transport import Address, Ears, ZenohLinks
from homophily.runs.reader import Run, RunFolder
from homophily.simulation.rounds import Simulation

Progress = Callable[[dict[str, Any]], None]

_SOON = timedelta(days=30)  # a certificate ends
_log = logging.getLogger("homophily.peer")


def play(asked: PeerSettings, insecure: bool = False, progress: Progress | None = None, alone: bool = False) -> Run:
    """Be a peer until the last round; goes on where the state folder ends. alone: this process is nothing else."""
    if insecure and not only_loopback(asked.peer):
        raise UserError("--insecure is for this machine alone: peer.listen and peer.connect must be loopback addresses")
    ready = made_ready(asked)
    _allow_many_files()
    with locked(asked.state):
        return _played(asked, ready, insecure, progress, alone)


def _allow_many_files() -> None:
    """Every connection takes one, a stranger's too until its handshake fails: as many as this process may have."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _played(asked: PeerSettings, ready: Ready, insecure: bool, progress: Progress | None, alone: bool) -> Run:
    simulation, exchange = ready.simulation, ready.exchange
    folder = _opened_folder(asked, ready)
    with (
        _logged(folder.path / "peer.log"),
        handshakes.counted(exchange.mail.refusals) if alone else nullcontext(),
        _joined(exchange, _address(asked, insecure), ready.authority),
        torch_settings(ready.config, ready.base.resolved, ready.device),
        stopping(),
    ):
        _log.info("listens on %s, after round %d", ", ".join(asked.peer.listen) or "no address", simulation.round)
        if (left := exchange.mail.identity.ends - datetime.now(UTC)) < _SOON:
            _log.warning("the certificate of %s ends in %d days", asked.peer.name, left.days)
        _rounds(simulation, exchange, folder, asked, progress)
        summary, scores = simulation.result()
        folder.finish(simulation, {**summary, "run": str(folder.path)}, scores)
        exchange.announcer.announce(finished=True)
        _log.info("has finished, and stays until the others have its last model")
        _linger(exchange, asked.peer.deadline)
    return Run(folder.path)


def _address(asked: PeerSettings, insecure: bool) -> Address:
    peer = asked.peer
    return Address(
        peer.name,
        peer.federation,
        tuple(peer.allow),
        tuple(peer.listen),
        tuple(peer.connect),
        peer.mesh == "full",
        peer.lease,
        None if insecure else (asked.path(peer.ca), asked.certificate, asked.key),
    )


@contextmanager
def _logged(path: Path) -> Iterator[None]:
    with writing(path):
        handler = log_to(path)
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        told = str(error) if isinstance(error, UserError) else repr(error)
        _log.error("stops: %s", "asked to" if isinstance(error, KeyboardInterrupt) else told)
        raise
    finally:
        _log.removeHandler(handler)
        handler.close()


@contextmanager
def _joined(exchange: FieldExchange, address: Address, authority: Authority) -> Iterator[None]:
    """Links open, serving and listening; closed at the end."""
    mail, members, plan = exchange.mail, exchange.members, exchange.announcer.plan
    others: set[str] = set()  # who plays something else: told once of each

    def heard(sealed: bytes) -> None:
        name = ""
        try:
            name, status = opened(sealed, authority, address.federation, len(address.allowed))
            news = members.update(name, status)
        except Refused as error:
            mail.refusals.add(error, name)
            return
        if news and status.plan != plan and name not in others:
            others.add(name)
            _log.warning("%s plays %s, and this peer %s: their files differ", name, status.plan, plan)
        if news and not address.full:  # for those further away
            links.tell(sealed)

    def came(name: str) -> None:
        _log.info("there is %s", name)
        members.came(name)
        exchange.announcer.soon()  # who has just come has heard nothing yet

    def went(name: str) -> None:
        _log.info("gone is %s", name)
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


def _opened_folder(asked: PeerSettings, ready: Ready) -> RunFolder:
    """A new state folder, or the old one and everything restored from it."""
    path = asked.state
    folder = RunFolder(path)
    if folder.begun:
        _check_config(path, Run(path).config, ready.config, asked.config)
        folder.check(ready.config, ready.base.task, data=False)  # a peer's data may grow
        folder.restore(ready.simulation)
        folder.write_config(ready.config)
        return folder
    folder = RunFolder.create(path, asked.peer.name)
    folder.describe(ready.config, ready.base.resolved, ready.base.task, ready.device)
    return folder


def _check_config(path: Path, stored: Config, now: Config, asked: Config) -> None:
    """A peer may be given more rounds and other peers, and its file of data may move; all else stays."""
    for key, (before, after) in differing(stored, now).items():
        open_then = key.startswith("method.") and before is None  # a state may be older than what writes t1 down
        derived = open_then and key.removeprefix("method.") not in asked.method.keys
        if key not in ("rounds", "peers", "evaluate", "data.name") and not derived:
            raise UserError(f"{key} = {after!r}, but {path} holds a state with {before!r}: name another state folder")
    if now.rounds < stored.rounds:
        raise UserError(f"rounds = {now.rounds}, but {path} holds a state with {stored.rounds}: they cannot be undone")


def _rounds(
    simulation: Simulation, exchange: FieldExchange, folder: RunFolder, asked: PeerSettings, progress: Progress | None
) -> None:
    """Whoever has missed rounds, or is so slow that its models are too old for others, goes on at theirs."""
    last, behind, diverged = simulation.problem.rounds, 0, False

    def tell(line: dict[str, Any]) -> None:
        write_json(folder.path / "status.json", _status(simulation, exchange, asked, line))

    exchange.come_together(simulation.round, waiting=lambda: tell({}))
    while not simulation.finished:
        simulation.round = exchange.keep_pace(simulation.round, last, behind)
        behind = last if exchange.pace.lockstep else exchange.pace.behind
        line = simulation.step()
        _report_divergence(line, was=diverged)
        diverged = bool(line["diverged"])
        folder.append(line)
        folder.save(simulation)
        tell(line)
        if progress is not None:
            progress({**line, "rounds": asked.config.rounds})


def _report_divergence(line: dict[str, Any], was: bool) -> None:
    """Log that this peer's model has diverged, or that it has recovered. was: it had diverged in the round before."""
    if line["diverged"] and not was:
        _log.warning(
            "the model of this peer diverged in round %d (NaN or infinity) and recovers only by merging; "
            "a lower training.lr may help",
            line["round"],
        )
    elif was and not line["diverged"]:
        _log.info("the model of this peer recovered in round %d", line["round"])


def _status(
    simulation: Simulation, exchange: FieldExchange, asked: PeerSettings, line: dict[str, Any]
) -> dict[str, Any]:
    """What ``homophily status`` shows."""
    reachable = exchange.members.hops()
    away = {name for name in asked.peer.allow if name not in reachable} - {asked.peer.name}
    return {
        "peer": asked.peer.name,
        "federation": asked.peer.federation,
        "time": time.time(),
        "round": simulation.round,
        "rounds": simulation.problem.rounds,
        "accuracy": line.get("accuracy", line.get("mse")),
        "neighbours": sorted(exchange.mail.links.neighbours()),
        "reachable": reachable,
        "merged": line.get("merged", []),
        "similarities": line.get("similarities", {}),
        "unreachable": sorted(away.union(line.get("unreachable", []))),
        "bytes_received": exchange.traffic.bytes,
        "refused": exchange.mail.refusals.counts(),
    }


def _linger(exchange: FieldExchange, seconds: float) -> None:
    """Others may still want the last model: stay until everyone has finished, or nobody gets any further."""
    members = exchange.members

    def far() -> list[tuple[str, int]]:
        return [(name, members.status(name).merged) for name in members.alive() if not members.status(name).finished]

    before: list[tuple[str, int]] | None = None
    while before != (before := far()) and not members.wait(lambda: not far(), seconds):
        pass


@contextmanager
def stopping() -> Iterator[None]:
    """SIGTERM is like Ctrl-C: the state folder holds every round that is over."""

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
