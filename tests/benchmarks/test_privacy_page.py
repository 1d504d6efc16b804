"""The benchmark of private training: results are written run by run, and one command makes the page from files."""

from __future__ import annotations

import shutil
import statistics
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FEW = [
    "--peers",
    "4",
    "--rounds",
    "1",
    "--test",
    "10",
    "--data",
    "digits",
    "--networks",
    "small MLP",
    "--samples",
    "20",
]


def test_results_of_several_processes_become_one_page(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    pytest.importorskip("matplotlib")
    import privacy_accuracy
    import privacy_page

    for name, seed, methods in (("a", 0, ["kin", "random"]), ("b", 0, ["oracle"]), ("c", 1, ["oracle"])):
        words = [*FEW, "--epsilons", "8", "0.1", "--methods", *methods, "--out", f"{name}.jsonl", "--seed", str(seed)]
        monkeypatch.setattr(sys, "argv", ["privacy_accuracy.py", "runs", *words])
        privacy_accuracy.main()
    first = privacy_accuracy.records_in(Path("a.jsonl"))
    assert [(one["method"], one["epsilon"]) for one in first] == [
        ("kin", 8.0), ("kin", 0.1), ("random", 8.0), ("random", 0.1),
    ]  # fmt: skip
    assert first[0]["accuracy"] >= 0
    assert "max_noise" in first[1]["refused"]

    shutil.copytree(ROOT / "results" / "privacy", "results/privacy")
    monkeypatch.setattr(privacy_page, "ROOT", Path("results"))
    for _ in range(2):  # the second time nothing is added
        monkeypatch.setattr(sys, "argv", ["privacy_page.py", "a.jsonl", "b.jsonl", "c.jsonl"])
        privacy_page.main()
        records = privacy_accuracy.records_in(Path("results/privacy/accuracy.jsonl"))
        assert sum(one["data"] == "digits" for one in records) == 8
    page = Path("results/privacy.md").read_text()
    kin = first[0]["accuracy"]
    seeds = [privacy_accuracy.records_in(Path(file)) for file in ("b.jsonl", "c.jsonl")]
    eight, tenth = (
        f"{statistics.fmean(scores):.1f} ± {statistics.stdev(scores):.1f}"
        for scores in ([records[i]["accuracy"] for records in seeds] for i in (0, 1))
    )
    assert f"| digits | small MLP | 20 | oracle | {tenth} | - | - | - | {eight} | - |" in page
    assert f"| digits | small MLP | 20 | kin | refused | - | - | - | {kin:.1f} | - |" in page
    assert "With privacy, `kin` is at most 2 points below oracle" in page
    assert "- **Private kin.** Mean difference in points: epsilon " in page
    assert "kin without privacy: NVIDIA H200." in page
    assert page.count("- Refused: digits, small MLP, 20, kin, epsilon 0.1") == 1  # its fingerprint


def test_hardware_is_listed_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from privacy_accuracy_section import hardware

    one = {"data": "digits", "network": "small MLP", "samples": 20, "method": "oracle", "epsilon": 1.0}
    found = [{**one, "seed": seed, "machine": "A" if seed == 0 else "B"} for seed in range(3)]
    assert hardware(found) == "\n- Hardware, seed 0: oracle: A.\n- Hardware, seeds 1, 2: oracle: B."


def test_the_page_is_the_one_that_the_result_files_give(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    pytest.importorskip("matplotlib")
    import privacy_page

    shutil.copytree(ROOT / "results" / "privacy", "results/privacy")
    monkeypatch.setattr(privacy_page, "ROOT", Path("results"))
    monkeypatch.setattr(sys, "argv", ["privacy_page.py"])
    privacy_page.main()
    assert Path("results/privacy.md").read_text() == (ROOT / "results" / "privacy.md").read_text()


def test_a_file_without_results_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    pytest.importorskip("matplotlib")
    import privacy_page

    Path("empty.jsonl").write_text("")
    monkeypatch.setattr(sys, "argv", ["privacy_page.py", "empty.jsonl"])
    with pytest.raises(SystemExit):
        privacy_page.main()
