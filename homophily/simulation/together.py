"""What several runs that are played side by side ask of their models, answered in one computation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from homophily.federation.merging import Gathering
from homophily.federation.rows import Federation
from homophily.simulation.asking import Comparison, Merging, Steps
from homophily.simulation.pairwise import Models
from homophily.training.task import Engine, Task

Wish = TypeVar("Wish")


class Together:
    """Runs of as many peers each, whose models are one federation and whose data is one task, one after the other."""

    def __init__(self, task: Task, engine: Engine, everyone: Federation, runs: int) -> None:
        self.task, self.engine, self.everyone, self.runs = task, engine, everyone, runs
        self.peers = len(everyone.rows) // runs

    def play(self, steps: dict[int, Steps], sick: Tensor) -> dict[int, dict[str, Any]]:
        """The exchanges of some runs, by number, to their ends; their lines of metrics. sick: [N] of all runs."""
        wishes: dict[int, Comparison | Merging] = {}
        lines = {}

        def go_on(number: int, answer: Tensor | None) -> None:
            try:
                wishes[number] = next(steps[number]) if answer is None else steps[number].send(answer)
            except StopIteration as end:
                lines[number] = end.value

        for number in steps:
            go_on(number, None)
        while wishes:  # who merges waits for those who compare, so that all merge together
            comparisons = {number: wish for number, wish in wishes.items() if isinstance(wish, Comparison)}
            merges = {number: wish for number, wish in wishes.items() if isinstance(wish, Merging)}
            answers = self._compared(comparisons) if comparisons else self._merged(merges, sick)
            for number, answer in answers.items():
                del wishes[number]
                go_on(number, answer)
        return lines

    def _compared(self, wishes: dict[int, Comparison]) -> dict[int, Tensor]:
        """Losses of all runs at once; other metrics may look at models of other times, and each run has its own."""
        answers: dict[int, Tensor] = {}
        for losses, those in _by(wishes, lambda wish: wish.measurer.needs.losses).items():
            if losses is None:
                answers |= {number: wish.alone() for number, wish in those.items()}
                continue
            measurer = next(iter(those.values())).measurer.on(self.task, self.engine)
            me = torch.cat([wish.me + number * self.peers for number, wish in those.items()])
            you = torch.cat([wish.you + number * self.peers for number, wish in those.items()])
            found = measurer.similarities(Models(self.everyone, None, None), me, you)
            parts = found.split([len(wish.me) for wish in those.values()])
            answers |= dict(zip(those, parts, strict=True))
        return answers

    def _merged(self, wishes: dict[int, Merging], sick: Tensor) -> dict[int, Tensor]:
        answers: dict[int, Tensor] = {}
        for how, those in _by(wishes, lambda wish: wish.how).items():
            gatherings = [those[number].gathering if number in those else None for number in range(self.runs)]
            gathering = Gathering.joined(gatherings, self.peers)
            merged = self.everyone.merge(gathering.without(sick.to(gathering.ids.device)), how).split(self.peers)
            answers |= {number: merged[number][:, : wish.gathering.ids.shape[1]] for number, wish in those.items()}
        return answers


def _by(wishes: dict[int, Wish], kind: Callable[[Wish], Any]) -> dict[Any, dict[int, Wish]]:
    """Wishes of one kind together."""
    found: dict[Any, dict[int, Wish]] = {}
    for number, wish in wishes.items():
        found.setdefault(kind(wish), {})[number] = wish
    return found
