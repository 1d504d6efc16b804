"""The table of a comparison and the notes below it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import homophily
from homophily.report.comparison_table import comparison

SMALL: dict[str, Any] = {"peers": 8, "rounds": 1, "data": {"train": 20, "test": 10, "angles": [0, 180]}}


def test_notes_of_a_sweep_are_printed_once_for_all_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = homophily.compare(SMALL, methods=["kin"], sweep={"method.k": [1, 2]}, out=tmp_path / "study")
    note, *_ = found.runs["kin k=1"][0].summary["notes"]
    comparison(found)
    assert f"note: kin: {note}\n" in capsys.readouterr().out
    summary = found.runs["kin k=2"][0].path / "summary.json"
    summary.write_text(summary.read_text().replace(json.dumps(note)[1:-1], "another note"))
    comparison(found)
    assert f"note: kin k=1, seed 0: {note}\nnote: kin k=2, seed 0: another note\n" in capsys.readouterr().out


def test_rows_with_different_numbers_of_seeds_show_how_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    homophily.compare(SMALL, methods=["local"], seeds=[0, 1, 2], out=tmp_path / "study")
    homophily.compare(SMALL, methods=["random"], out=tmp_path / "study")
    (tmp_path / "study" / "local-2" / "summary.json").unlink()
    comparison(homophily.Comparison(tmp_path / "study"), fair=True)
    out = capsys.readouterr().out
    assert out.startswith("accuracy, %, 1 to 2 seeds\n")
    lines = [line.split() for line in out.splitlines()]
    assert lines[2][:2] == ["method", "seeds"]
    assert [line[:2] for line in lines if line[:1] in (["local"], ["random"])] == [["local", "2"], ["random", "1"]]
    assert "worst tenth  std over peers" in out
    assert "note: local-2 has not finished\n" in out
    assert "▁" not in out  # not a terminal


def test_a_comparison_without_finished_runs_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    homophily.compare(SMALL, methods=["local"], out=tmp_path / "study")
    (tmp_path / "study" / "local-0" / "summary.json").unlink()
    comparison(homophily.Comparison(tmp_path / "study"))
    assert capsys.readouterr().out == f"note: local-0 has not finished\nrun folder: {tmp_path / 'study'}\n"


def test_runs_with_different_headlines_stand_in_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = {"peers": 4, "rounds": 1, "model": "linear"}
    found = homophily.compare(keys, methods=["local"], sweep={"data": ["digits", "linear"]}, out=tmp_path / "study")
    comparison(found)
    out = capsys.readouterr().out
    (digits,) = (line.split() for line in out.splitlines() if line.split()[:2] == ["local", "digits"])
    (linear,) = (line.split() for line in out.splitlines() if line.split()[:2] == ["local", "linear"])
    assert len(digits) == len(linear)
    assert "-" in linear[2:-2]
