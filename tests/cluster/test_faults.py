"""A rank that is killed ends the run with a sentence that names it; the run continues on another number of ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from homophily.runs.reader import Run
from tests.cluster.test_ranks import LAUNCH, contents, tensors, torchrun

KEYS = ["method=pens", "peers=7", "rounds=60", "engine=one-by-one", "data.train=8", "data.test=6", "checkpoint=5"]


def rank_of(launcher: int, rank: int) -> int:
    """The process id of a rank."""
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        if f"RANK={rank}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    raise AssertionError(f"there is no rank {rank}")


def wait_for_checkpoint(folder: Path) -> None:
    until = time.monotonic() + 60
    while not list(folder.glob("checkpoints/round-*[0-9]")):
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.usefixtures("here")
def test_a_killed_rank_is_named_and_the_run_continues_on_another_number_of_ranks() -> None:
    words = ["homophily", "run", *KEYS, "--device", "cpu", "--out"]
    with subprocess.Popen(
        [*LAUNCH, "--nproc-per-node", "3", "-m", *words, "killed"],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "HOMOPHILY_RANK_TIMEOUT": "20"},
    ) as launcher:  # fmt: skip
        wait_for_checkpoint(Path("killed"))
        os.kill(rank_of(launcher.pid, 1), signal.SIGKILL)
        _, said = launcher.communicate(timeout=40)
    assert launcher.returncode != 0
    assert "rank 1 of 3 has ended" in said
    assert not Run("killed").finished
    done = torchrun(2, "homophily", "run", "--resume", "killed")
    assert done.returncode == 0, done.stderr
    alone = subprocess.run([sys.executable, "-m", *words, "alone"], check=False, capture_output=True, timeout=60)
    assert alone.returncode == 0
    assert contents(Path("killed")) == contents(Path("alone"))
    found, expected = ({name: t.tolist() for name, t in tensors(Path(run)).items()} for run in ("killed", "alone"))
    assert found == expected


@pytest.mark.usefixtures("here")
def test_a_mistake_is_printed_once() -> None:
    done = torchrun(2, "homophily", "run", "method=pens", "method.on=peer", "--device", "cpu")
    assert done.returncode != 0
    assert done.stderr.count("is measured in one process only") == 1
