"""Runs that are interrupted by Ctrl-C: their history, and ending them early."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import homophily
from tests.experiments.test_resume import outcome


class _Interrupts(homophily.Callback):
    """Stops the run as Ctrl-C does, in round 5."""

    def on_round(self, run: Any, metrics: dict[str, Any]) -> None:
        if metrics["round"] == 5:
            raise KeyboardInterrupt


def test_the_history_of_an_interrupted_run_has_the_rounds_of_its_metrics(tmp_path: Path) -> None:
    config = {"peers": 4, "rounds": 8, "data": {"test": 10}, "method": {"k": 1}}
    with pytest.raises(KeyboardInterrupt, match="stopped"):
        homophily.run(config, callbacks=[_Interrupts()], out=tmp_path / "stopped", device="cpu")
    run = homophily.Run(tmp_path / "stopped")
    assert [line["round"] for line in run.metrics()] == [1, 2, 3, 4, 5]
    assert run.history.rounds.tolist() == [1, 2, 3, 4, 5]


def test_an_interrupted_run_can_be_ended_early(tmp_path: Path) -> None:
    config = {"peers": 4, "rounds": 8, "checkpoint": 2, "data": {"test": 10}, "method": {"k": 1}}
    with pytest.raises(KeyboardInterrupt):
        homophily.run(config, callbacks=[_Interrupts()], out=tmp_path / "stopped", device="cpu")
    with pytest.raises(homophily.UserError, match=r"rounds = 3: .*stopped has played 4 rounds, and cannot have fewer"):
        homophily.resume(tmp_path / "stopped", {"rounds": 3})
    for rounds in (4, 5):  # no round more, and one after the last checkpoint
        shutil.copytree(tmp_path / "stopped", tmp_path / f"ended-{rounds}")
        homophily.resume(tmp_path / f"ended-{rounds}", {"rounds": rounds})
        homophily.run({**config, "rounds": rounds}, out=tmp_path / f"short-{rounds}", device="cpu")
        assert outcome(tmp_path / f"ended-{rounds}") == outcome(tmp_path / f"short-{rounds}")


def test_a_run_scored_after_training_cannot_end_without_the_models_that_it_scores(tmp_path: Path) -> None:
    config = {"peers": 4, "rounds": 8, "checkpoint": 2, "score": "after-training", "data": {"test": 10}}
    with pytest.raises(KeyboardInterrupt):
        homophily.run(config, callbacks=[_Interrupts()], out=tmp_path / "stopped", device="cpu")
    with pytest.raises(homophily.UserError, match=r"rounds = 4: .* end the run with rounds = 5"):
        homophily.resume(tmp_path / "stopped", {"rounds": 4})
    homophily.resume(tmp_path / "stopped", {"rounds": 5})
    homophily.run({**config, "rounds": 5}, out=tmp_path / "short", device="cpu")
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "short")
