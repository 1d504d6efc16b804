"""Callbacks follow the runs that other processes play: each round once, and the end once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import homophily
from homophily import Callback, UserError
from homophily.experiments.callbacks import RunHandle
from homophily.experiments.queue import RunRequest
from homophily.experiments.sharing import Followers

SMALL: dict[str, Any] = {"peers": 4, "rounds": 3, "data": {"train": 6, "test": 10, "angles": [0, 180]}}


class Diary(Callback):
    """Notes every call, and adds a metric."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_start(self, run: RunHandle) -> None:
        self.calls.append("start")

    def on_round(self, run: RunHandle, metrics: dict[str, Any]) -> None:
        metrics["mine"] = len(self.calls)
        self.calls.append(f"round {metrics['round']}")

    def on_end(self, run: RunHandle, summary: dict[str, Any]) -> None:
        self.calls.append(f"end after {summary['rounds']}")


def request(run: homophily.Run, diary: Diary) -> RunRequest:
    return RunRequest(run.config, run.path, lambda: [diary])


def test_the_end_of_a_followed_run_is_reported_once(tmp_path: Path) -> None:
    """The metrics of the run have what a callback in the other process added."""
    run = homophily.run(SMALL, callbacks=[Diary()], out=tmp_path / "run", device="cpu")
    (run.path / "summary.json").rename(tmp_path / "summary.json")
    followers, diary = Followers(), Diary()
    followers.look([request(run, diary)])
    so_far = ["start", "round 1", "round 2", "round 3"]
    assert diary.calls == so_far
    (tmp_path / "summary.json").rename(run.path / "summary.json")
    for _ in range(2):
        followers.look([request(run, diary)])
        assert diary.calls == [*so_far, "end after 3"]


class Reader(Callback):
    """Reads a model in each round."""

    def on_round(self, run: RunHandle, metrics: dict[str, Any]) -> None:
        run.state_dict(0)


def test_models_of_a_followed_run_are_read_only_after_its_end(tmp_path: Path) -> None:
    run = homophily.run(SMALL, out=tmp_path / "run", device="cpu")
    asked = RunRequest(run.config, run.path, lambda: [Reader()])
    Followers().look([asked])
    (run.path / "summary.json").unlink()
    with pytest.raises(UserError, match="its models cannot be read before it has finished"):
        Followers().look([asked])
