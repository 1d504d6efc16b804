"""What a run would take: measured on a few peers, scaled to all of them, and divided among ranks."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from homophily import UserError
from homophily.config.schema import Config
from homophily.experiments import planning
from homophily.experiments.planning import FETCH, PARTS, bits_per_second, measured_parts, plan
from homophily.simulation.configuration import make

Command = Callable[..., tuple[int, str, str]]


def config(peers: int, method: str = "random", contacts: int = 20, **keys: Any) -> Config:
    return make(
        {
            "peers": peers,
            "rounds": 6,
            "contacts": contacts,
            "method": {"name": method, "k": 4},
            "model": {"name": "mlp", "hidden": [8]},
            "data": {"name": "synthetic", "train": 10, "test": 10},
            "training": {"epochs": 1},
            **keys,
        }
    )


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "MEASURED_PEERS", 200)


@pytest.mark.usefixtures("few")
def test_memory_and_work_are_divided_among_the_ranks() -> None:
    alone, four = (plan(config(2000), ranks, "10Gbit", "cpu") for ranks in (1, 4))
    for name in ("models", "data", "decisions"):
        assert alone.memory_per_rank[name] == 4 * four.memory_per_rank[name]
    assert alone.memory_per_rank["models of other ranks"] == alone.network_bytes_per_rank == 0
    assert set(four.seconds_per_round) == {*PARTS, "network"}
    assert alone.seconds_per_round["network"] == 0
    assert not alone.extrapolated
    assert four.extrapolated
    assert plan(config(2001), 1, "10Gbit", "cpu").extrapolated


@pytest.mark.usefixtures("few")
def test_bytes_follow_the_formulae() -> None:
    found = plan(config(2000), 4, "10Gbit", "cpu")
    row = 4 * found.parameters
    assert found.parameters == 16 * 8 + 8 + 8 * 4 + 4
    assert found.bytes_per_round == 2000 * 4 * row
    # 500 peers ask for 4 models each: fewer than 2,000 different ones of the 1,500 of other ranks
    assert 0.5 * 1500 * row < found.network_bytes_per_rank < 1500 * row
    assert found.seconds_per_round["network"] == 8 * found.network_bytes_per_rank / 10e9
    assert found.bottleneck == max(found.seconds_per_round, key=lambda part: found.seconds_per_round[part])


@pytest.mark.parametrize("method", ["random", "panm"])
def test_the_bytes_of_a_measured_round_are_the_models_that_travelled(method: str, tmp_path: Path) -> None:
    found = measured_parts(config(300, method), "cpu", tmp_path / "run")
    assert found.models_in_last_round >= 4
    assert found.bytes_per_round == 300 * found.models_in_last_round * found.model_bytes


def test_fingerprints_are_a_part_of_the_first_round(tmp_path: Path) -> None:
    kin, random = (measured_parts(config(300, method), "cpu", tmp_path / method) for method in ("kin", "random"))
    assert kin.first["fingerprints"] > 0
    assert random.first["fingerprints"] == random.fingerprint_bytes == 0
    assert set(kin.seconds) == {*PARTS, FETCH}
    assert kin.fingerprint_bytes == 4 * 512 * 10  # the mean, and 9 directions of the noise of 10 samples
    assert "fingerprints" in plan(config(300, "kin"), 1, "10Gbit", "cpu").memory_per_rank


METHODS = pytest.mark.parametrize("method", ["random", "panm", "kin"])
MEMORY = """
import re, sys
from pathlib import Path
from homophily.experiments.planning import measured_parts
from tests.experiments.test_planning import config
peak = lambda: int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1])
before = peak()
measured_parts(config(int(sys.argv[1]), sys.argv[2], 100), "cpu", Path(sys.argv[3]))
print((peak() - before) * 1024)
"""


@pytest.mark.slow
@METHODS
def test_the_estimate_is_within_a_factor_of_two_of_a_run(method: str, tmp_path: Path) -> None:
    now = time.process_time  # other processes on the machine do not change it
    measured = measured_parts(config(20_000, method), "cpu", tmp_path / "run", now=now)
    estimated = plan(config(20_000, method), 1, "10Gbit", "cpu", now)
    assert 0.5 < estimated.seconds / sum(measured.seconds.values()) < 2.0
    if method == "kin":
        assert 0.5 < estimated.fingerprint_seconds / measured.first["fingerprints"] < 2.0


@pytest.mark.slow
@METHODS
def test_the_memory_is_within_a_factor_of_two_of_a_run(method: str, tmp_path: Path) -> None:
    words = [sys.executable, "-c", MEMORY, "60000", method, str(tmp_path / "run")]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    assert 0.5 < plan(config(60_000, method, 100), 1, "10Gbit", "cpu").memory / float(done.stdout) < 2.0


@pytest.mark.parametrize(("link", "speed"), [("400Gbit", 4e11), ("1.5 gbit", 1.5e9), ("100Mbit", 1e8)])
def test_links_have_a_speed(link: str, speed: float) -> None:
    assert bits_per_second(link) == speed


@pytest.mark.parametrize(
    ("ranks", "link", "message"),
    [
        (0, "10Gbit", "--ranks 0: must be at least 1"),
        (41, "10Gbit", "--ranks 41: must be at most peers, which is 40"),
        (2, "fast", "--link fast: must be a speed such as 10Gbit"),
        (2, "0Gbit", "--link 0Gbit: must be a speed"),
    ],
)
def test_mistakes_are_refused(ranks: int, link: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan(config(40, contacts=5), ranks, link, "cpu")


def test_fewer_rounds_than_are_measured_can_be_planned() -> None:
    asked = config(8, rounds=1, training={"warmup": 1, "schedule": "cosine"})
    assert plan(asked, 1, "10Gbit", "cpu").seconds > 0


def test_own_data_says_how_many_peers_there_are(command: Command, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "MEASURED_PEERS", 2)  # own data cannot be measured with fewer peers than it has
    (here / "sites.csv").write_text("site,a,label\n" + "".join(f"{'abc'[i % 3]},{i},{i % 2}\n" for i in range(60)))
    words = ("data=sites.csv", "data.peer=site", "data.target=label", "model=linear", "method=random", "method.k=1")
    code, out, err = command("plan", *words, "--device", "cpu")
    assert (code, err) == (0, "")
    assert "3 peers on 1 rank," in out


def test_the_command_prints_a_table_or_json(command: Command, here: Path) -> None:
    words = ("plan", "peers=60", "data=synthetic", "method=random", "--ranks", "2", "--link", "10Gbit")
    code, out, err = command(*words, "--device", "cpu")
    assert (code, err) == (0, "")
    assert "60 peers on 2 ranks" in out
    assert "bottleneck: " in out
    code, out, _ = command(*words, "--device", "cpu", "--json")
    found = json.loads(out)
    assert found["ranks"] == 2
    assert found["memory"] == sum(found["memory_per_rank"].values())
    assert list(here.iterdir()) == []
