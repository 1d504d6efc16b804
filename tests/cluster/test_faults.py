"""A rank that is killed ends the run with a sentence that names it; the run continues on another number of ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from homophily.runs.reader import Run
from tests.cluster.test_ranks import LAUNCH, contents, tensors, torchrun
from tests.patience import PATIENCE, until

KEYS = ["method=pens", "peers=7", "rounds=60", "engine=one-by-one", "data.train=8", "data.test=6", "checkpoint=5"]

UNDECLARED = """
from homophily.federation.similarity import MetricCost, costs

@costs(MetricCost(models=2))
def undeclared(pairs):
    return -pairs.loss("peer", "validation")
"""

DIFFERENT = """
import os

import numpy as np

from homophily import PeerData

def peers():
    rng = np.random.default_rng(int(os.environ["RANK"]))
    return [PeerData(rng.normal(size=(8, 3)), rng.integers(0, 2, 8)) for _ in range(4)]
"""


UNLIKE = """
import torch

from homophily import Method

class Wide(Method):
    def meet(self, now):
        return now.known

    def choose(self, now, met, similarity):
        now.memory["seen"] = torch.zeros(len(now.view.me), 1 + int(now.view.me.max()))
        return met

    def diagnostics(self, now, met, similarity):
        return {"seen": now.memory["seen"]}

class Typed(Wide):
    def choose(self, now, met, similarity):
        kind = torch.float32 if 0 in now.view.me else torch.float64
        now.memory["seen"] = torch.zeros(len(now.view.me), 2, dtype=kind)
        return met

class Named(Wide):
    def choose(self, now, met, similarity):
        if 0 in now.view.me:
            now.memory["seen"] = torch.zeros(len(now.view.me), 2)
        return met

class Printed(Wide):
    uses_fingerprints = True

    def choose(self, now, met, similarity):
        return met

    def diagnostics(self, now, met, similarity):
        return {}

    def on_fingerprints(self, view, prints, ids, limited):
        name = "first" if 0 in view.me else "others"
        return {name: torch.zeros(len(view.me), 2)}
"""


SCRIPT = """
import homophily

data = {"train": 8, "test": 6}
homophily.run(
    {"peers": 7, "rounds": 5000, "method": "random", "checkpoint": 5, "data": data}, out="killed", device="cpu"
)
"""

CATCHES = """
import os
import time
from collections.abc import Callable
from pathlib import Path

def peers():
    if os.environ["RANK"] == "0":
        raise ValueError("no data here")
    try:
        time.sleep(60)
    except Exception:
        Path("caught").touch()
"""


def rank_of(launcher: int, rank: int) -> int:
    """The process id of a rank."""
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        if f"RANK={rank}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    raise AssertionError(f"there is no rank {rank}")


def wait_for_checkpoint(folder: Path) -> None:
    until(lambda: list(folder.glob("checkpoints/round-*[0-9]")), "a checkpoint")


def said_after_kill(ranks: int, words: list[str], run: Path) -> str:
    """Start ranks, kill rank 1 after the first checkpoint of a run, and return what the others say."""
    return said_after(lambda launcher: os.kill(rank_of(launcher, 1), signal.SIGKILL), ranks, words, run)


def said_after(end: Callable[[int], None], ranks: int, words: list[str], run: Path) -> str:
    """Start ranks, end some of them, or their launcher, after the first checkpoint; return what they say."""
    with subprocess.Popen(
        [*LAUNCH, "--nproc-per-node", str(ranks), "-m", *words],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "HOMOPHILY_RANK_TIMEOUT": "20"},
    ) as launcher:  # fmt: skip
        wait_for_checkpoint(run)
        end(launcher.pid)
        _, said = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode != 0
    return said


@pytest.mark.usefixtures("here")
def test_a_killed_rank_is_named_and_the_run_continues_on_another_number_of_ranks() -> None:
    words = ["homophily", "run", *KEYS, "--device", "cpu", "--out"]
    assert "rank 1 of 3 has ended" in said_after_kill(3, [*words, "killed"], Path("killed"))
    assert not Run("killed").finished
    done = torchrun(2, "homophily", "run", "--resume", "killed")
    assert done.returncode == 0, done.stderr
    alone = subprocess.run([sys.executable, "-m", *words, "alone"], check=False, capture_output=True, timeout=PATIENCE)
    assert alone.returncode == 0
    assert contents(Path("killed")) == contents(Path("alone"))
    found, expected = ({name: t.tolist() for name, t in tensors(Path(run)).items()} for run in ("killed", "alone"))
    assert found == expected


@pytest.mark.usefixtures("here")
def test_a_script_names_the_killed_rank_too() -> None:
    Path("script.py").write_text(SCRIPT)
    assert "rank 1 of 3 has ended" in said_after_kill(3, ["script"], Path("killed"))


@pytest.mark.usefixtures("here")
def test_one_rank_says_how_to_continue_a_stopped_run() -> None:
    words = ["homophily", "run", *KEYS, "rounds=5000", "--device", "cpu", "--out", "stopped"]
    said = said_after(lambda launcher: os.kill(launcher, signal.SIGINT), 3, words, Path("stopped"))
    assert said.count("stopped; continue with: homophily run --resume stopped") == 1


@pytest.mark.usefixtures("here")
def test_a_rank_that_hangs_is_named_within_the_timeout() -> None:
    words = ["-m", "homophily", "run", *KEYS, "rounds=2000", "--device", "cpu", "--out", "hangs"]
    with subprocess.Popen(
        [*LAUNCH, "--nproc-per-node", "3", *words],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "HOMOPHILY_RANK_TIMEOUT": "8"},
    ) as launcher:  # fmt: skip
        assert launcher.stderr is not None
        wait_for_checkpoint(Path("hangs"))
        hung = rank_of(launcher.pid, 2)
        os.kill(hung, signal.SIGSTOP)
        began = time.monotonic()
        said = next((line for line in launcher.stderr if "did not answer" in line), "")
        took = time.monotonic() - began
        os.kill(hung, signal.SIGKILL)  # torchrun would do it after 30 seconds
        launcher.communicate(timeout=PATIENCE)
    assert "rank 2 of 3 did not answer for 8 seconds" in said
    assert took < 20
    assert launcher.returncode != 0


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["rounds=-1"], "rounds = -1"),
        (["privacy.epsilon=0.1", *KEYS], "privacy: method = 'pens' compares losses on private data"),
        (["data=synthetic", "data.clusters=2", "peers=2"], "peers = 2: 3 processes need at least as many peers"),
    ],
)
def test_a_run_that_is_refused_on_all_ranks_ends_with_one_sentence(words: list[str], says: str) -> None:
    done = torchrun(3, "homophily", "run", *words, "--device", "cpu", HOMOPHILY_RANK_TIMEOUT="3600")  # nobody waits
    assert done.returncode != 0
    assert done.stderr.count(says) == 1
    # torchrun may end ranks that are still starting after another has said why.
    errors = [line for line in done.stderr.splitlines() if "error: " in line and says not in line]
    assert all("of 3 has failed" in line for line in errors), errors
    assert not Path("runs").exists()


@pytest.mark.usefixtures("here")
def test_a_loss_on_the_peers_data_that_the_metric_does_not_declare_is_refused_by_one_rank_for_all() -> None:
    Path("mine.py").write_text(UNDECLARED)
    done = torchrun(2, "homophily", "run", *KEYS, "method.metric=mine:undeclared", "data.validation=4", "--device=cpu")
    assert done.returncode != 0
    declare = "its MetricCost must declare models=2, samples='validation'"
    assert done.stderr.count(declare) == 1


@pytest.mark.usefixtures("here")
def test_data_that_differs_between_the_ranks_is_refused() -> None:
    Path("mine.py").write_text(DIFFERENT)
    done = torchrun(2, "homophily", "run", "data=mine:peers", "data.test=2", "rounds=1", "--device=cpu")
    assert done.returncode != 0
    assert done.stderr.count("data: it differs between the processes of this run") == 1
    assert not Path("runs").exists()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("method", "where", "what", "first", "second"),
    [
        ("Wide", "choose", "widths", "memory['seen'] float32 [P, 4]", "memory['seen'] float32 [P, 7]"),
        ("Typed", "choose", "widths", "memory['seen'] float32 [P, 2]", "memory['seen'] float64 [P, 2]"),
        ("Named", "choose", "widths", "memory['seen'] float32 [P, 2]", "nothing"),
        ("Printed", "on_fingerprints", "axes", "memory['first'] float32 [P, -]", "memory['others'] float32 [P, -]"),
    ],
)
def test_a_method_whose_tables_differ_between_the_ranks_is_refused(
    method: str, where: str, what: str, first: str, second: str
) -> None:
    Path("mine.py").write_text(UNLIKE)
    done = torchrun(2, "homophily", "run", *KEYS, f"method=mine:{method}", "rounds=1", "--device=cpu")
    assert done.returncode != 0
    says = f"method: {where} must store tables of the same names, types and {what} on all ranks, but rank 0 has {first}"
    assert done.stderr.count(f"{says}, and rank 1 has {second}\n") == 1


@pytest.mark.usefixtures("here")
def test_other_commands_are_refused() -> None:
    done = torchrun(2, "homophily", "list", "methods")
    assert done.returncode != 0
    assert done.stderr.count("torchrun starts `homophily run` and `homophily compare` only") == 1


@pytest.mark.usefixtures("here")
def test_code_that_catches_errors_does_not_keep_a_rank_from_ending() -> None:
    Path("catches.py").write_text(CATCHES)
    done = torchrun(2, "homophily", "run", "data=catches:peers", "method=random", "--device", "cpu")
    assert done.returncode != 0
    assert "no data here" in done.stderr
    assert not Path("caught").exists()
