"""Killed at any moment, on a full disk, or simply for more rounds: a resumed run ends like one that never stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import homophily
from homophily.atomic_io import read_tensors
from homophily.config.overlay import nested
from homophily.runs.writer import RunWriter
from homophily.simulation.configuration import make
from homophily.simulation.setup import prepare
from homophily.simulation.user_objects import UserObjects
from tests.processes import Ended, Processes


def outcome(run: Path) -> dict[str, Any]:
    """Everything a finished run leaves, without the time it took and the place where it lies."""
    summary = json.loads((run / "summary.json").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "summary": {key: value for key, value in summary.items() if key not in ("seconds", "run")},
        "metrics": [{key: value for key, value in line.items() if key != "seconds"} for line in lines],
        "scores": (run / "scores.json").read_bytes(),
        "models": (run / "models.safetensors").read_bytes(),
        "merges": (run / "merges.safetensors").read_bytes(),
        "history": {path.name: path.read_bytes() for path in (run / "history").iterdir()},
        "config": tomllib.loads((run / "config.toml").read_text()),
        "files": sorted(str(path.relative_to(run)) for path in run.rglob("*")),
    }


def rounds_written(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


SMALL = ("peers=8", "rounds=16", "checkpoint=3", "data.test=20", "training.epochs=1", "method.k=3")

OWN = """
import torch
from torch import nn
import torch.nn.functional as F

class Coupled(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.bn, self.drop = nn.Linear(64, 12), nn.BatchNorm1d(12), nn.Dropout(0.3)
        self.last = nn.Linear(12, 10)

    def forward(self, x):
        return self.last(self.drop(self.bn(self.first(x.flatten(1))).relu()))

class Drawing(nn.Module):
    def __init__(self):
        super().__init__()
        self.only = nn.Linear(64, 10)

    def forward(self, x):
        return self.only(F.dropout(x.flatten(1), 0.2, self.training))
"""

KINDS = {
    "vectorised": ("engine=vectorised",),
    "one by one": ("engine=one-by-one",),
    "early stopping": ("training.patience=2", "data.validation=10", "training.lr=0.2", "rounds=60"),
    "scored after training": ("score=after-training", "evaluate=3"),
    "BatchNorm and dropout": ("model=own_nets:Coupled", "model.personal=['bn*']", "training.optimizer=adam"),
    "schedule and objective": (
        "training.schedule=cosine",
        "training.warmup=4",
        "training.lr_by_peer.0=0.2",
        "training.clip=1.0",
        "training.objective=fedprox",
        "training.objective.mu=0.1",
    ),
    "draws by itself": ("model=own_nets:Drawing", "init=independent"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_killed_again_and_again_ends_like_one_that_was_not(
    kind: str, homophily_process: Processes, tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
        (folder / "own_nets.py").write_text(OWN)
    words = (*SMALL, *KINDS[kind])
    assert homophily_process(whole, "run", *words, "--out", "run").code == 0
    expected = outcome(whole / "run")
    total = len(expected["metrics"])
    assert total > 8

    run, kills = killed / "run", 0
    for number, round in enumerate((1, total // 2, total - 1)):
        start = ("run", "--resume", "run") if number else ("run", *words, "--out", "run")
        ended = homophily_process(killed, *start, kill_when=lambda round=round: rounds_written(run) >= round)
        assert ended.code in (-signal.SIGKILL, 0)  # on a busy machine it may come too late
        kills += ended.code != 0
    assert kills
    ended = homophily_process(killed, "run", "--resume", "run")
    assert (ended.code, ended.err) == (0, "")
    assert outcome(run) == expected


TINY = ("peers=4", "rounds=2", "checkpoint=1", "data.test=5", "training.epochs=1", "model=linear", "method.k=2")


def test_a_run_killed_before_any_touch_of_its_folder_ends_like_one_that_was_not(
    homophily_process: Processes, tmp_path: Path
) -> None:
    assert homophily_process(tmp_path, "run", *TINY, "--out", "run", watch=True).code == 0
    expected = outcome(tmp_path / "run")
    no_run, resumed = 0, 0
    for killed in (tmp_path / "killed").iterdir():
        if not (killed / "config.toml").exists():
            with pytest.raises(homophily.UserError, match=r"is not a run: it has no config\.toml"):
                homophily.resume(killed)
            no_run += 1
        else:
            homophily.resume(killed)
            assert outcome(killed) == expected, killed.name
            resumed += 1
    assert no_run >= 3  # run.json, config.toml and their parts
    assert resumed >= 30


def test_an_extension_killed_before_any_touch_of_its_folder_ends_like_one_that_was_not(
    homophily_process: Processes, tmp_path: Path
) -> None:
    assert homophily_process(tmp_path, "run", *TINY, "--out", "run").code == 0
    old = outcome(tmp_path / "run")
    assert homophily_process(tmp_path, "run", "--resume", "run", "rounds=3", watch=True).code == 0
    expected = outcome(tmp_path / "run")
    assert (old["summary"]["rounds"], expected["summary"]["rounds"]) == (2, 3)
    as_before, unfinished = 0, 0
    for killed in (tmp_path / "killed").iterdir():
        run = homophily.Run(killed)
        if run.finished:  # then all it says is of 2 rounds, or all is of 3
            whole = old if run.summary["rounds"] == 2 else expected
            assert (killed / "scores.json").read_bytes() == whole["scores"]
            assert (killed / "models.safetensors").read_bytes() == whole["models"]
            assert (killed / "merges.safetensors").read_bytes() == whole["merges"]
            as_before += whole is old
        else:
            with pytest.raises(homophily.UserError, match="has not finished"):
                _ = run.scores
            unfinished += 1
        homophily.resume(killed, {"rounds": 3})
        assert outcome(killed) == expected, killed.name
    assert as_before >= 10
    assert unfinished >= 5


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95])
def test_a_run_killed_at_any_time_ends_like_one_that_was_not(
    share: float, homophily_process: Processes, tmp_path: Path, whole_and_its_seconds: tuple[dict[str, Any], float]
) -> None:
    expected, seconds = whole_and_its_seconds
    end = time.monotonic() + share * seconds
    ended = homophily_process(tmp_path, "run", *SMALL, "--out", "run", kill_when=lambda: time.monotonic() >= end)
    assert ended.code in (-signal.SIGKILL, 0)
    again = homophily_process(tmp_path, "run", "--resume", "run")
    if not (tmp_path / "run" / "config.toml").exists():
        assert (again.code, again.out) == (2, "")
        assert again.err == "error: run is not a run: it has no config.toml\n"
    else:
        assert (again.code, again.err) == (0, "")
        assert outcome(tmp_path / "run") == expected


@pytest.fixture(scope="module")
def whole_and_its_seconds(
    homophily_process: Processes, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], float]:
    folder = tmp_path_factory.mktemp("whole")
    began = time.monotonic()
    assert homophily_process(folder, "run", *SMALL, "--out", "run").code == 0
    return outcome(folder / "run"), time.monotonic() - began


def test_a_process_killed_while_it_starts_leaves_no_run(tmp_path: Path) -> None:
    """Python itself, while it is still importing."""
    words = [sys.executable, "-c", "from homophily.cli.app import main; main()", "run", *TINY, "--out", "run"]
    with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        time.sleep(0.05)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "run").exists()
    with pytest.raises(homophily.UserError, match=r"is not a run: it has no config\.toml"):
        homophily.resume(tmp_path / "run")


# More rounds


@pytest.mark.parametrize("kind", ["vectorised", "one by one", "scored after training", "early stopping"])
def test_a_finished_run_with_more_rounds_equals_one_of_that_many_rounds(kind: str, here: Path) -> None:
    base = nested([*SMALL, *KINDS[kind], "evaluate=1"])
    homophily.run({**base, "rounds": 7}, out=here / "short")
    homophily.resume(here / "short", {"rounds": 12})
    homophily.run({**base, "rounds": 12}, out=here / "long")
    assert outcome(here / "short") == outcome(here / "long")


def test_an_extended_cosine_follows_the_new_number_of_rounds(here: Path) -> None:
    keys: dict[str, Any] = {"peers": 4, "data": {"test": 5}, "method": "local", "engine": "one-by-one"}
    keys["training"] = {"schedule": "cosine", "epochs": 1}
    short = homophily.run({**keys, "rounds": 2}, out=here / "run", device="cpu")
    extended = homophily.resume(short.path, {"rounds": 4})
    of = {rounds: prepare(make({**keys, "rounds": rounds}), UserObjects(), torch.device("cpu"))[0] for rounds in (2, 4)}
    rows = of[2].start.rows.clone()
    for round, rounds in ((1, 2), (2, 2), (3, 4), (4, 4)):
        of[rounds].engine.train(rows, {}, torch.arange(4), round)
    assert torch.equal(read_tensors(extended.path / "models.safetensors")["rows"], rows)


def test_resuming_a_finished_run_changes_nothing(here: Path) -> None:
    homophily.run(nested(list(TINY)), out=here / "run")
    before = {path: path.read_bytes() for path in (here / "run").rglob("*") if path.is_file()}
    homophily.resume(here / "run")
    assert {path: path.read_bytes() for path in (here / "run").rglob("*") if path.is_file()} == before


def test_the_threads_at_hand_do_not_change_the_data_of_a_resumed_run(here: Path) -> None:
    """Sums over missing values round differently with another number of threads."""
    rng = np.random.default_rng(0)
    data = []
    for _ in range(4):
        x = (3 + rng.normal(size=(300, 1, 8, 8))).astype(np.float32)
        x[rng.random(x.shape) < 0.1] = np.nan
        data.append(homophily.PeerData(x, rng.integers(0, 3, 300)))
    config = {"rounds": 2, "checkpoint": 1, "data": {"normalise": "standard"}, "method": {"k": 3}}
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        homophily.run(config, data=data, out=here / "whole")
        homophily.run({**config, "rounds": 1}, data=data, out=here / "run")
        torch.set_num_threads(1)
        homophily.resume(here / "run", {"rounds": 2}, data=data)
    finally:
        torch.set_num_threads(threads)
    assert outcome(here / "run") == outcome(here / "whole")


# A disk that is full, a folder that cannot be written


def assert_one_sentence(ended: Ended, *parts: str) -> None:
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: cannot write run")
    assert ended.err.count("\n") == 1
    for part in parts:
        assert part in ended.err


@pytest.mark.parametrize(
    ("file_bytes", "word"),
    [
        pytest.param(100, "run.json", id="at the start"),
        pytest.param(9_000, "checkpoints/round-000010", id="at a checkpoint"),
        pytest.param(16_100, "metrics.jsonl", id="in the middle of a line"),
    ],
)
def test_a_full_disk_ends_in_one_sentence_and_what_was_written_can_be_resumed(
    file_bytes: int, word: str, homophily_process: Processes, tmp_path: Path
) -> None:
    words = ("run", *TINY, "rounds=70", "checkpoint=10", "--out", "run")
    whole, full = tmp_path / "whole", tmp_path / "full"
    whole.mkdir(), full.mkdir()
    assert homophily_process(whole, *words).code == 0
    expected = outcome(whole / "run")
    assert_one_sentence(homophily_process(full, *words, file_bytes=file_bytes), word, "File too large", "is kept")
    if word == "run.json":
        assert not list((full / "run").iterdir())
        assert homophily_process(full, *words).code == 0
    else:
        run = homophily.Run(full / "run")
        lines = run.metrics()
        assert (run.path / "metrics.jsonl").read_bytes().endswith(b"\n")
        assert [line["round"] for line in lines] == list(range(1, len(lines) + 1))
        assert len(lines) >= 10
        assert not [path for path in run.path.rglob("*") if "part" in path.name or "tmp" in path.name]
        again = homophily_process(full, "run", "--resume", "run")
        assert (again.code, again.err) == (0, "")
    assert outcome(full / "run") == expected


def test_a_disk_that_fills_while_a_finished_run_is_extended_leaves_it_readable(
    homophily_process: Processes, tmp_path: Path
) -> None:
    words = ("run", *TINY, "rounds=40", "checkpoint=10", "--out", "run")
    assert homophily_process(tmp_path, *words).code == 0
    before = outcome(tmp_path / "run")
    ended = homophily_process(tmp_path, "run", "--resume", "run", "rounds=70", file_bytes=16_100)
    assert_one_sentence(ended, "metrics.jsonl")
    run = homophily.Run(tmp_path / "run")
    assert run.summary["rounds"] == 40
    assert run.scores == json.loads(before["scores"])
    assert homophily_process(tmp_path, "run", "--resume", "run").code == 0
    assert run.summary["rounds"] == 70


def test_a_folder_that_cannot_be_made_ends_in_one_sentence(homophily_process: Processes, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    for out in ("run", "run/below"):
        assert_one_sentence(homophily_process(tmp_path, "run", *TINY, "--out", out))
    assert (tmp_path / "run").read_text() == "a file"


def test_a_folder_that_becomes_impossible_later_ends_in_one_sentence(
    homophily_process: Processes, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    assert homophily_process(whole, "run", *TINY, "--out", "run").code == 0
    assert homophily_process(tmp_path, "run", *TINY, "rounds=1", "--out", "run").code == 0
    folder = tmp_path / "run" / "checkpoints"
    folder.rename(tmp_path / "elsewhere")
    folder.write_text("a file in its place")
    assert_one_sentence(homophily_process(tmp_path, "run", "--resume", "run", "rounds=2"), "checkpoints")
    folder.unlink()
    (tmp_path / "elsewhere").rename(folder)
    assert homophily_process(tmp_path, "run", "--resume", "run").code == 0
    ours, expected = outcome(tmp_path / "run"), outcome(whole / "run")
    assert ours == expected


def test_metrics_are_cut_by_rounds_whatever_their_lines_took_in_bytes(
    homophily_process: Processes, tmp_path: Path
) -> None:
    assert homophily_process(tmp_path, "run", *TINY, "rounds=2", "--out", "run").code == 0
    metrics = tmp_path / "run" / "metrics.jsonl"
    for old, new, rounds in (('"seconds": ', '"seconds": 1000', 3), ('"seconds": 1000', '"seconds":', 4)):
        text = metrics.read_text().replace(old, new)
        metrics.write_text(text + "half a li")
        assert homophily_process(tmp_path, "run", "--resume", "run", f"rounds={rounds}").code == 0
        assert metrics.read_text().startswith(text + '{"round": ')
        assert rounds_written(tmp_path / "run") == rounds
    whole, text = outcome(tmp_path / "run"), metrics.read_text()
    metrics.write_text("".join(text.splitlines(keepends=True)[:1]) + "no JSON\n")
    ended = homophily_process(tmp_path, "run", "--resume", "run", "rounds=5")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert ended.err.startswith("error: run/metrics.jsonl is damaged after round 1: ")
    metrics.write_text(text)
    assert outcome(tmp_path / "run") == whole


def test_after_a_checkpoint_that_took_long_there_is_none_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[int] = []
    save = RunWriter.save

    def slowly(writer: RunWriter, round: int, tensors: dict[str, torch.Tensor], numbers: dict[str, Any]) -> None:
        time.sleep(0.5)
        saved.append(round)
        save(writer, round, tensors, numbers)

    monkeypatch.setattr(RunWriter, "save", slowly)
    homophily.run({"peers": 4, "rounds": 5, "checkpoint": 1, "method": {"name": "local"}}, out=tmp_path / "run")
    assert saved == [1, 5]  # and the last, which is due in any case
