"""Runs side by side end as they would alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import homophily
from homophily.atomic_io import read_tensors
from homophily.experiments.callbacks import Callback, Callbacks
from homophily.experiments.queue import RunRequest, execute
from homophily.experiments.runner import ActiveRun, RoundPlayer, begin
from homophily.federation.similarity import MetricCost, Pairs, costs
from homophily.runs.reader import Run
from homophily.simulation.configuration import make
from homophily.simulation.setup import prepare
from homophily.simulation.side_by_side import joined, runs_at_once
from homophily.simulation.training_setup import SetupCache
from homophily.simulation.user_objects import UserObjects
from tests.callbacks import InterruptAt, Rounds

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"peers": 8, "rounds": 6, "data": {"train": 15, "test": 20}, "training": {"epochs": 1}}


@costs(MetricCost(losses="own"))
def likelihood(pairs: Pairs) -> torch.Tensor:
    """A metric of losses, as ``loss`` is, with other values."""
    return (-pairs.loss("own")).exp()


def begun(folder: Path, cache: SetupCache, keys: dict[str, Any], *callbacks: Callback) -> ActiveRun:
    experiment, complete, plan = prepare(make({**SMALL, **keys}), UserObjects(), CPU, cache=cache)
    return begin(experiment, complete, plan, UserObjects(), folder, Callbacks(callbacks))


def active(folder: Path, method: str, seed: int, cache: SetupCache, **keys: Any) -> ActiveRun:
    return begun(folder / f"{method}-{seed}", cache, {**keys, "seed": seed, "method": {"name": method}})


def rows(run: Run) -> torch.Tensor:
    return read_tensors(run.path / "models.safetensors")["rows"]


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"score": "after-training", "evaluate": 4},
        {"training": {"epochs": 1, "patience": 1}, "data": {"train": 15, "test": 20, "validation": 5}, "rounds": 12},
        {"training": {"lr_by_peer": {"0": 0.2}, "epochs_by_peer": [1, 2] * 4, "schedule": "cosine"}},
    ],
    ids=["after each merge", "after training, now and then", "some stop early", "rates and epochs by peer"],
)
def test_runs_side_by_side_end_as_alone(tmp_path: Path, keys: dict[str, Any]) -> None:
    cache = SetupCache()
    which = [(method, seed) for method in ("random", "panm", "dac", "kin", "fedavg", "oracle") for seed in (0, 3)]
    together = RoundPlayer([active(tmp_path / "together", m, s, cache, **keys) for m, s in which]).play()
    for (method, seed), run in zip(which, together, strict=True):
        (alone,) = RoundPlayer([active(tmp_path / "alone", method, seed, SetupCache(), **keys)]).play()
        assert torch.allclose(rows(run), rows(alone), atol=1e-4), (method, seed)
        mine, other = run.metrics(), alone.metrics()
        assert [line["round"] for line in mine] == [line["round"] for line in other]
        assert [set(line) for line in mine] == [set(line) for line in other]
        assert run.summary["models_sent_per_peer"] == alone.summary["models_sent_per_peer"]
        assert abs(run.summary["accuracy"] - alone.summary["accuracy"]) < 2.0


def test_runs_that_compare_and_merge_differently(tmp_path: Path) -> None:
    settings: list[dict[str, Any]] = [
        {"merge": "uniform", "method": {"name": "dac", "k": 2}},
        {"merge": "fedsim", "method": {"name": "dac", "k": 4, "metric": "cosine-gradients"}},
        {"merge": "median", "method": {"name": "random", "k": 5}},
        {"merge": "uniform", "method": {"name": "dac", "k": 3, "on": "peer"}},
        {"merge": "uniform", "method": {"name": "dac", "k": 3, "losses": "validation"}},
        {"merge": "uniform", "method": {"name": "dac", "k": 3, "metric": f"{__name__}:likelihood"}},
        {"merge": "fedsim", "method": {"name": "pens", "l": 4, "k": 2, "t1": 3}},
    ]
    settings = [{"data": {"train": 15, "test": 20, "validation": 5}, **way} for way in settings]
    cache = SetupCache()
    names = [f"{number}" for number in range(len(settings))]
    together = RoundPlayer(
        [begun(tmp_path / "together" / n, cache, way) for n, way in zip(names, settings, strict=True)]
    ).play()
    for name, way, run in zip(names, settings, together, strict=True):
        (alone,) = RoundPlayer([begun(tmp_path / "alone" / name, SetupCache(), way)]).play()
        assert torch.allclose(rows(run), rows(alone), atol=1e-4), way
        assert (run.merges() == alone.merges()).all(), way


@pytest.mark.parametrize("noticeable", [0.1, 0.0])
def test_runs_that_were_stopped_go_on_side_by_side(
    noticeable: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If saving takes long there are fewer checkpoints, but all runs have the same ones."""
    monkeypatch.setattr("homophily.experiments.runner._NOTICEABLE", noticeable)
    keys: list[dict[str, Any]] = [
        {"method": {"name": name}, "checkpoint": 1} for name in ("panm", "dac", "kin", "pens")
    ]
    never = RoundPlayer([begun(tmp_path / "never" / str(n), SetupCache(), key) for n, key in enumerate(keys)]).play()
    watching = [[], [], [], [InterruptAt(4)]]
    stopped = [
        begun(tmp_path / "stopped" / str(n), SetupCache(), key, *callbacks)
        for n, (key, callbacks) in enumerate(zip(keys, watching, strict=True))
    ]
    with pytest.raises(KeyboardInterrupt):
        RoundPlayer(stopped).play()
    rounds = Rounds()
    requests = [RunRequest(one.config, one.path, lambda: [rounds]) for one in stopped]
    (since,) = {one.writer.last_round for one in stopped}
    assert len({one.group for one in requests}) == 1
    ended = RoundPlayer([one.active(UserObjects(), CPU, SetupCache(), begun=True)[0] for one in requests]).play()
    assert sorted(rounds.seen) == [round for round in range(since + 1, 7) for _ in stopped]
    for one, other in zip(ended, never, strict=True):
        assert torch.equal(rows(one), rows(other))
        assert (one.merges() == other.merges()).all()
        assert [line["round"] for line in one.metrics()] == [1, 2, 3, 4, 5, 6]


def test_an_interrupted_callback_of_one_run_loses_no_metrics_of_the_others(tmp_path: Path) -> None:
    keys = {"method": {"name": "random"}}
    runs = [begun(tmp_path / str(n), SetupCache(), keys, *([InterruptAt(2)] if n == 0 else [])) for n in range(3)]
    with pytest.raises(KeyboardInterrupt):
        RoundPlayer(runs).play()
    assert [[line["round"] for line in Run(run.path).metrics()] for run in runs] == [[1, 2]] * 3


def test_a_new_run_does_not_go_beside_a_stopped_one(tmp_path: Path) -> None:
    first, second = (
        RunRequest(make({**SMALL, "checkpoint": 1, "seed": seed}), tmp_path / str(seed)) for seed in (0, 1)
    )
    assert first.group == second.group
    with pytest.raises(KeyboardInterrupt):
        list(execute([replace(first, callbacks=lambda: [InterruptAt(2)])], UserObjects(), CPU))
    assert first.group != second.group
    assert [run.summary["rounds"] for run in execute([first, second], UserObjects(), CPU)] == [6, 6]


def test_data_that_runs_share_is_held_once(tmp_path: Path) -> None:
    cache = SetupCache()
    runs = [active(tmp_path, method, seed, cache) for seed in (0, 1) for method in ("random", "kin", "oracle")]
    tasks = [one.state.experiment.task for one in runs]
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
    experiment = active(tmp_path, "random", 0, SetupCache()).state.experiment
    assert runs_at_once(experiment, "stacked", CPU) == 1
    compared = homophily.compare({**SMALL, "methods": "random,oracle", "seeds": "0,1"}, out=tmp_path / "compared")
    alone = homophily.run({**SMALL, "seed": 1, "method": {"name": "oracle"}}, out=tmp_path / "one")
    assert torch.equal(rows(compared.runs["oracle"][1]), rows(alone))
