"""A run's folder goes on only with what it began with, and says so if it cannot."""

from __future__ import annotations

import json
import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import homophily
from homophily.report import comparison_table
from homophily.runs.writer import RunWriter
from tests.experiments.test_resume import TINY, outcome
from tests.processes import Processes


def test_processes_that_begin_at_the_same_time_get_different_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    real, others = Path.mkdir, list[Path]()

    def mkdir(path: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if path == Path("runs/mine") and not others:  # another process is faster
            others.append(path)
            real(path, mode, True)
        real(path, mode, parents, exist_ok)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    assert RunWriter.create(None, "mine").path == Path("runs/mine-2")
    assert RunWriter.create(None, "mine").path == Path("runs/mine-3")


def own_data(folder: Path, features: int = 3, samples: int = 30, value: float = 0.0) -> Path:
    folder.mkdir(exist_ok=True)
    for i in range(3):
        chance = np.random.default_rng(i)
        x, y = chance.normal(size=(samples, features)) + value, np.arange(samples) % 2
        np.savez(folder / f"p{i}.npz", x=x, y=y)
    return folder


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"value": 1.0}, "cannot resume run: data = d has changed since the run began"),
        ({"samples": 40}, "cannot resume run: data = d has changed since the run began"),
        ({"features": 4}, "cannot resume run: the network, or the shape of the data, differs"),
    ],
)
def test_a_run_goes_on_only_with_the_data_it_began_with(
    homophily_process: Processes, tmp_path: Path, changed: dict[str, Any], sentence: str
) -> None:
    own_data(tmp_path / "d")
    words = ("run", "data=d", "model=linear", "rounds=2", "checkpoint=1", "--out", "run")
    assert homophily_process(tmp_path, *words).code == 0
    before = outcome(tmp_path / "run")
    own_data(tmp_path / "d", **changed)
    ended = homophily_process(tmp_path, "run", "--resume", "run", "rounds=3")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert sentence in ended.err
    assert outcome(tmp_path / "run") == before
    own_data(tmp_path / "d")
    assert homophily_process(tmp_path, "run", "--resume", "run", "rounds=3").code == 0


def test_a_finished_run_is_shown_without_its_data(homophily_process: Processes, tmp_path: Path) -> None:
    words = ("run", "data=d", "model=linear", "rounds=2", "--out", "run", "--json")
    folder = own_data(tmp_path / "d")
    first = homophily_process(tmp_path, *words)
    folder.rename(tmp_path / "away")
    again = homophily_process(tmp_path, "run", "--resume", "run", "--json")
    assert (again.code, again.out) == (0, first.out)


def test_a_run_goes_on_only_with_the_network_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = [homophily.PeerData(np.eye(4), np.arange(4) % 2, test_x=np.eye(4), test_y=np.arange(4) % 2)] * 2
    run = homophily.run({"rounds": 1}, model=nn.Sequential(nn.Linear(4, 2)), data=data)
    named = nn.Sequential(OrderedDict(other=nn.Linear(4, 2)))
    for another in (nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), named):
        with pytest.raises(homophily.UserError, match="the network, or the shape of the data, differs"):
            homophily.resume(run.path, {"rounds": 2}, model=another, data=data)
    assert homophily.resume(run.path, {"rounds": 2}, model=nn.Sequential(nn.Linear(4, 2)), data=data).finished


def peers_that_differ() -> list[homophily.PeerData]:
    rng = np.random.default_rng(0)
    return [homophily.PeerData(x=rng.normal(size=(20, 3)), y=rng.integers(2, size=20)) for _ in range(4)]


def unlike_any_before() -> nn.Module:
    """As a user builds a network in every process: nobody has seeded torch."""
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def test_a_model_that_is_built_anew_goes_on_from_the_weights_of_the_first(tmp_path: Path) -> None:
    config = {"rounds": 6, "method": {"name": "dac", "k": 2, "metric": "cosine-gradients", "tau": 50.0}}
    model, data = unlike_any_before(), peers_that_differ()
    whole = homophily.run(config, model=model, data=data, out=tmp_path / "whole")
    began = homophily.run({**config, "rounds": 3}, model=model, data=data, out=tmp_path / "parts")
    ended = homophily.resume(began.path, {"rounds": 6}, model=unlike_any_before(), data=data)
    assert ended.scores == whole.scores


def test_a_run_of_a_given_model_killed_before_it_began_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        raise SystemExit

    keys: dict[str, Any] = {"model": unlike_any_before(), "data": peers_that_differ(), "out": tmp_path / "run"}
    with monkeypatch.context() as sudden:
        sudden.setattr(RunWriter, "describe", killed)
        with pytest.raises(SystemExit):
            homophily.run({"rounds": 1}, **keys)
    assert homophily.run({"rounds": 1}, **keys).finished


def test_a_comparison_with_a_model_that_is_built_anew_goes_on_from_the_weights_of_the_first(tmp_path: Path) -> None:
    def compared() -> homophily.Comparison:
        keys = {"rounds": 2, "method": {"k": 2}}
        methods, out = ["random", "fix-topology"], tmp_path / "both"
        return homophily.compare(keys, methods=methods, model=unlike_any_before(), data=peers_that_differ(), out=out)

    first = compared().runs["fix-topology"][0].scores
    shutil.rmtree(tmp_path / "both" / "fix-topology-0")
    assert compared().runs["fix-topology"][0].scores == first


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("run.json", "{}"),
        ("run.json", "[]"),
        ("checkpoints/round-000001/state.json", "{}"),
        ("checkpoints/round-000001/state.json", "[]"),
        ("metrics.jsonl", "{}\n"),
        ("metrics.jsonl", "5\n"),
    ],
)
def test_files_of_another_version_are_reported_in_a_sentence(
    homophily_process: Processes, tmp_path: Path, file: str, text: str
) -> None:
    assert homophily_process(tmp_path, "run", *TINY, "rounds=1", "--out", "run").code == 0
    (tmp_path / "run" / file).write_text(text)
    ended = homophily_process(tmp_path, "run", "--resume", "run", "rounds=2")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "is damaged" in ended.err


def test_a_comparison_that_was_stopped_goes_on_in_its_folder(homophily_process: Processes, tmp_path: Path) -> None:
    words = ("compare", *TINY, "methods=random,local", "rounds=3", "--json", "--out", "run")
    assert homophily_process(tmp_path, *words).code == 0
    whole, first = (tmp_path / "run" / name for name in ("compare.json", "random-0"))
    expected, began = json.loads(whole.read_text()), (first / "run.json").read_bytes()
    whole.unlink()
    shutil.rmtree(tmp_path / "run" / "local-0")  # not begun
    (first / "summary.json").unlink()  # stopped in its last round
    shutil.rmtree(first / "checkpoints")
    assert homophily_process(tmp_path, *words).code == 0
    found = json.loads(whole.read_text())
    assert {name: table["accuracy"] for name, table in found.items()} == {
        name: table["accuracy"] for name, table in expected.items()
    }
    assert (first / "run.json").read_bytes() == began
    ended = homophily_process(tmp_path, *words, "rounds=5")
    assert (ended.code, "run holds another comparison: rounds is 3 there and 5 here" in ended.err) == (2, True)


def test_a_comparison_does_not_go_on_with_other_data(tmp_path: Path) -> None:
    def peers(seed: int) -> list[homophily.PeerData]:
        rng = np.random.default_rng(seed)
        return [homophily.PeerData(x=rng.normal(size=(20, 3)), y=np.arange(20) % 2) for _ in range(4)]

    def compared(seed: int) -> homophily.Comparison:
        return homophily.compare({"rounds": 1}, methods=["local", "random"], data=peers(seed), out=tmp_path / "both")

    compared(0)
    shutil.rmtree(tmp_path / "both" / "random-0")
    with pytest.raises(homophily.UserError, match="has changed since the run began"):
        compared(1)
    assert len(compared(0).runs) == 2


def test_notes_that_differ_between_seeds_are_reported_with_their_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"peers": 4, "rounds": 1, "data": {"angles": [0, 180], "train": 1}}
    compared = homophily.compare(config, methods=["kin"], seeds=[0, 1], out=tmp_path / "both")
    sentence = "4 peers have too few samples for a fingerprint, and merge with nobody"
    comparison_table.comparison(compared)
    assert f"note: kin: {sentence}\n" in capsys.readouterr().out
    summary = tmp_path / "both" / "kin-1" / "summary.json"
    summary.write_text(summary.read_text().replace(sentence, "all is well"))
    comparison_table.comparison(compared)
    assert f"note: kin, seed 0: {sentence}\nnote: kin, seed 1: all is well\n" in capsys.readouterr().out


def test_notes_that_all_seeds_have_are_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """kin found no difference with either seed: the smallest that it would have seen differs, the advice does not."""
    config = {"peers": 20, "rounds": 1, "data": {"shift": "iid"}}
    comparison_table.comparison(homophily.compare(config, methods=["kin"], seeds=[0, 1], out=tmp_path / "both"))
    out = capsys.readouterr().out
    assert "note: kin, seed 0: found no difference between the fingerprints of 20 peers" in out
    assert "note: kin, seed 1: found no difference between the fingerprints of 20 peers" in out
    assert out.count("in ways that fingerprints do not show") == 1
    assert "kinds" not in out


def test_metrics_above_a_limit_lose_every_second_line_and_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homophily.runs.writer._METRICS_BYTES", 1000)
    writer = RunWriter(tmp_path)
    for round in range(1, 501):
        writer.append({"round": round, "seconds": 0.5 * round})
        assert (tmp_path / "metrics.jsonl").stat().st_size < 1100
    lines = [json.loads(line)["round"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == sorted(lines)
    assert lines[-1] == 500
    assert lines[-1] - lines[-5] < lines[4] - lines[0]  # earlier rounds become rare
    assert lines[0] < 250
    for last in (480, 100):
        writer.cut(last)
        kept = [json.loads(line)["round"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
        assert kept == [round for round in lines if round <= last]
