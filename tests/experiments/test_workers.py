"""Several processes play one comparison: no run twice, and the run of a killed process is resumed by another."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import homophily
from homophily import Callback, UserError
from homophily.atomic_io import locked
from homophily.experiments.callbacks import RunHandle
from homophily.experiments.leases import Leases
from homophily.experiments.sharing import finished
from homophily.runs.writer import RunWriter
from tests.patience import PATIENCE, until

TINY = ("peers=4", "data.train=6", "data.test=10", "data.angles=[0,180]")
SMALL: dict[str, Any] = {"peers": 4, "rounds": 3, "data": {"train": 6, "test": 10, "angles": [0, 180]}}


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "from homophily.cli.app import main; main()", "compare", *TINY, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def rounds(run: Path) -> list[int]:
    path = run / "metrics.jsonl"
    return [json.loads(line)["round"] for line in path.read_text().splitlines()] if path.exists() else []


def test_processes_share_a_folder_and_a_killed_ones_run_is_resumed(tmp_path: Path) -> None:
    """Two processes play two runs each at the same time; one is killed, and the other resumes its run."""
    words = ("methods=local,random", "seeds=0,1", "rounds=250", "checkpoint=10", "evaluate=50", "--json", "--out", "s")
    processes = [started(tmp_path, *words) for _ in range(2)]
    study, names = tmp_path / "s", ["local-0", "random-0", "local-1", "random-1"]
    until(lambda: any(len(rounds(study / name)) > 40 for name in names), "round 41 of a run")
    busy = {name: Leases(study / "leases").holder(name) for name in names}
    victim = next(p for p in processes if any(str(p.pid) in str(holder) for holder in busy.values()))
    victim.kill()
    stopped = [name for name, holder in busy.items() if holder is not None and str(victim.pid) in holder]
    victim.communicate()
    unfinished = [name for name in stopped if not finished(study / name)]
    began = {name: (study / name / "run.json").read_bytes() for name in unfinished}
    (other,) = (p for p in processes if p is not victim)
    out, err = other.communicate(timeout=PATIENCE)
    assert (other.returncode, err) == (0, "")
    assert list(json.loads(out)["methods"]) == ["local", "random"]
    assert all(rounds(study / name) == list(range(1, 251)) for name in names)
    assert unfinished
    for name in unfinished:
        assert (study / name / "run.json").read_bytes() == began[name]  # resumed, not begun again
        assert (study / "leases" / f"{name}.2").exists()
    once = {path.name for path in (study / "leases").iterdir() if path.name.endswith(".1")}
    assert once == {f"{name}.1" for name in names if name not in unfinished}
    alone = homophily.compare({**SMALL, "rounds": 250, "evaluate": 50}, methods=["local", "random"], out=tmp_path / "a")
    assert homophily.Run(study / "random-0").scores == alone.runs["random"][0].scores


def test_another_process_may_begin_the_folder_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, real = tmp_path / "study", RunWriter.create

    def create(path: Path | None, name: str) -> RunWriter:
        if path == study:
            Leases(study / "leases")  # of the other process, after this one has looked for them
        return real(path, name)

    monkeypatch.setattr(RunWriter, "create", create)
    assert homophily.compare({**SMALL, "rounds": 1}, methods=["local"], out=study).runs


class Rounds(Callback):
    """Notes the rounds that it sees, and -1 at the end."""

    def __init__(self, seen: dict[tuple[str, int], list[int]], key: tuple[str, int]) -> None:
        self.seen = seen.setdefault(key, [])

    def on_round(self, run: RunHandle, metrics: dict[str, Any]) -> None:
        assert (run.round, run.config.rounds) == (metrics["round"], 3)
        self.seen.append(metrics["round"])

    def on_end(self, run: RunHandle, summary: dict[str, Any]) -> None:
        assert summary["rounds"] == 3
        assert run.state_dict(0)
        self.seen.append(-1)


def test_workers_play_all_runs_and_the_caller_follows_them(tmp_path: Path) -> None:
    seen: dict[tuple[str, int], list[int]] = {}
    found = homophily.compare(
        SMALL,
        methods=["local", "random"],
        seeds=[0, 1],
        workers=2,
        callbacks=lambda method, seed: [Rounds(seen, (method, seed))],
        out=tmp_path / "study",
    )
    alone = homophily.compare(SMALL, methods=["local", "random"], seeds=[0, 1], out=tmp_path / "alone")
    for name, runs in alone.runs.items():
        assert [run.scores for run in found.runs[name]] == [run.scores for run in runs]
    assert seen == {(name, seed): [1, 2, 3, -1] for name in ("local", "random") for seed in (0, 1)}
    commands = {run.about["command"][0] for runs in found.runs.values() for run in runs}
    assert commands == {sys.argv[0]}


class Failing(Callback):
    """Fails in the first round."""

    def on_round(self, run: RunHandle, metrics: dict[str, Any]) -> None:
        raise RuntimeError("my callback failed")


def test_a_callback_that_fails_stops_the_workers(tmp_path: Path) -> None:
    study, endless = tmp_path / "study", {**SMALL, "rounds": 100000}
    with pytest.raises(RuntimeError, match="my callback failed"):
        homophily.compare(endless, methods=["local", "random"], workers=2, callbacks=lambda *_: [Failing()], out=study)
    assert multiprocessing.active_children() == []
    assert [Leases(study / "leases").holder(name) for name in ("local-0", "random-0")] == [None, None]


def test_wrong_callbacks_of_runs_that_workers_play_are_refused(tmp_path: Path) -> None:
    wrong: Any = Callback()
    with pytest.raises(UserError, match=r"callbacks=: must be a list of homophily\.Callback objects, not Callback"):
        homophily.compare(SMALL, methods=["local"], workers=2, callbacks=lambda *_: wrong, out=tmp_path / "study")
    assert multiprocessing.active_children() == []


def test_a_mistake_that_only_a_worker_meets_is_reported_by_the_caller(tmp_path: Path) -> None:
    study = tmp_path / "study"
    homophily.compare(SMALL, methods=["local"], out=study)
    (study / "random-0").mkdir()
    (study / "random-0" / "mine.txt").touch()
    with pytest.raises(UserError, match="random-0 is not empty"):
        homophily.compare(SMALL, methods=["local", "random"], workers=2, out=study)


@pytest.mark.parametrize("workers", [0, -1, 1.5, "2"])
def test_wrong_numbers_of_workers_are_refused(workers: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"workers = .*: must be a whole number of at least 1"):
        homophily.compare(SMALL, methods=["local"], workers=workers, out=tmp_path / "study")


def test_what_cannot_be_sent_to_other_processes_is_refused(tmp_path: Path) -> None:
    import torch

    def own_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")

    with pytest.raises(UserError, match=r"workers: an argument cannot be sent to another process.*define functions"):
        homophily.compare(SMALL, methods=["local"], loss=own_loss, workers=2, out=tmp_path / "study")
    assert homophily.compare(SMALL, methods=["local"], loss=own_loss, workers=1, out=tmp_path / "study").runs


def test_a_run_that_another_process_resumes_is_waited_for(tmp_path: Path) -> None:
    """Without a lease, the lock of the run folder counts: ``homophily run --resume`` holds it."""
    study = tmp_path / "study"
    homophily.compare(SMALL, methods=["local"], out=study)
    (study / "local-0" / "summary.json").rename(tmp_path / "summary.json")
    with locked(study / "local-0"):
        process = started(tmp_path, "methods=local", "rounds=3", "--out", "study")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=4)
        (tmp_path / "summary.json").rename(study / "local-0" / "summary.json")
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, "")
    assert "run folder: study" in out


def test_ctrl_c_stops_workers_and_says_how_to_continue(tmp_path: Path) -> None:
    words = ("methods=local,random", "rounds=100000", "--workers", "2", "--out", "s")
    process = started(tmp_path, *words)
    until(lambda: all(rounds(tmp_path / "s" / name) for name in ("local-0", "random-0")), "round 1 of both runs")
    holders = [str(Leases(tmp_path / "s" / "leases").holder(name)) for name in ("local-0", "random-0")]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (130, "stopped; continue with the same command and --out s\n")
    assert [Leases(tmp_path / "s" / "leases").holder(name) for name in ("local-0", "random-0")] == [None, None]
    assert len(set(holders)) == 2
