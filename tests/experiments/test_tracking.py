"""Trackers of a config: which are accepted, own ones, and one that fails."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import pytest
from pydantic import Field

import homophily
from homophily import TrackedRun, Tracker, TrackerWarning, UserError
from homophily.simulation.configuration import load
from tests.callbacks import InterruptAt
from tests.processes import Processes

SMALL: dict[str, Any] = {
    "peers": 4,
    "rounds": 4,
    "checkpoint": 1,
    "method": {"name": "random", "k": 2},
    "data": {"train": 6, "test": 10, "angles": [0, 180]},
}
CALLS: list[Any] = []


class Own(Tracker):
    """Notes every call, and fails in a round."""

    def __init__(self, fails: Annotated[int, Field(ge=0)] = 0) -> None:
        self.fails = fails

    def open(self, run: TrackedRun, identity: dict[str, Any] | None) -> dict[str, Any]:
        CALLS.append((run.name, run.logged, identity, run.parameters["method.k"]))
        return {"number": 7}

    def log(self, round: int, values: Mapping[str, float]) -> None:
        if round == self.fails:
            raise ConnectionError("the server is away")
        CALLS.append(round)

    def finish(self, summary: Mapping[str, float | str]) -> None:
        CALLS.append(("end", summary["rounds"]))


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


OWN = f"{__name__}:Own"


def test_an_own_tracker_sees_the_run_and_continues(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        homophily.run({**SMALL, "tracker": OWN}, callbacks=[InterruptAt(3)], out=tmp_path / "run")
    assert CALLS == [("run", 0, None, 2), 1, 2]
    CALLS.clear()
    homophily.resume(tmp_path / "run")
    assert CALLS == [("run", 2, {"number": 7}, 2), 3, 4, ("end", 4)]
    CALLS.clear()
    homophily.resume(tmp_path / "run", {"rounds": 5})
    assert CALLS == [("run", 4, {"number": 7}, 2), 5, ("end", 5)]


def test_a_tracker_that_fails_does_not_end_the_run(tmp_path: Path) -> None:
    with pytest.warns(TrackerWarning) as warned:
        run = homophily.run({**SMALL, "tracker": [{"name": OWN, "fails": 2}, "csv"]}, out=tmp_path / "run")
    (only,) = warned
    where = tmp_path / "run"
    assert str(only.message) == (
        f"tracker {OWN!r} failed after round 2: ConnectionError: the server is away; the run goes on; afterwards, "
        f"homophily log {where} --to {OWN} fails=2 logs the rest"
    )
    assert CALLS == [("run", 0, None, 2), 1]
    assert run.summary["rounds"] == 4
    assert len((where / "csv" / "metrics.csv").read_text(encoding="utf-8").splitlines()) == 5
    whole = homophily.run(SMALL, out=tmp_path / "whole")
    assert whole.scores == run.scores


def test_a_resume_logs_the_rounds_that_a_tracker_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(TrackerWarning), pytest.raises(KeyboardInterrupt):
        homophily.run({**SMALL, "tracker": {"name": OWN, "fails": 2}}, callbacks=[InterruptAt(4)], out=tmp_path / "run")
    monkeypatch.setattr(Own, "log", lambda self, round, values: CALLS.append(round))
    homophily.resume(tmp_path / "run")
    assert CALLS == [("run", 0, None, 2), 1, ("run", 1, {"number": 7}, 2), 2, 3, 4, ("end", 4)]


def test_a_full_disk_does_not_end_the_run(tmp_path: Path) -> None:
    """A file stands where the tracker would write its folder."""

    class Blocks(homophily.Callback):
        def on_start(self, run: Any) -> None:
            (run.path / "csv").write_text("", encoding="utf-8")

    with pytest.warns(TrackerWarning, match="tracker 'csv' failed after round 0: FileExistsError"):
        run = homophily.run({**SMALL, "tracker": "csv"}, callbacks=[Blocks()], out=tmp_path / "run")
    assert run.finished


def test_a_missing_package_is_found_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"tracker 'wandb' needs wandb: pip install 'homophily\[trackers\]'"):
        homophily.run({**SMALL, "tracker": "wandb"}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("tracker", "message"),
    [
        ("tensorbord", r"unknown tracker 'tensorbord' \(did you mean 'tensorboard'\?\)"),
        ({"name": "mlflow", "url": "x"}, r"unknown key tracker\.url \(did you mean uri\?\)"),
        ({"name": "csv", "folder": 3}, r"tracker\.folder = 3: must be a string"),
        (["csv", "csv"], "tracker: 'csv' is there twice with the same keys"),
        (3, "tracker = 3: must be a list"),
        ({"uri": "x"}, r"tracker\.0\.name is missing"),
    ],
)
def test_a_wrong_tracker_is_named(tracker: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        homophily.run({**SMALL, "tracker": tracker}, out=tmp_path / "run")


def test_what_is_not_a_tracker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tracker = 'collections:Counter': must be a homophily.Tracker, not Counter"):
        homophily.run({**SMALL, "tracker": "collections:Counter"}, out=tmp_path / "run")


def test_forms_of_the_key_are_equal(tmp_path: Path) -> None:
    def of(value: Any) -> Any:
        return load(None, {"tracker": value}).tracker

    assert of("csv") == of(["csv"]) == of({"name": "csv"}) == of([{"name": "csv"}])
    assert load(None).tracker is None


def test_a_tracker_does_not_change_the_results_or_the_checkpoints_of_callbacks(tmp_path: Path) -> None:
    plain = homophily.run(SMALL, out=tmp_path / "plain")
    tracked = homophily.run({**SMALL, "tracker": "csv"}, out=tmp_path / "tracked")
    models = [(run.path / "models.safetensors").read_bytes() for run in (plain, tracked)]
    assert models[0] == models[1]


def test_a_killed_process_leaves_every_round_once_in_its_tables(tmp_path: Path, homophily_process: Processes) -> None:
    words = ("peers=4", "rounds=60", "checkpoint=5", "data.test=10", 'tracker=["csv", "parquet"]', "--out", "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    ended = homophily_process(
        tmp_path, "run", *words, kill_when=lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= 12
    )
    assert ended.code == -signal.SIGKILL
    assert homophily_process(tmp_path, "run", "--resume", "run").code == 0
    expected = [(line["round"], line["accuracy"]) for line in homophily.Run(tmp_path / "run").metrics()]
    csv = pd.read_csv(tmp_path / "run" / "csv" / "metrics.csv")
    parquet = pd.read_parquet(tmp_path / "run" / "parquet" / "metrics.parquet")
    for table in (csv, parquet):
        assert list(zip(table["round"], table["accuracy"], strict=True)) == expected
