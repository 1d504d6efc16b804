"""Runs side by side end as they would alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from homophily.experiments.sweep import RunRequest, Sweep, joined, played, runs_at_once

import homophily
from homophily.atomic_io import read_tensors
from homophily.experiments.runner import ActiveRun, Progress, begin
from homophily.runs.reader import Run
from homophily.simulation.configuration import make
from homophily.simulation.setup import SetupCache, UserObjects, prepare

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"peers": 8, "rounds": 6, "data": {"train": 15, "test": 20}, "training": {"epochs": 1}}


def begun(folder: Path, known: SetupCache, keys: dict[str, Any]) -> ActiveRun:
    experiment, complete, resolved = prepare(make({**SMALL, **keys}), UserObjects(), CPU, known=known)
    return begin(experiment, complete, resolved, UserObjects(), folder, None)


def playing(folder: Path, method: str, seed: int, known: SetupCache, **keys: Any) -> ActiveRun:
    return begun(folder / f"{method}-{seed}", known, {**keys, "seed": seed, "method": {"name": method}})


def stopping(last: int) -> Progress:
    """What stops a run after a round."""

    def told(line: dict[str, Any]) -> None:
        if line["round"] == last:
            raise KeyboardInterrupt

    return told


def rows(run: Run) -> torch.Tensor:
    return read_tensors(run.path / "models.safetensors")["rows"]


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"score": "after-training", "evaluate": 4},
        {"training": {"epochs": 1, "patience": 1}, "data": {"train": 15, "test": 20, "validation": 5}, "rounds": 12},
    ],
    ids=["after each merge", "after training, now and then", "some stop early"],
)
def test_runs_side_by_side_end_as_alone(tmp_path: Path, keys: dict[str, Any]) -> None:
    known = SetupCache()
    which = [(method, seed) for method in ("random", "panm", "dac", "kin", "fedavg", "oracle") for seed in (0, 3)]
    together = Sweep([playing(tmp_path / "together", m, s, known, **keys) for m, s in which]).play()
    for (method, seed), run in zip(which, together, strict=True):
        alone = playing(tmp_path / "alone", method, seed, SetupCache(), **keys).play()
        assert torch.allclose(rows(run), rows(alone), atol=1e-4), (method, seed)
        mine, other = run.metrics(), alone.metrics()
        assert [line["round"] for line in mine] == [line["round"] for line in other]
        assert [set(line) for line in mine] == [set(line) for line in other]
        assert run.summary["models_sent_per_peer"] == alone.summary["models_sent_per_peer"]
        assert abs(run.summary["accuracy"] - alone.summary["accuracy"]) < 2.0


def test_runs_that_compare_and_merge_in_different_ways(tmp_path: Path) -> None:
    ways: list[dict[str, Any]] = [
        {"merge": "uniform", "method": {"name": "dac", "k": 2}},
        {"merge": "fedsim", "method": {"name": "dac", "k": 4, "metric": "cosine-gradients"}},
        {"merge": "median", "method": {"name": "random", "k": 5}},
        {"merge": "uniform", "method": {"name": "dac", "k": 3, "on": "peer"}},
        {"merge": "fedsim", "method": {"name": "pens", "l": 4, "k": 2, "t1": 3}},
    ]
    known = SetupCache()
    names = [f"{number}" for number in range(len(ways))]
    together = Sweep([begun(tmp_path / "together" / n, known, way) for n, way in zip(names, ways, strict=True)]).play()
    for name, way, run in zip(names, ways, together, strict=True):
        alone = begun(tmp_path / "alone" / name, SetupCache(), way).play()
        assert torch.allclose(rows(run), rows(alone), atol=1e-4), way
        assert (run.merges() == alone.merges()).all(), way


@pytest.mark.parametrize("noticeable", [0.1, 0.0])
def test_runs_that_were_stopped_go_on_side_by_side(
    noticeable: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where saving takes a while there are fewer checkpoints, but all runs have the same ones."""
    monkeypatch.setattr("homophily.experiments.runner._NOTICEABLE", noticeable)
    keys: list[dict[str, Any]] = [
        {"method": {"name": name}, "checkpoint": 1} for name in ("panm", "dac", "kin", "pens")
    ]
    never = Sweep([begun(tmp_path / "never" / str(n), SetupCache(), key) for n, key in enumerate(keys)]).play()
    stopped = [begun(tmp_path / "stopped" / str(n), SetupCache(), key) for n, key in enumerate(keys)]
    stopped[-1].progress = stopping(4)
    with pytest.raises(KeyboardInterrupt):
        Sweep(stopped).play()
    told: list[int] = []
    wanted = [
        RunRequest(one.config, one.folder.path, lambda: lambda line: told.append(line["round"])) for one in stopped
    ]
    (since,) = {one.folder.round for one in stopped}
    assert len({one.alike for one in wanted}) == 1
    ended = Sweep([one.playing(UserObjects(), CPU, SetupCache())[0] for one in wanted]).play()
    assert sorted(told) == [round for round in range(since + 1, 7) for _ in stopped]
    for one, other in zip(ended, never, strict=True):
        assert torch.equal(rows(one), rows(other))
        assert (one.merges() == other.merges()).all()
        assert [line["round"] for line in one.metrics()] == [1, 2, 3, 4, 5, 6]


def test_what_is_new_does_not_go_beside_what_was_stopped(tmp_path: Path) -> None:
    first, second = (
        RunRequest(make({**SMALL, "checkpoint": 1, "seed": seed}), tmp_path / str(seed)) for seed in (0, 1)
    )
    assert first.alike == second.alike
    with pytest.raises(KeyboardInterrupt):
        list(played([replace(first, progress=lambda: stopping(2))], UserObjects(), CPU))
    assert first.alike != second.alike
    assert [run.summary["rounds"] for run in played([first, second], UserObjects(), CPU)] == [6, 6]


def test_data_that_runs_share_is_held_once(tmp_path: Path) -> None:
    known = SetupCache()
    runs = [playing(tmp_path, method, seed, known) for seed in (0, 1) for method in ("random", "kin", "oracle")]
    tasks = [one.simulation.experiment.task for one in runs]
    task = joined(tasks)
    assert task.data.peers == 6 * 8
    assert len(task.data.train.x) == 2 * 8 * 15
    for number, one in enumerate(tasks):
        for peer in (0, 7):
            x, y = one.data.train.peer(peer)
            found = task.data.train.peer(8 * number + peer)
            assert torch.equal(found[0], x)
            assert torch.equal(found[1], y)


def test_a_cpu_plays_one_run_after_the_other(tmp_path: Path) -> None:
    """So that a compared run has the same bits as one alone."""
    experiment = playing(tmp_path, "random", 0, SetupCache()).simulation.experiment
    assert runs_at_once(experiment, "stacked", CPU) == 1
    compared = homophily.compare({**SMALL, "methods": "random,oracle", "seeds": "0,1"}, out=tmp_path / "compared")
    alone = homophily.run({**SMALL, "seed": 1, "method": {"name": "oracle"}}, out=tmp_path / "one")
    assert torch.equal(rows(compared.runs["oracle"][1]), rows(alone))
