"""The studies of kin run on a few small federations, and their tables are complete and correct."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import homophily
from homophily.report import console as show

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
FEW = ("--data", "digits", "--samples", "20", "--peers", "40", "--seeds", "1", "--device", "cpu")
Study = Callable[..., list[list[str]]]


@pytest.fixture
def study(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Study:
    """The cells of a study's table, which its file has as well."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import kin

    def call(*words: str) -> list[list[str]]:
        capsys.readouterr()
        kin.main([*words, "--out", "study.md"])
        printed = capsys.readouterr().out
        assert Path("study.md").read_text() == printed
        rows = [line.strip("| ").split(" | ") for line in printed.splitlines() if line.startswith("|")]
        assert len({len(row) for row in rows}) == 1
        return [rows[0], *rows[2:]]

    return call


def test_grouping(study: Study) -> None:
    head, row = study("grouping", *FEW, "--shift", "rotations, 2")
    cells = dict(zip(head, row, strict=True))
    assert (cells["data"], cells["rank"], cells["families found"]) == ("digits", "1", "1 of 1")
    assert cells["precision"] == cells["recall"] == "1.000"


def test_baselines(study: Study) -> None:
    head, *rows = study("baselines", *FEW, "--shift", "rotations, 2", "one distribution")
    assert head[4:] == ["kin", "PACFL, best threshold", "gradient cosines, true number"]
    assert [row[4] for row in rows] == ["1.000 (1.000)"] * 2
    assert [row[6] for row in rows] == ["1.000 (1.000)"] * 2


def test_pacfl_distinguishes_subspaces_only(study: Study) -> None:
    from kin_baselines import _pacfl

    from homophily.data.types import Split

    chance = torch.Generator().manual_seed(0)
    truth = np.arange(12) % 2
    count = torch.full((12,), 10)
    x = torch.rand(12, 10, 1, 6, generator=chance)
    y = torch.zeros(120, dtype=torch.int64)

    def index(x: torch.Tensor) -> float:
        return _pacfl(Split(x.flatten(0, 1), y, count.cumsum(0) - count, count), truth)

    apart = torch.zeros(12, 10, 1, 12)
    apart[::2, ..., :6], apart[1::2, ..., 6:] = x[::2], x[1::2]
    assert index(apart) == 1.0
    assert index(x) < 0.6


def test_calibration(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    import kin_calibration

    monkeypatch.setattr(kin_calibration, "PEERS", (12,))
    head, *rows = study("calibration", "--data", "digits", "gaussian", "--seeds", "1", "--device", "cpu")
    assert head == ["data", "peers", "samples a peer", "federations", "rank above 0"]
    assert [row[2] for row in rows if row[0] == "digits"] == ["20", "50", "10 to 40", "20 to 200"]
    assert [row[2] for row in rows if row[0] == "gaussian"] == ["20", "50", "200", "10 to 40", "20 to 200"]
    images, noise = Path("study.md").read_text().splitlines()[-2:]
    assert "of 4 federations" in images
    assert "of 5 federations" in noise


def test_families(study: Study) -> None:
    head, *rows = study("families", "--data", "digits", "--seeds", "1", "--device", "cpu")
    said = {row[1]: dict(zip(head, row, strict=True)) for row in rows}
    assert said["rotations, 2"]["families"] == "1"
    assert said["rotations, 2, unequal noise"]["families"] == "1"
    assert said["an angle of one's own"]["continuum"] == said["mixtures, labels renamed"]["continuum"] == "1"
    # About one continuum in a hundred is mistaken for families, so one of these eight may be.
    wrong = sum(int(row["families"]) for row in said.values() if row["truth"] == "continuum")
    assert wrong <= 1
    assert f"- Continua taken for families: {wrong} of 8." in Path("study.md").read_text()


def test_power(study: Study) -> None:
    head, row = study("power", *FEW, "--shift", "rotations, 2")
    cells = dict(zip(head, row, strict=True))
    assert float(cells["expected singular value"]) > float(cells["expected edge"])
    assert int(cells["samples needed"]) <= 20
    assert cells["all directions seen"] == "1 of 1"


def test_what_is_found_and_what_is_not_are_reported(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    """The default federation has four clusters; with iid data there is nothing to find."""
    alike, apart = homophily.kin({"data": {"shift": "iid"}}), homophily.kin()
    answer = alike.summary()
    assert (answer["rank"], answer["enough_samples"], answer["conclusive"]) == (0, True, False)
    show.acquaintance(alike, None)
    first, advice, *_ = capsys.readouterr().out.splitlines()
    limit = f"{answer['smallest_difference']:.2g}"
    assert first.startswith(
        f"60 peers, no difference found: two equal groups that differ by less than {limit} standard"
    )
    assert first.endswith("would not have been seen with 20 samples per peer")
    assert "the data may still differ in ways that fingerprints do not show" in advice
    assert apart.conclusive
    assert len(apart.families or []) == 4
    show.acquaintance(apart, None)
    assert capsys.readouterr().out.startswith("60 peers, 4 families\n")


def test_the_study_of_transformers(
    study: Study, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same row for an MLP and a vision transformer; accuracies of the MLP, which trains faster."""
    import kin_transformer

    two = ("mlp, 32 hidden units", "vision transformer, 4x4 patches")
    monkeypatch.setattr(kin_transformer, "NETWORKS", {name: kin_transformer.NETWORKS[name] for name in two})
    kin_transformer.main(["--seeds", "0", "--rounds", "0"])
    found, differ = capsys.readouterr().out.split("\n\n")
    rows = [line.strip("| ").split(" | ") for line in found.splitlines()[2:]]
    assert [row[:2] for row in rows] == [[name, "3"] for name in two]
    assert rows[0][1:] == rows[1][1:]
    assert float(rows[0][2]) > float(rows[0][3])  # the largest singular value is above the edge
    assert float(rows[0][5]) > float(rows[0][4])  # and the clusters differ by more than the smallest difference seen
    assert rows[0][6] == "1.00"
    assert differ == "Answers that differ from network to network: 0.\n"
    monkeypatch.setattr(kin_transformer, "NETWORKS", {two[0]: kin_transformer.NETWORKS[two[0]]})
    kin_transformer.main(["--seeds", "0", "--rounds", "1"])
    *_, accuracies = capsys.readouterr().out.split("\n\n")
    assert accuracies.startswith("| network | random | panm | kin | oracle |\n")
    assert len(accuracies.splitlines()) == 3


def test_accuracy_results_accumulate_over_calls(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    import kin_accuracy

    monkeypatch.setitem(kin_accuracy.SETS, "none", [kin_accuracy.Setting("digits", "small mlp", 20, "rotations, 2", 2)])
    words = ("accuracy", "--set", "none", "--peers", "20", "--device", "cpu", "--store", "store", "--seeds")
    head, _ = study(*words, "1")
    (file,) = Path("store").iterdir()
    assert file.name == "digits-small-mlp-20-samples-rotations-2-20-peers-2-rounds.jsonl"
    first = file.read_text()
    again: dict[str, Any] = dict(zip(head, study(*words, "2")[1], strict=True))
    runs = [json.loads(line) for line in file.read_text().splitlines()]
    assert file.read_text().startswith(first)
    assert [(run["seed"], run["method"]) for run in runs] == [(s, m) for s in (0, 1) for m in kin_accuracy.METHODS]
    assert again["seeds"] == "2"
    kin, oracle = ([run["accuracy"] for run in runs if run["method"] == name] for name in ("kin", "oracle"))
    assert again["kin"].startswith(f"{np.mean(kin):.2f} ± ")
    assert again["kin - oracle"].startswith(f"{np.mean(kin) - np.mean(oracle):+.2f}")


def test_a_study_works_in_several_processes_and_stops_in_time(study: Study) -> None:
    one, two = (study("grouping", *FEW, "--shift", "rotations, 2", "--jobs", jobs)[1] for jobs in ("1", "2"))
    assert one[:-1] == two[:-1]  # all but the time
    assert len(study("grouping", *FEW, "--budget", "0")) == 1
    assert Path("study.md").read_text().endswith("The time was over: 7 of 7 rows are missing.\n")
