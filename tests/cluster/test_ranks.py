"""Runs on several ranks of torchrun, real processes, against the same runs in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from homophily.atomic_io import read_tensors
from homophily.runs.reader import Run
from tests.cluster import driver
from tests.cluster.configs import CONFIGS, config
from tests.patience import PATIENCE

EXACT = [name for name in CONFIGS if config(name)["engine"] == "one-by-one"]
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def torchrun(ranks: int, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LAUNCH, "--nproc-per-node", str(ranks), "-m", *words],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs, in this process."""
    folder = tmp_path_factory.mktemp("alone")
    before = torch.get_num_threads()
    driver.main(folder, list(CONFIGS))
    torch.set_num_threads(before)
    return folder


def contents(run: Path) -> dict[str, Any]:
    """Everything in a run's folder but times, places and paths."""

    def timeless(line: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in line.items() if key not in ("seconds", "run")}

    plain = {path.name: path.read_bytes() for path in (run / "history").iterdir()}
    lines = [timeless(json.loads(line)) for line in (run / "metrics.jsonl").read_text().splitlines()]
    tables = {name: json.loads((run / f"{name}.json").read_text()) for name in ("summary", "scores")}
    return {
        **plain,
        "config": Run(run).config,
        "metrics": lines,
        "scores": tables["scores"],
        "summary": timeless(tables["summary"]),
    }


def tensors(run: Path) -> dict[str, torch.Tensor]:
    files = [run / "models.safetensors", run / "merges.safetensors", run / "inputs.safetensors"]
    return {f"{file.stem}/{name}": tensor for file in files for name, tensor in read_tensors(file).items()}


@pytest.mark.filterwarnings("ignore::homophily.DivergedWarning")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_any_number_of_ranks_gives_the_same_run_folder(ranks: int, alone: Path, tmp_path: Path) -> None:
    done = torchrun(ranks, "tests.cluster.driver", str(tmp_path), *CONFIGS)
    assert done.returncode == 0, done.stderr
    for name in [*EXACT, driver.OWN]:
        assert contents(tmp_path / name) == contents(alone / name), name
        found, expected = tensors(tmp_path / name), tensors(alone / name)
        assert found.keys() == expected.keys()
        for key in found:
            assert found[key].numpy().tobytes() == expected[key].numpy().tobytes(), (name, key)
    for name in CONFIGS.keys() - set(EXACT):
        found, expected = tensors(tmp_path / name), tensors(alone / name)
        torch.testing.assert_close(found["models/rows"], expected["models/rows"], rtol=1e-4, atol=1e-5)
