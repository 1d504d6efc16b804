"""Callbacks see every round, add metrics, stop a run, and go on with what they remembered."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import homophily
from homophily import Callback, UserError
from homophily.experiments.callbacks import Callbacks, RunHandle
from tests.callbacks import InterruptAt

SMALL: dict[str, Any] = {
    "peers": 4,
    "rounds": 4,
    "checkpoint": 1,
    "method": {"name": "random", "k": 2},
    "data": {"train": 6, "test": 10, "angles": [0, 180]},
}


class Diary(Callback):
    """Notes every call."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name, self.calls = name, calls

    def on_start(self, run: RunHandle) -> None:
        self.calls.append(f"{self.name} start after {run.round}")

    def on_round(self, run: RunHandle, metrics: dict[str, Any]) -> None:
        self.calls.append(f"{self.name} round {metrics['round']}")
        assert run.round == metrics["round"]

    def on_end(self, run: RunHandle, summary: dict[str, Any]) -> None:
        self.calls.append(f"{self.name} end after {summary['rounds']}")


class Counter(Callback):
    """Adds how many rounds it has seen, and remembers that."""

    def __init__(self, name: str = "seen") -> None:
        self.name, self.seen = name, 0

    def on_round(self, run: RunHandle, metrics: dict[str, Any]) -> None:
        self.seen += 1
        metrics[self.name] = self.seen

    def state(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def restore(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


class StopAfter(Callback):
    """Ends a run after a round."""

    def __init__(self, last: int) -> None:
        self.last = last

    def on_round(self, run: RunHandle, metrics: dict[str, Any]) -> None:
        if metrics["round"] == self.last:
            run.stop()


class OnRound(Callback):
    """Does something to the metrics."""

    def __init__(self, do: Any) -> None:
        self.do = do

    def on_round(self, run: RunHandle, metrics: dict[str, Any]) -> None:
        self.do(metrics)


def test_callbacks_are_called_in_order(tmp_path: Path) -> None:
    calls: list[str] = []
    both = [Diary("a", calls), Diary("b", calls)]
    homophily.run({**SMALL, "rounds": 2}, callbacks=both, out=tmp_path / "run")
    first = ["a start after 0", "b start after 0", "a round 1", "b round 1", "a round 2", "b round 2"]
    assert calls == [*first, "a end after 2", "b end after 2"]
    calls.clear()
    homophily.resume(tmp_path / "run", {"rounds": 3}, callbacks=both)
    assert calls == [
        "a start after 2", "b start after 2", "a round 3", "b round 3", "a end after 3", "b end after 3",
    ]  # fmt: skip


def test_a_callback_sees_the_run(tmp_path: Path) -> None:
    class Look(Callback):
        def on_start(self, run: RunHandle) -> None:
            assert run.path == tmp_path / "run"
            assert run.config.method.keys["k"] == 2
            self.first = run.state_dict(1)

        def on_end(self, run: RunHandle, summary: dict[str, Any]) -> None:
            self.last, self.summary = run.state_dict(1), summary
            with pytest.raises(UserError, match="peer 4: this run has peers 0 to 3"):
                run.state_dict(4)

    look = Look()
    found = homophily.run(SMALL, callbacks=[look], out=tmp_path / "run")
    assert look.summary == found.summary
    assert set(look.first) == set(look.last) == set(found.state_dict(1))
    assert all(torch.equal(tensor, look.last[name]) for name, tensor in found.state_dict(1).items())
    assert not all(torch.equal(tensor, look.last[name]) for name, tensor in look.first.items())


def test_all_methods_of_a_callback_are_called_in_one_thread(tmp_path: Path) -> None:
    """So that it may use what belongs to a thread, such as an sqlite3 connection."""
    threads: list[int] = []

    class Threads(Callback):
        def on_start(self, run: RunHandle) -> None:
            threads.append(threading.get_ident())

        def on_round(self, run: RunHandle, metrics: dict[str, Any]) -> None:
            threads.append(threading.get_ident())

        def on_end(self, run: RunHandle, summary: dict[str, Any]) -> None:
            threads.append(threading.get_ident())

    homophily.run({**SMALL, "rounds": 1}, callbacks=[Threads()], out=tmp_path / "run")
    assert threads == [threading.get_ident()] * 3


def test_added_metrics_are_stored_and_seen_by_the_next_callback(tmp_path: Path) -> None:
    def twice(metrics: dict[str, Any]) -> None:
        metrics["twice"] = {"of": 2 * metrics["seen"], "text": "°", "none": None, "nan": float("nan")}

    found = homophily.run(SMALL, callbacks=[Counter(), OnRound(twice)], out=tmp_path / "run")
    assert [line["seen"] for line in found.metrics()] == [1, 2, 3, 4]
    assert found.metrics()[2]["twice"] == {"of": 6, "text": "°", "none": None, "nan": None}
    assert "seen" not in found.summary


def test_a_run_with_callbacks_ends_like_one_without(tmp_path: Path) -> None:
    watched = homophily.run(SMALL, callbacks=[Counter()], out=tmp_path / "watched")
    alone = homophily.run(SMALL, out=tmp_path / "alone")
    assert watched.scores == alone.scores
    models = [(run.path / "models.safetensors").read_bytes() for run in (watched, alone)]
    assert models[0] == models[1]


@pytest.mark.parametrize(
    "change",
    [
        lambda metrics: metrics.update(accuracy=100.0),
        lambda metrics: metrics.pop("loss"),
        lambda metrics: metrics.clear(),
        lambda metrics: metrics.update(diverged=[]),
    ],
)
def test_metrics_of_the_round_cannot_be_changed(change: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="callback OnRound: on_round may add metrics, and must not change"):
        homophily.run(SMALL, callbacks=[OnRound(change)], out=tmp_path / "run")


def test_a_name_of_the_runs_own_metrics_cannot_be_added(tmp_path: Path) -> None:
    """Not even in a round that is not scored."""
    add = OnRound(lambda metrics: metrics.setdefault("accuracy", 100.0))
    with pytest.raises(UserError, match="callback OnRound: 'accuracy' is a name of the run's own metrics"):
        homophily.run({**SMALL, "evaluate": 2}, callbacks=[add], out=tmp_path / "run")


def test_what_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    add = OnRound(lambda metrics: metrics.update(mine=torch.ones(3)))
    with pytest.raises(UserError, match="callback OnRound: what it stores must be numbers, strings, lists or tables"):
        homophily.run(SMALL, callbacks=[add], out=tmp_path / "run")
    add = OnRound(lambda metrics: metrics.update(other=1, mine=torch.tensor(3.0)))
    with pytest.raises(UserError, match=r"tables, but 'mine' is not \(its method item\(\) returns a number\)"):
        homophily.run(SMALL, callbacks=[add], out=tmp_path / "named")

    class Listed(Callback):
        def state(self) -> dict[str, Any]:
            return [1]  # type: ignore[return-value]

    with pytest.raises(UserError, match="callback Listed: what it stores must be a table, not list"):
        homophily.run(SMALL, callbacks=[Listed()], out=tmp_path / "other")


@pytest.mark.parametrize("score", ["after-merge", "after-training"])
@pytest.mark.parametrize("evaluate", [1, 3])
def test_a_run_that_is_stopped_finishes_after_the_round(score: str, evaluate: int, tmp_path: Path) -> None:
    config = {**SMALL, "score": score, "evaluate": evaluate}
    found = homophily.run(config, callbacks=[StopAfter(2)], out=tmp_path / "run")
    assert found.finished
    assert found.summary["rounds"] == len(found.metrics()) == 2
    if evaluate == 1:
        assert found.summary["accuracy"] == found.metrics()[-1]["accuracy"]
        short = homophily.run({**config, "rounds": 2}, out=tmp_path / "short")
        assert found.scores == short.scores
        assert all(torch.equal(tensor, found.state_dict(3)[name]) for name, tensor in short.state_dict(3).items())


@pytest.mark.parametrize("score", ["after-merge", "after-training"])
def test_a_stopped_run_can_go_on(score: str, tmp_path: Path) -> None:
    config = {**SMALL, "score": score}
    homophily.run(config, callbacks=[StopAfter(2)], out=tmp_path / "run")
    found = homophily.resume(tmp_path / "run")
    whole = homophily.run(config, out=tmp_path / "whole")
    assert found.summary["rounds"] == 4
    assert found.scores == whole.scores
    assert [line["accuracy"] for line in found.metrics()] == [line["accuracy"] for line in whole.metrics()]


def test_the_state_of_callbacks_is_saved_and_restored(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        homophily.run(SMALL, callbacks=[Counter(), Counter("too"), InterruptAt(3)], out=tmp_path / "run")
    again = [Counter(), Counter("too"), Callback()]
    found = homophily.resume(tmp_path / "run", callbacks=again)
    assert [(line["seen"], line["too"]) for line in found.metrics()] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert again[0].seen == 4


def test_other_callbacks_than_before_begin_anew(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        homophily.run(SMALL, callbacks=[Counter(), InterruptAt(3)], out=tmp_path / "run")
    found = homophily.resume(tmp_path / "run", callbacks=[Counter()])
    assert [line["seen"] for line in found.metrics()] == [1, 2, 1, 2]


def test_an_interrupted_run_names_its_folder(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt, match="run"):
        homophily.run(SMALL, callbacks=[InterruptAt(1)], out=tmp_path / "run")
    assert not homophily.Run(tmp_path / "run").finished


def test_an_interrupted_callback_does_not_lose_the_metrics_of_its_round(tmp_path: Path) -> None:
    calls = [Counter(), InterruptAt(2), Counter("too")]
    simulation = homophily.Simulation(SMALL, callbacks=calls, out=tmp_path / "run")
    simulation.step()
    with pytest.raises(KeyboardInterrupt):
        simulation.step()
    lines = homophily.Run(tmp_path / "run").metrics()
    assert [(line["round"], line["seen"], line.get("too")) for line in lines] == [(1, 1, 1), (2, 2, None)]
    assert simulation.step()["round"] == 3  # the simulation itself goes on with the next round
    assert [line["round"] for line in simulation.result().metrics()] == [1, 2, 3, 4]


def test_a_resume_simulates_the_interrupted_round_again_and_has_it_once(tmp_path: Path) -> None:
    whole = homophily.run(SMALL, callbacks=[Counter()], out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        homophily.run(SMALL, callbacks=[Counter(), InterruptAt(3)], out=tmp_path / "run")
    assert [line["round"] for line in homophily.Run(tmp_path / "run").metrics()] == [1, 2, 3]
    found = homophily.resume(tmp_path / "run", callbacks=[Counter(), Callback()])
    assert [(line["round"], line["seen"]) for line in found.metrics()] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert found.scores == whole.scores


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (Counter(), "must be a list of homophily.Callback objects, not Counter"),
        ("progress", "must be a list of homophily.Callback objects, not str"),
        ([Counter], "must be a list of homophily.Callback objects, and one is the class Counter; call it to make one"),
        ([Counter(), print], "must be a list of homophily.Callback objects, and one is builtin_function_or_method"),
    ],
)
def test_callbacks_of_another_type_are_refused(given: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        homophily.run(SMALL, callbacks=given, out=tmp_path / "run")
    assert str(refused.value) == f"callbacks=: {sentence}"
    assert not (tmp_path / "run").exists()  # before anything is written


def test_callbacks_that_do_nothing_count_as_callbacks() -> None:
    assert not Callbacks([])
    assert Callbacks([Callback()])
    assert Callbacks([Callback(), Callback()]).state() == [{}, {}]
