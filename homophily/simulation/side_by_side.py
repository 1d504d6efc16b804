"""Several runs side by side: their peers are trained, compared, merged and scored in one computation.

It is the same work for each run, and one computation for all of them keeps a GPU busy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from homophily.data.types import Split
from homophily.federation.merging import MergeGroup
from homophily.federation.rows import Federation
from homophily.simulation.evaluation import Scorer, Scores
from homophily.simulation.exchange import MergeRequest, SimilarityRequest
from homophily.simulation.rounds import Experiment, RunState
from homophily.simulation.sources import LocalModels
from homophily.training.engines import read_chain
from homophily.training.resources import free_memory
from homophily.training.task import Joinable, Task

Request = TypeVar("Request")


class SideBySide:
    """Runs of one network, one schedule and equally many peers, whose models become rows of one matrix."""

    def __init__(self, runs: Sequence[RunState]) -> None:
        first = runs[0].experiment
        assert isinstance(first.engine, Joinable)
        self.patience, self.stop_on = first.patience, first.stop_on
        self.runs, self.peers = len(runs), first.task.data.peers
        self.task = joined([run.experiment.engine.task for run in runs])
        self.engine = first.engine.on(self.task, self.task.data.peers)
        scorer = first.scorer
        room = free_memory(self.task.ids.device) // 4 // _bytes(first, scorer.samples)
        peers = max(scorer.peers, min(self.task.data.peers, room))
        self.scorer = Scorer(self.task, self.engine, peers, scorer.samples, scorer.extra, scorer.metric)
        self.everyone = Federation(first.task.layout, torch.cat([run.federation.rows for run in runs]), {})
        for number, run in enumerate(runs):
            run.federation.rows = self.everyone.rows[self._rows(number)]

    def _rows(self, number: int) -> slice:
        return slice(number * self.peers, (number + 1) * self.peers)

    def train(self, peers: Mapping[int, Tensor], round: int) -> None:
        everyone = torch.cat([mine + number * self.peers for number, mine in peers.items()])
        self.engine.train(self.everyone.rows, {}, everyone, round)

    def validation(self) -> Mapping[int, Tensor | None]:
        if not self.patience:
            return dict.fromkeys(range(self.runs))
        return dict(enumerate(self.scorer.validation(self.everyone, self.stop_on).cpu().split(self.peers)))

    def scores(self, runs: Sequence[int]) -> dict[int, Scores]:
        if not runs:
            return {}
        found = self.scorer.test(self.everyone)
        return {number: found.of(self._rows(number)) for number in runs}

    def diverged(self) -> Mapping[int, Tensor]:
        self._diverged = self.everyone.diverged
        return {number: self._diverged[self._rows(number)] for number in range(self.runs)}

    def similarities(self, requests: Mapping[int, SimilarityRequest]) -> dict[int, Tensor]:
        """Losses of all runs at once; other metrics may compare models of other times, which each run has itself."""
        answers: dict[int, Tensor] = {}
        for metric, those in _by(requests, lambda request: request.evaluator.losses_by).items():
            if metric is None:
                answers |= {number: request.compute() for number, request in those.items()}
                continue
            first = next(iter(those.values()))
            evaluator = first.evaluator.on(self.task, self.engine)
            me = torch.cat([request.me + number * self.peers for number, request in those.items()])
            you = torch.cat([request.you + number * self.peers for number, request in those.items()])
            found = evaluator.similarities(self._models(first.models), me, you)
            answers |= dict(zip(those, found.split([len(request.me) for request in those.values()]), strict=True))
        return answers

    def _models(self, one: LocalModels) -> LocalModels:
        """The models of all runs, for losses, which are of the models as they are now."""
        return replace(one, rows=self.everyone.rows, kept=self.everyone.kept, before=None, start=None)

    def merges(self, requests: Mapping[int, MergeRequest]) -> dict[int, Tensor]:
        answers: dict[int, Tensor] = {}
        for how, those in _by(requests, lambda request: request.how).items():
            groups = [those[number].group if number in those else None for number in range(self.runs)]
            group = MergeGroup.joined(groups, self.peers)
            group = group.without(self._diverged.to(group.ids.device))
            merged = self.everyone.merge(group, how, self.everyone.rows).split(self.peers)
            answers |= {number: merged[number][:, : one.group.ids.shape[1]] for number, one in those.items()}
        return answers


def _by(requests: Mapping[int, Request], kind: Callable[[Request], Any]) -> dict[Any, dict[int, Request]]:
    """Requests of one kind together."""
    found: dict[Any, dict[int, Request]] = {}
    for number, request in requests.items():
        found.setdefault(kind(request), {})[number] = request
    return found


def runs_at_once(experiment: Experiment, engine: str, device: torch.device) -> int:
    """How many runs like this one fit side by side: on a GPU as many as half of its free memory holds.

    A CPU has enough to do with one, and its results stay the same bits as those of a run alone.
    """
    if engine != "stacked" or device.type != "cuda":
        return 1
    each = 2 * _bytes(experiment, experiment.task.settings.batch)  # values and their gradients
    return max(1, free_memory(device) // 2 // (each * experiment.task.data.peers))


def _bytes(experiment: Experiment, samples: int) -> int:
    """What the values of so many samples take for a peer, and its rows: models, copies and the optimiser's state."""
    task = experiment.engine.task
    chain = read_chain(task.module, task.layout, task.loss, task.data)
    assert not isinstance(chain, str)
    return task.layout.dtype.itemsize * (6 * task.layout.width + chain.values * samples)


def joined(tasks: Sequence[Task]) -> Task:
    """All peers of several tasks as one task. Data that several of them share is there once."""
    parts = [task.data for task in tasks]
    validations = [one.validation for one in parts if one.validation is not None]
    data = replace(
        parts[0],
        train=_joined([one.train for one in parts]),
        test=_joined([one.test for one in parts]),
        validation=_joined(validations) if validations else None,
        cluster=None,
    )
    return replace(
        tasks[0],
        data=data,
        seed=_cat([task.seed for task in tasks]),
        ids=_cat([task.ids for task in tasks]),
        lr_by_peer=_cat_if_any([task.lr_by_peer for task in tasks]),
        epochs_by_peer=_cat_if_any([task.epochs_by_peer for task in tasks]),
    )


def _cat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(tensors))


def _cat_if_any(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """The tensors of all tasks, which have them all or none: they train with the same settings."""
    found = [tensor for tensor in tensors if tensor is not None]
    return _cat(found) if found else None


def _joined(splits: Sequence[Split]) -> Split:
    unique = list({id(split.x): split for split in splits}.values())
    offset, at = {}, 0
    for split in unique:
        offset[id(split.x)] = at
        at += len(split.x)
    start = _cat([split.start + offset[id(split.x)] for split in splits])
    return Split(_cat([s.x for s in unique]), _cat([s.y for s in unique]), start, _cat([s.count for s in splits]))
