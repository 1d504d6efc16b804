"""Of all processes that share a folder, one at a time holds a name, and the name of a dead process is taken over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from homophily.experiments import leases as module
from homophily.experiments.leases import Lease, Leases
from tests.patience import PATIENCE

HOLD = """
import sys, time
from pathlib import Path
from homophily.experiments.leases import Leases
print(Leases(Path(sys.argv[1])).take("run") is not None, flush=True)
time.sleep(60)
"""


def of_another_machine(folder: Path, generation: int, age: float) -> Path:
    """A lease file of a process that gave its last sign of life so many seconds ago."""
    folder.mkdir(exist_ok=True)
    path = folder / f"run.{generation}"
    path.write_text(json.dumps({"host": "elsewhere", "machine": "elsewhere 1", "pid": 7, "started": "5"}))
    now = time.time()
    os.utime(path, (now - age, now - age))
    return path


def test_a_name_is_held_until_it_is_released(tmp_path: Path) -> None:
    one, other = Leases(tmp_path / "leases"), Leases(tmp_path / "leases")
    lease = one.take("run")
    assert lease is not None
    assert (other.take("run"), one.take("run"), lease.lost) == (None, None, False)
    assert other.take("run.1") is not None
    assert f"process {os.getpid()}" in str(other.holder("run"))
    one.release(lease)
    assert other.holder("run") is None
    assert other.take("run") is not None
    assert lease.lost


def test_leases_are_released_when_they_are_kept_no_longer(tmp_path: Path) -> None:
    leases = Leases(tmp_path)
    with leases.kept():
        leases.take("run")
        assert Leases(tmp_path).take("run") is None
    assert Leases(tmp_path).take("run") is not None


def test_a_lease_that_is_released_during_a_sign_of_life_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, releasing = os.utime, threading.Event()

    def utime(path: Path, times: tuple[int, int] | None = None) -> None:
        if threading.current_thread().name == "leases" and not releasing.is_set():
            thread.start()
            thread.join(0.5)  # it ends only if it does not wait for the sign of life
            releasing.set()
        real(path, times)

    monkeypatch.setattr(module, "_BEAT", 0.01)
    monkeypatch.setattr(os, "utime", utime)
    leases = Leases(tmp_path)
    lease = leases.take("run")
    assert lease is not None
    thread = threading.Thread(target=leases.release, args=[lease])
    with leases.kept():
        assert releasing.wait(PATIENCE)
        thread.join()
    assert Leases(tmp_path).holder("run") is None
    assert leases.take("run") is not None


@pytest.mark.parametrize(("age", "free"), [(0.0, False), (130.0, True)])
def test_the_age_counts_where_processes_cannot_be_looked_up(
    age: float, free: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_started", lambda _: None)  # as without /proc
    lease = Leases(tmp_path).take("run")
    assert lease is not None
    now = time.time()
    os.utime(lease.path, (now - age, now - age))
    assert (Leases(tmp_path).take("run") is not None) == free


def test_many_that_ask_at_once_get_one_lease(tmp_path: Path) -> None:
    of_another_machine(tmp_path, 4, age=1000)

    def take(_: int) -> Lease | None:
        return Leases(tmp_path).take("run")

    with ThreadPoolExecutor(16) as pool:
        taken = [lease for lease in pool.map(take, range(64)) if lease is not None]
    assert [lease.path.name for lease in taken] == ["run.5"]
    assert [path.name for path in tmp_path.iterdir()] == ["run.5"]


def test_the_lease_of_a_killed_process_is_taken_over_at_once(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        leases = Leases(tmp_path)
        assert leases.take("run") is None
        os.kill(process.pid, signal.SIGSTOP)  # a process that is only suspended keeps its lease
        assert leases.take("run") is None
        os.kill(process.pid, signal.SIGKILL)
    lease = leases.take("run")
    assert lease is not None
    assert lease.path.name == "run.2"


@pytest.mark.parametrize(("age", "free"), [(0.0, False), (100.0, False), (130.0, True)])
def test_the_lease_of_another_machine_is_taken_over_after_two_minutes(age: float, free: bool, tmp_path: Path) -> None:
    of_another_machine(tmp_path, 1, age)
    leases = Leases(tmp_path)
    assert leases.holder("run") == (None if free else "elsewhere, process 7")
    assert (leases.take("run") is not None) == free


def test_the_clock_of_the_file_system_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's clock is an hour ahead: a lease that is alive stays with its holder."""
    of_another_machine(tmp_path, 1, age=0.0)
    ahead = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: ahead)
    assert Leases(tmp_path).take("run") is None


def test_a_holder_that_was_suspended_for_too_long_notices_that_its_lease_is_lost(tmp_path: Path) -> None:
    mine = Leases(tmp_path).take("run")
    assert mine is not None
    of_another_machine(tmp_path, 2, age=0.0)
    assert mine.lost


def test_a_file_that_its_creator_has_not_written_yet_is_respected(tmp_path: Path) -> None:
    (tmp_path / "run.1").touch()
    assert Leases(tmp_path).take("run") is None
