"""Several runs side by side: their peers train and are scored in one computation, since it is the same work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from homophily.config.schema import Config
from homophily.data.types import Split
from homophily.experiments.runner import Playing, Progress, again, begin, chosen_device, settings, written_down
from homophily.federation.rows import Federation
from homophily.runs.reader import Run, RunFolder
from homophily.simulation.evaluation import Scorer, Scores
from homophily.simulation.rounds import Problem
from homophily.simulation.setup import Given, Known, prepare
from homophily.simulation.together import Together
from homophily.training.engines import read_chain
from homophily.training.resources import Resolved, free_memory
from homophily.training.task import Joinable, Task

_WRITERS = 8  # of finished runs at a time


@dataclass(frozen=True)
class Wanted:
    """A run that is to be played, or to go on where it was stopped.

    progress: makes, when it begins, what is called with each of its rounds.
    """

    config: Config
    out: Path
    progress: Callable[[], Progress | None] | None = None

    @property
    def alike(self) -> tuple[str, int, str | None]:
        """Runs with the same of this do the same work, from the same round on, on the same device."""
        folder = RunFolder(self.out)
        return work(self.config), folder.round, Run(self.out).began_on()[0] if folder.begun else None

    def playing(self, given: Given, device: torch.device, known: Known) -> tuple[Playing, Resolved]:
        """The run before its next round, and what was resolved for it."""
        folder = RunFolder(self.out)
        told = self.progress() if self.progress is not None else None
        if not folder.begun:
            problem, config, resolved = prepare(self.config, given, device, known=known)
            return begin(problem, config, resolved, given, self.out, told), resolved
        stopped = Run(self.out)
        problem, config, resolved = prepare(stopped.config, given, device, stopped.began_on()[1], known)
        return again(problem, config, given, folder, told), resolved


def played(wanted: Iterable[Wanted], given: Given, device: torch.device, known: Known | None = None) -> Iterator[Run]:
    """The runs, in their order; on a GPU, runs that follow one another side by side where they do the same work.

    What was stopped goes on, on the device on which it began.
    """
    known = Known() if known is None else known
    waiting = _Peekable(iter(wanted))
    while (first := waiting.peek()) is not None:
        group: list[Playing] = []
        room, kind = 1, first.alike
        where = device if kind[-1] is None else chosen_device(kind[-1])
        while len(group) < room and (one := waiting.peek()) is not None and one.alike == kind:
            waiting.take()
            playing, resolved = one.playing(given, where, known)
            if where.type == "cpu":  # where runs are played one by one
                known.forget()
            if not group:
                room = runs_at_once(playing.simulation.problem, resolved.engine, where)
                setting = settings(playing.config, resolved, where)
            group.append(playing)
        with setting:
            yield from Sweep(group).play() if len(group) > 1 else [group[0].play()]


class _Peekable:
    """The next run that is wanted, asked for no earlier than it is needed."""

    def __init__(self, source: Iterator[Wanted]) -> None:
        self._source = source
        self._next: Wanted | None = None

    def peek(self) -> Wanted | None:
        self._next = self._next or next(self._source, None)
        return self._next

    def take(self) -> None:
        self._next = None


def work(config: Config) -> str:
    """Runs with the same of this train the same network for as long on as much data."""
    return config.model_dump_json(include={"peers", "rounds", "engine", "precision", "data", "model", "training"})


class Sweep:
    """Runs of one network, one schedule and equally many peers, which go from round to round together."""

    def __init__(self, playing: Sequence[Playing]) -> None:
        self.playing = playing
        problems = [one.simulation.problem for one in playing]
        engine, scorer = problems[0].engine, problems[0].scorer
        assert isinstance(engine, Joinable)
        self.task = joined([problem.task for problem in problems])
        self.engine = engine.on(self.task, self.task.data.peers)
        room = free_memory(self.task.ids.device) // 4 // _bytes(problems[0], scorer.samples)
        peers = max(scorer.peers, min(self.task.data.peers, room))
        self.scorer = Scorer(self.task, self.engine, peers, scorer.samples, scorer.extra)
        self.peers = problems[0].task.data.peers
        layout = problems[0].task.layout
        self.everyone = Federation(layout, torch.cat([one.simulation.federation.rows for one in playing]), {})
        for number, one in enumerate(playing):
            one.simulation.federation.rows = self.everyone.rows[self._rows(number)]
        self.together = Together(self.task, self.engine, self.everyone, len(playing))

    def _rows(self, number: int) -> slice:
        return slice(number * self.peers, (number + 1) * self.peers)

    def play(self) -> list[Run]:
        """All runs to their ends."""
        try:
            while going := [(number, one) for number, one in enumerate(self.playing) if not one.simulation.finished]:
                self._round(going)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(str(going[0][1].folder.path)) from None
        results = [one.simulation.result() for one in self.playing]
        with ThreadPoolExecutor(_WRITERS) as pool:  # a disk has time for more than one run's files
            return list(pool.map(lambda one, result: one.keep(*result), self.playing, results))

    def _round(self, going: list[tuple[int, Playing]]) -> None:
        began = time.perf_counter()
        training = [one.simulation.begin() + number * self.peers for number, one in going]
        self.engine.train(self.everyone.rows, {}, torch.cat(training), going[0][1].simulation.round)
        losses = self._validation_losses()
        scores = self._scores([number for number, one in going if one.simulation.trained(losses[number])])
        sick = self.everyone.sick  # not asked for yet: who decides without it need not wait for a GPU
        steps = {number: one.simulation.exchanging(sick[self._rows(number)]) for number, one in going}
        lines = self.together.play(steps, sick)
        sick = sick.cpu()
        merged = [n for n, one in going if one.simulation.exchanged(lines[n], sick[self._rows(n)])]
        scores |= self._scores(merged)
        took = (time.perf_counter() - began) / len(going)
        for _, one in going:
            one.simulation.seconds += took
        written_down({one: one.simulation.line(scores.get(number)) for number, one in going})

    def _validation_losses(self) -> Sequence[Tensor | None]:
        """Of the peers of each run; None where nobody stops early."""
        if not self.playing[0].simulation.problem.patience:
            return [None] * len(self.playing)
        return list(self.scorer.validation_loss(self.everyone).cpu().split(self.peers))

    def _scores(self, numbers: list[int]) -> dict[int, Scores]:
        """Of the runs that are to be scored, by number."""
        if not numbers:
            return {}
        found = self.scorer.test(self.everyone)
        return {number: found.of(self._rows(number)) for number in numbers}


def runs_at_once(problem: Problem, engine: str, device: torch.device) -> int:
    """How many runs like this one fit side by side: on a GPU as many as half of its free memory holds.

    A CPU has enough to do with one, and its results stay the same bits as those of a run alone.
    """
    if engine != "stacked" or device.type != "cuda":
        return 1
    each = 2 * _bytes(problem, problem.task.settings.batch)  # values and their gradients
    return max(1, free_memory(device) // 2 // (each * problem.task.data.peers))


def _bytes(problem: Problem, samples: int) -> int:
    """What the values of so many samples take for a peer, and its rows: models, copies and the optimiser's state."""
    task = problem.task
    chain = read_chain(task.module, task.layout, task.loss, task.data)
    assert not isinstance(chain, str)
    return task.layout.dtype.itemsize * (6 * task.layout.width + chain.values * samples)


def joined(tasks: Sequence[Task]) -> Task:
    """All peers of several tasks as one task. Data that several of them share is there once."""
    shares = [task.data for task in tasks]
    validations = [one.validation for one in shares if one.validation is not None]
    data = replace(
        shares[0],
        train=_joined([one.train for one in shares]),
        test=_joined([one.test for one in shares]),
        validation=_joined(validations) if validations else None,
        cluster=None,
    )
    return replace(tasks[0], data=data, seed=_cat([t.seed for t in tasks]), ids=_cat([t.ids for t in tasks]))


def _cat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(tensors))


def _joined(splits: Sequence[Split]) -> Split:
    unique = list({id(split.x): split for split in splits}.values())
    offset, at = {}, 0
    for split in unique:
        offset[id(split.x)] = at
        at += len(split.x)
    start = _cat([split.start + offset[id(split.x)] for split in splits])
    return Split(_cat([s.x for s in unique]), _cat([s.y for s in unique]), start, _cat([s.count for s in splits]))
