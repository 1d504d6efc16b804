"""Callbacks that several tests use."""

from __future__ import annotations

from typing import Any

from homophily.experiments.callbacks import Callback, RunHandle


class InterruptAt(Callback):
    """Interrupts a run in a round, as Ctrl-C does."""

    def __init__(self, round: int) -> None:
        self._round = round

    def on_round(self, run: RunHandle, metrics: dict[str, Any]) -> None:
        if metrics["round"] == self._round:
            raise KeyboardInterrupt


class Rounds(Callback):
    """Records the rounds of all runs that it is given to."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_round(self, run: RunHandle, metrics: dict[str, Any]) -> None:
        self.seen.append(metrics["round"])
