"""A simulation that goes step by step ends like one that runs in one go, and can be stopped and resumed anywhere."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import homophily
from homophily import Run, Simulation, UserError
from homophily.atomic_io import locked

SMALL: dict[str, Any] = {
    "peers": 4,
    "rounds": 4,
    "method": {"name": "dac", "k": 2},
    "data": {"train": 6, "test": 10, "angles": [0, 180]},
}


def outcome(run: Run) -> dict[str, Any]:
    """The results that must not depend on how a run was stepped."""
    lines = [{key: value for key, value in line.items() if key != "seconds"} for line in run.metrics()]
    summary = {key: value for key, value in run.summary.items() if key not in ("seconds", "run")}
    files = {name: (run.path / f"{name}.safetensors").read_bytes() for name in ("models", "merges", "inputs")}
    return {"summary": summary, "metrics": lines, "scores": run.scores, **files}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of ``homophily.run``."""
    return outcome(homophily.run(SMALL, out=tmp_path_factory.mktemp("expected") / "run"))


def test_a_simulation_yields_the_metrics_of_each_round(tmp_path: Path, expected: dict[str, Any]) -> None:
    simulation = Simulation(SMALL, out=tmp_path / "run")
    assert (simulation.round, simulation.finished) == (0, False)
    assert simulation.path == tmp_path / "run"
    assert simulation.config.method.keys["k"] == 2
    lines = []
    for number, metrics in enumerate(simulation, start=1):
        assert simulation.round == metrics["round"] == number
        lines.append(metrics)
    assert simulation.finished
    found = simulation.result()
    assert lines == found.metrics()
    assert outcome(found) == expected
    assert list(simulation) == []


def test_steps_equal_a_run_bit_for_bit(tmp_path: Path, expected: dict[str, Any]) -> None:
    simulation = Simulation(SMALL, out=tmp_path / "run")
    metrics = [simulation.step() for _ in range(4)]
    found = simulation.result()
    assert metrics == found.metrics()
    assert outcome(found) == expected


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_the_result_plays_the_rest(steps: int, tmp_path: Path, expected: dict[str, Any]) -> None:
    simulation = Simulation(SMALL, out=tmp_path / "run")
    for _ in range(steps):
        simulation.step()
    found = simulation.result()
    assert outcome(found) == expected
    assert simulation.result() is found


@pytest.mark.parametrize("saved", [0, 1, 3])
def test_a_saved_simulation_is_resumed_where_it_was(saved: int, tmp_path: Path, expected: dict[str, Any]) -> None:
    simulation = Simulation(SMALL, out=tmp_path / "run")
    for _ in range(saved):
        simulation.step()
    simulation.save()
    simulation.step()  # not saved, so played again
    again = Simulation.resume(tmp_path / "run")
    assert again.round == saved
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == saved
    again.step()
    assert outcome(again.result()) == expected


def test_saving_changes_nothing(tmp_path: Path, expected: dict[str, Any]) -> None:
    simulation = Simulation(SMALL, out=tmp_path / "run")
    for _ in simulation:
        simulation.save()
        simulation.save()
    assert outcome(simulation.result()) == expected


def test_a_step_after_the_end_is_refused(tmp_path: Path) -> None:
    simulation = Simulation({**SMALL, "rounds": 1}, out=tmp_path / "run")
    simulation.step()
    with pytest.raises(UserError, match=r"the run in .*run has finished: resume it with more rounds"):
        simulation.step()
    simulation.result()
    with pytest.raises(UserError, match="has finished"):
        simulation.step()
    with pytest.raises(UserError, match="has finished"):
        Simulation.resume(tmp_path / "run").step()


def test_a_finished_run_is_resumed_for_more_rounds(tmp_path: Path, expected: dict[str, Any]) -> None:
    Simulation({**SMALL, "rounds": 2}, out=tmp_path / "run").result()
    simulation = Simulation.resume(tmp_path / "run", {"rounds": 4})
    assert (simulation.round, simulation.config.rounds, simulation.finished) == (2, 4, False)
    found = outcome(simulation.result())
    assert found == expected


def test_a_finished_run_is_resumed_as_it_is(tmp_path: Path) -> None:
    run = Simulation(SMALL, out=tmp_path / "run").result()
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    again = Simulation.resume(tmp_path / "run")
    assert again.finished
    assert again.result().summary == run.summary
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_what_may_not_change_on_resume_is_refused(tmp_path: Path) -> None:
    simulation = Simulation(SMALL, out=tmp_path / "run")
    simulation.step()
    simulation.step()
    simulation.save()
    with pytest.raises(UserError, match="seed: a resumed run can change rounds, evaluate and checkpoint only"):
        Simulation.resume(tmp_path / "run", {"seed": 1})
    with pytest.raises(UserError, match=r"training\.lr: a resumed run can change"):
        Simulation.resume(tmp_path / "run", {"training": {"lr": 0.1}})
    with pytest.raises(UserError, match=r"rounds = 1: .*run has played 2 rounds, and cannot have fewer"):
        Simulation.resume(tmp_path / "run", {"rounds": 1})


def test_a_folder_is_played_in_one_process_at_a_time(tmp_path: Path) -> None:
    simulation = Simulation(SMALL, out=tmp_path / "run")
    with locked(tmp_path / "run"):
        for call in (simulation.step, simulation.save, simulation.result):
            with pytest.raises(UserError, match="run is in use by another process"):
                call()
    simulation.step()


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_resuming_a_run_that_another_process_plays_changes_nothing(tmp_path: Path) -> None:
    simulation = Simulation({**SMALL, "checkpoint": 1}, out=tmp_path / "run")
    simulation.step()
    simulation.save()
    with (simulation.path / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"round": 2}\n')  # of a round after the checkpoint
    before = files(simulation.path)
    with locked(simulation.path), pytest.raises(UserError, match="run is in use by another process"):
        Simulation.resume(simulation.path, {"rounds": 9})
    assert files(simulation.path) == before


def test_a_run_that_another_process_has_continued_is_not_played_on(tmp_path: Path) -> None:
    simulation = Simulation(SMALL, out=tmp_path / "run")
    simulation.step()
    simulation.save()
    other = homophily.resume(simulation.path)
    before = files(simulation.path)
    for call in (simulation.step, simulation.save, simulation.result):
        with pytest.raises(UserError, match=r"another process has continued the run in .*: resume it to go on"):
            call()
    assert files(simulation.path) == before
    assert [line["round"] for line in other.metrics()] == [1, 2, 3, 4]


def test_only_rank_0_looks_whether_another_process_has_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(SMALL, out=tmp_path / "run")
    (simulation.path / "metrics.jsonl").write_text("{}\n")  # by rank 0, between two looks
    with pytest.raises(UserError, match="another process has continued"), simulation._held():
        pass
    monkeypatch.setattr(simulation._active, "shards", SimpleNamespace(rank=1))
    with simulation._held():
        pass


def test_objects_are_given_as_to_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = [homophily.PeerData(rng.normal(size=(8, 4)), np.arange(8) % 2) for _ in range(3)]
    given: dict[str, Any] = {"data": data, "extra_metrics": {"ones": lambda outputs, targets: 1.0}}
    config = {"rounds": 3, "method": "random"}
    simulation = Simulation(config, **given, out=tmp_path / "run")
    assert simulation.step()["ones"] == 1.0
    simulation.save()
    found = Simulation.resume(tmp_path / "run", **given).result()
    assert outcome(found) == outcome(homophily.run(config, **given, out=tmp_path / "whole"))


def test_the_functions_take_the_same_arguments() -> None:
    def named(function: Callable[..., Any]) -> dict[str, Any]:
        return {name: (one.default, one.annotation) for name, one in signature(function).parameters.items()}

    assert named(homophily.run) == named(Simulation)
    assert named(homophily.resume) == named(Simulation.resume)
    begun, resumed = named(homophily.run), named(homophily.resume)
    assert {name: begun[name] for name in resumed if name in begun} == {
        name: resumed[name] for name in resumed if name in begun
    }
    assert set(begun) - set(resumed) == {"config", "out", "device"}
    assert set(resumed) - set(begun) == {"path", "overrides"}


def test_a_resumed_simulation_is_a_simulation(tmp_path: Path) -> None:
    Simulation(SMALL, out=tmp_path / "run").save()
    assert isinstance(Simulation.resume(tmp_path / "run"), Simulation)
