"""Many runs in order: started or resumed, and on a GPU side by side if they do the same work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from homophily.cluster.joining import joined
from homophily.config.schema import Config
from homophily.experiments.callbacks import Callback, Callbacks
from homophily.experiments.runner import (
    ActiveRun,
    RoundPlayer,
    again,
    begin,
    chosen_device,
    plan_of,
    torch_settings,
)
from homophily.methods import Method
from homophily.methods.server import ServerMethod
from homophily.runs.reader import Run
from homophily.runs.writer import RunWriter
from homophily.simulation.setup import prepare
from homophily.simulation.side_by_side import runs_at_once
from homophily.simulation.training_setup import SetupCache
from homophily.simulation.user_objects import UserObjects
from homophily.training.resources import ExecutionPlan


class Paused(Exception):
    """Raised before a round to stop the runs in progress; they go on later."""


@dataclass(frozen=True)
class RunRequest:
    """A run to start, or to resume after its last checkpoint.

    callbacks: makes, when the run begins, what watches it; method: an object in place of the config's name.
    """

    config: Config
    out: Path
    callbacks: Callable[[], Sequence[Callback]] = tuple
    method: Method | ServerMethod | None = None

    @property
    def group(self) -> tuple[str, int, str | None]:
        """A key: runs with an equal one do the same work, from the same round on, on the same device."""
        writer = RunWriter(self.out)
        return work(self.config), writer.last_round, Run(self.out).device if writer.begun else None

    def active(
        self, objects: UserObjects, device: torch.device, cache: SetupCache, begun: bool
    ) -> tuple[ActiveRun, ExecutionPlan]:
        """The run before its next round, and how it computes. begun: whether it is resumed."""
        shards, objects = joined(device), replace(objects, method=self.method)
        callbacks = Callbacks(self.callbacks() if shards.rank == 0 else ())
        if not begun:
            experiment, config, plan = prepare(self.config, objects, device, cache=cache, shards=shards)
            return begin(experiment, config, plan, objects, self.out, callbacks), plan
        stopped = Run(self.out)
        experiment, config, plan = prepare(stopped.config, objects, device, plan_of(stopped), cache, shards)
        resumed = again(experiment, config, objects, RunWriter(self.out), callbacks)
        if shards.rank == 0:
            resumed.writer.write_config(config)  # its time says when this process went on
        return resumed, plan


def execute(
    requests: Iterable[RunRequest],
    objects: UserObjects,
    device: torch.device,
    cache: SetupCache | None = None,
    before_round: Callable[[], None] = lambda: None,
    alone: bool = False,
) -> Iterator[Run]:
    """The finished runs, in their order; on a GPU, runs that follow one another side by side if they do the same work.

    What was stopped goes on, on the device on which it began. before_round: called before each round; if it raises
    Paused, the runs in progress get a checkpoint and no more runs follow. alone: whether to play one run at a time, on
    a GPU too, as several ranks always do.
    """
    cache, shards = SetupCache() if cache is None else cache, joined(device)
    waiting = _Peekable(iter(requests))
    while (first := waiting.peek()) is not None:
        group: list[ActiveRun] = []
        room, kind = 1, tuple(shards.agreed(partial(_group_of, first)))  # rank 0 may change the folder from here on
        begun = kind[-1] is not None
        where = chosen_device(kind[-1]) if begun else device
        while len(group) < room and (one := waiting.peek()) is not None and (one is first or one.group == kind):
            waiting.take()
            active, plan = one.active(objects, where, cache, begun)
            if where.type == "cpu":  # runs follow one another there
                cache.forget()
            if not group:
                room = 1 if alone or shards.size > 1 else runs_at_once(active.state.experiment, plan.engine, where)
                settings = torch_settings(active.config, plan, where)
            group.append(active)
        with settings:
            try:
                finished = RoundPlayer(group).play(before_round)
            except Paused:
                for run in group:
                    if not run.state.ended:  # a checkpoint does not say so: its last rounds are played again
                        run.save()
                return
            yield from finished


def _group_of(request: RunRequest) -> tuple[str, int, str | None]:
    return request.group


class _Peekable:
    """The next request; the iterator is not advanced earlier than needed."""

    def __init__(self, source: Iterator[RunRequest]) -> None:
        self._source = source
        self._next: RunRequest | None = None

    def peek(self) -> RunRequest | None:
        self._next = self._next or next(self._source, None)
        return self._next

    def take(self) -> None:
        self._next = None


def work(config: Config) -> str:
    """A key: runs with an equal one train the same network for the same time on the same amount of data."""
    return config.model_dump_json(
        include={"peers", "rounds", "engine", "precision", "compile", "data", "model", "training", "headline"}
    )
