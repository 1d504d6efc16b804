"""What a run would take on several ranks: memory, seconds per round and the bottleneck, before it is started.

A few rounds of a small federation with the same config are measured on this machine. Work is proportional to the number
of peers, so the times are scaled up to the peers of a rank; bytes follow from formulae (docs/scale.md).
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from math import exp
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from homophily.cluster.joining import joined
from homophily.config.schema import Config
from homophily.errors import UserError
from homophily.experiments.callbacks import Callbacks
from homophily.experiments.runner import begin, chosen_device, torch_settings
from homophily.fingerprints.fingerprint import format_of
from homophily.simulation.communication import table_bytes
from homophily.simulation.exchange import Exchange, PeerExchange
from homophily.simulation.rounds import OneRun, play_round
from homophily.simulation.server_exchange import ServerExchange
from homophily.simulation.setup import decision_bytes, prepare
from homophily.simulation.user_objects import UserObjects

MEASURED_PEERS = 2000  # of the federation that is measured, at most
MEASURED_ROUNDS = 3  # the first of which is not counted
PARTS = ("train", "score", "compare", "decide", "merge", "record")
FINGERPRINTS = "fingerprints"  # a part of the first round
FETCH = "fetch"  # the part in which a rank gets models of other ranks
_COPIES = 4  # of a rank's models: the initial, the current, those before training, and one of the computation
_PRINT_COPIES = 3  # of fingerprints while they are made: in pieces, together, and checked
Now = Callable[[], float]  # a clock, in seconds
_LINK = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT])bit", re.IGNORECASE)
_UNITS = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_FACTOR = 10  # a run with more than so many times the measured peers is an extrapolation


@dataclass(frozen=True)
class Plan:
    """What a round of a run takes, by a measurement on this machine and by formulae."""

    peers: int
    ranks: int
    contacts: int  # of a peer, at most
    parameters: int  # of a model
    measured_peers: int
    extrapolated: bool  # the run is much larger than what was measured, or on ranks, of which one was measured
    memory_per_rank: dict[str, int]  # bytes, by what they hold
    seconds_per_round: dict[str, float]  # by part, of the slowest rank
    fingerprint_seconds: float  # once, before the first round
    network_bytes_per_rank: int  # that a rank receives from other ranks in a round
    bytes_per_round: float  # that peers send to each other, wherever they are
    bottleneck: str
    device: str

    @property
    def memory(self) -> int:
        """Bytes per rank."""
        return sum(self.memory_per_rank.values())

    @property
    def seconds(self) -> float:
        """Per round."""
        return sum(self.seconds_per_round.values())

    def as_dict(self) -> dict[str, Any]:
        """What ``homophily plan --json`` prints."""
        return {**asdict(self), "memory": self.memory, "seconds": self.seconds}


def bits_per_second(link: str) -> float:
    """Return the speed of a link such as "400Gbit"."""
    found = _LINK.fullmatch(link.strip())
    if found is None or float(found[1]) == 0:
        raise UserError(f"--link {link}: must be a speed such as 10Gbit or 400Gbit")
    return float(found[1]) * _UNITS[found[2].upper()]


def plan(config: Config, ranks: int, link: str, device: str = "auto", now: Now = time.perf_counter) -> Plan:
    """Measure a small federation with this config and scale it up to the config's peers on ``ranks`` ranks.

    link: the speed at which a rank receives, such as "400Gbit"; now: the clock that is read.
    """
    if ranks < 1:
        raise UserError(f"--ranks {ranks}: must be at least 1")
    speed = bits_per_second(link)
    if config.peers is None:  # own data has a number of peers, and cannot be measured with fewer
        peers = small = prepare(config, UserObjects(), chosen_device(device))[0].task.data.peers
    else:
        peers, small = config.peers, min(config.peers, MEASURED_PEERS)
    if ranks > peers:
        raise UserError(f"--ranks {ranks}: must be at most peers, which is {peers}")
    with tempfile.TemporaryDirectory() as folder:
        measured = measured_parts(_smaller(config, small), device, Path(folder) / "run", now=now)
    contacts = peers if config.contacts == "all" else int(config.contacts)
    own = -(-peers // ranks)
    scale, wider = own / small, contacts / measured.contacts
    seconds = {part: scale * measured.seconds[part] * (wider if part == "decide" else 1.0) for part in PARTS}
    rows = own * measured.row_bytes
    received = int(measured.messages.received(peers, ranks, contacts))
    seconds["network"] = 8 * received / speed
    memory = {
        "models": _COPIES * rows,
        "data": int(own * measured.data_bytes),
        "decisions": own * contacts * measured.decision_bytes,
        FINGERPRINTS: _PRINT_COPIES * own * measured.fingerprint_bytes,
        "models of other ranks": received,
    }
    return Plan(
        peers, ranks, contacts, measured.parameters, small, ranks > 1 or peers > _FACTOR * small, memory, seconds,
        scale * measured.first[FINGERPRINTS], received, peers * measured.models_per_round * measured.model_bytes,
        max(seconds, key=lambda part: seconds[part]), measured.device,
    )  # fmt: skip


def _smaller(config: Config, peers: int) -> Config:
    """The config with fewer peers, which know at most all of them."""
    contacts = config.contacts if config.contacts == "all" else min(int(config.contacts), peers - 1)
    return config.model_copy(update={"peers": peers, "contacts": contacts, "tracker": None})


def _distinct_remote(peers: int, own: int, models: float) -> float:
    """How many models of other ranks a rank receives in a round, each once, if its peers ask for random ones."""
    return (peers - own) * (1.0 - exp(-own * models / peers))


@dataclass(frozen=True)
class Messages:
    """What ranks send to each other in a round."""

    models: float  # that a peer asks others for
    row: int  # bytes of a model
    rows: int = 1  # that travel for each model: it, and what the metric compares it with
    tables: int = 0  # that peers share with their models
    visits: bool = False  # models also travel to the data that they are tested on
    sums: int = 0  # bytes of the sums of a server

    def received(self, peers: int, ranks: int, contacts: int) -> float:
        """Bytes that a rank receives, if its peers ask for random ones."""
        if ranks == 1:
            return 0.0
        own = -(-peers // ranks)
        each = self.rows * self.row + (table_bytes(contacts, self.tables) if self.tables else 0)
        guests = own * (ranks - 1) * (1.0 - (1.0 - 1.0 / ranks) ** self.models) if self.visits else 0.0
        return _distinct_remote(peers, own, self.models) * each + guests * self.row + self.sums

    @classmethod
    def of(cls, exchange: Exchange, models: float, row: int) -> Messages:
        """models: that a peer receives in a round; row: bytes of a model."""
        if isinstance(exchange, ServerExchange):  # sums pass from rank to rank, and the last sends them to all
            return cls(0.0, row, sums=2 * torch.float64.itemsize * exchange.models.numel())
        assert isinstance(exchange, PeerExchange)
        tables = len(exchange.method.shares)
        if exchange.evaluator is None:
            return cls(models, row, tables=tables)
        cost = exchange.evaluator.cost
        return cls(models / cost.models, row, 1 + cost.updates + cost.displacement, tables, cost.models > 1)


@dataclass(frozen=True)
class Measured:
    """What the first rounds of a run took."""

    build: float  # seconds, before the first round
    first: Mapping[str, float]  # seconds of the first round, by part; fingerprints are one of its parts
    seconds: Mapping[str, float]  # of a later round, by part
    contacts: int
    parameters: int
    row_bytes: int  # of a model as a rank stores it
    model_bytes: float  # of a model as peers send it
    data_bytes: float  # of a peer's samples
    decision_bytes: int  # of a contact
    fingerprint_bytes: int  # of a peer in memory; 0: the method uses none
    models_per_round: float  # that a peer receives, mean over all rounds of the run
    messages: Messages  # between ranks
    models_in_last_round: float  # the same in the last round that was measured
    bytes_per_round: float  # that all peers sent in that round
    rank_bytes: int  # that this rank sent to other ranks in that round
    device: str


class _Clock:
    """Adds up the seconds of calls, by part; a call inside another call counts for the inner one only."""

    def __init__(self, device: torch.device, now: Now) -> None:
        self._device, self._read, self._inner = device, now, 0.0
        self.seconds = dict.fromkeys((*PARTS, FINGERPRINTS, FETCH), 0.0)

    def restart(self) -> dict[str, float]:
        """Begin anew; returns the seconds so far."""
        before, self.seconds = self.seconds, dict.fromkeys(self.seconds, 0.0)
        return before

    def of(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **keys: Any) -> Any:
            outer, self._inner = self._inner, 0.0
            began = self._now()
            try:
                return function(*args, **keys)
            finally:
                took = self._now() - began
                self.seconds[part] += took - self._inner
                self._inner = outer + took

        return timed

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return self._read()


class _TimedRun(OneRun):
    """A run whose computations are timed."""

    def __init__(self, run: Any, clock: _Clock) -> None:
        super().__init__(run)
        self.train = clock.of("train", self.train)  # type: ignore[method-assign]
        self.scores = clock.of("score", self.scores)  # type: ignore[method-assign]
        self.validation = clock.of("score", self.validation)  # type: ignore[method-assign]
        self.similarities = clock.of("compare", self.similarities)  # type: ignore[method-assign]
        self.merges = clock.of("merge", self.merges)  # type: ignore[method-assign]


def measured_parts(
    config: Config, device: str, folder: Path, results: bool = False, now: Now = time.perf_counter
) -> Measured:
    """Measure the first rounds of a run, which is written to ``folder``; the first is timed by itself.

    Under torchrun all ranks call it, and each measures its own part. results: whether to write models and scores too;
    now: the clock that is read.
    """
    chosen, objects = chosen_device(device), UserObjects()
    shards = joined(chosen)
    began = now()
    measured = config.model_copy(update={"rounds": max(config.rounds, MEASURED_ROUNDS)})  # a schedule ends later
    experiment, complete, execution = prepare(measured, objects, chosen, shards=shards)
    active = begin(experiment, complete, execution, objects, folder, Callbacks(()))
    build = now() - began
    clock, state, exchange = _Clock(chosen, now), active.state, experiment.exchange
    compute, step = _TimedRun(state, clock), clock.of("decide", play_round)
    log, first = clock.of("record", active.log), clock.seconds
    before, models, sent = 0.0, 0.0, 0
    if isinstance(exchange, PeerExchange):
        source = exchange.source
        source.fingerprints = clock.of(FINGERPRINTS, source.fingerprints)  # type: ignore[method-assign]
        source.fetch = clock.of(FETCH, source.fetch)  # type: ignore[method-assign]
    with torch_settings(complete, execution, chosen):
        for round in range(MEASURED_ROUNDS):
            if round == 1:
                first = clock.restart()
            before, models, sent = exchange.traffic.bytes, exchange.traffic.models_per_peer, shards.bytes
            (metrics,) = step({0: state}, compute).values()
            log(metrics)
        sent = shards.bytes - sent
        if results:
            active.finish(*state.result())
    layout, data, peers = experiment.task.layout, experiment.task.data, experiment.task.data.peers
    tables = [table for split in (data.train, data.test) for table in (split.x, split.y)]
    nominal = exchange.method.nominal(config.rounds) if isinstance(exchange, PeerExchange) else None
    received = exchange.traffic.models_per_peer
    models_per_round = received / MEASURED_ROUNDS if nominal is None else nominal / config.rounds
    row_bytes = layout.width * layout.dtype.itemsize
    return Measured(
        build=build,
        first=first,
        seconds={part: clock.seconds[part] / (MEASURED_ROUNDS - 1) for part in (*PARTS, FETCH)},
        contacts=peers if complete.contacts == "all" else int(complete.contacts),
        parameters=layout.width,
        row_bytes=row_bytes,
        model_bytes=layout.model_bytes,
        data_bytes=sum(table.nbytes for table in tables) / peers,
        decision_bytes=decision_bytes(exchange.method) if isinstance(exchange, PeerExchange) else 0,
        fingerprint_bytes=_fingerprint_bytes(exchange, data.train.count, peers),
        models_per_round=models_per_round,
        messages=Messages.of(exchange, models_per_round, row_bytes),
        models_in_last_round=received - models,
        bytes_per_round=exchange.traffic.bytes - before,
        rank_bytes=sent,
        device=str(chosen),
    )


def _fingerprint_bytes(exchange: Exchange, samples: Tensor, peers: int) -> int:
    """What the fingerprint of a peer takes in memory."""
    if not isinstance(exchange, PeerExchange) or not exchange.method.uses_fingerprints:
        return 0
    form = format_of(peers)
    return 4 * form.buckets * (1 + int(form.freedom(samples).max()))
