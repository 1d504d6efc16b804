"""The picture of a comparison: one point per round and seed, and nothing for a value that does not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

import homophily

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_the_curves_of_a_comparison_are_those_of_its_runs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import curves

    keys = {"peers": 8, "rounds": 3, "data": {"angles": [0, 90]}}
    compared = homophily.compare(keys, methods=["local", "random"], seeds=[0, 1], out="both")
    found = homophily.Comparison("both").runs
    assert {method: len(runs) for method, runs in found.items()} == {"local": 2, "random": 2}
    rounds, values = curves.curve(found["random"], "accuracy")
    assert rounds.tolist() == [1, 2, 3]
    assert values[-1].tolist() == [run.summary["accuracy"] for run in compared.runs["random"]]
    assert len(curves.curve(found["local"], "same_cluster_merges")[0]) == 0  # local merges with nobody
    curves.draw(found, Path("curves.png"))
    assert Path("curves.png").read_bytes().startswith(b"\x89PNG")
