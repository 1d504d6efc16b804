"""Callbacks follow the runs that other processes play: each round once, and the end once."""

from __future__ import annotations

import json
from collections.abc import Sequence
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


@pytest.fixture
def begun(tmp_path: Path) -> homophily.Run:
    """A run without a round."""
    run = homophily.run({**SMALL, "rounds": 1}, out=tmp_path / "run", device="cpu")
    (run.path / "summary.json").unlink()
    return run


def write_rounds(run: homophily.Run, rounds: Sequence[int], seconds: Sequence[float]) -> None:
    lines = [json.dumps({"round": round, "seconds": one}) + "\n" for round, one in zip(rounds, seconds, strict=True)]
    (run.path / "metrics.jsonl").write_text("".join(lines))


@pytest.mark.parametrize("after", [1.5, 1.234567, 5])
def test_a_followed_run_may_be_cut_and_resumed_between_two_looks(begun: homophily.Run, after: float) -> None:
    """The lines that the resumed run writes again are as long as before, longer, or shorter."""
    followers, diary = Followers(), Diary()
    write_rounds(begun, range(1, 6), [1.5] * 5)
    followers.look([request(begun, diary)])
    write_rounds(begun, range(1, 10), [1.5, 1.5] + [after] * 7)
    followers.look([request(begun, diary)])
    assert diary.calls == ["start", *(f"round {i}" for i in range(1, 10))]


def test_a_line_of_a_followed_run_that_is_being_rewritten_is_read_again(begun: homophily.Run) -> None:
    followers, diary = Followers(), Diary()
    (begun.path / "metrics.jsonl").write_text('{"round": 1}\n{"rou{"round": 2}\n')
    followers.look([request(begun, diary)])
    assert diary.calls == []
    write_rounds(begun, [1, 2], [1.5, 1.5])
    followers.look([request(begun, diary)])
    assert diary.calls == ["start", "round 1", "round 2"]


def test_no_round_is_missed_if_a_resumed_run_ends_a_line_at_the_same_byte(begun: homophily.Run) -> None:
    followers, diary = Followers(), Diary()
    metrics = begun.path / "metrics.jsonl"
    write_rounds(begun, [1, 2, 3], [1.5] * 3)
    first, second, third = metrics.read_text().splitlines()
    metrics.write_text(f"{first}\n{second} {' ' * len(third)}\n")
    followers.look([request(begun, diary)])
    write_rounds(begun, [1, 2, 3, 4], [1.5] * 4)
    followers.look([request(begun, diary)])
    assert diary.calls == ["start", "round 1", "round 2", "round 3", "round 4"]
