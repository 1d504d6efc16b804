"""The faults of benchmarks/faults.py: nothing hangs, no round that was over is lost, and all peers meet again."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
DEADLINE = 30.0  # seconds: peer.deadline
Play = Callable[..., list[Any]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    """Plays a fault; it is over when all peers have met again."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import faults

    def call(name: str, **keys: Any) -> list[Any]:
        if (reason := faults.obstacle(name)) is not None:
            pytest.skip(reason)
        results = list(faults.FAULTS[name](**keys))
        assert [each.lost for each in results] == [0] * len(results)
        # Nobody hangs. A pause ends at the deadline; the rest is for machines that are busy.
        assert all(each.pause is None or each.pause < 3 * DEADLINE for each in results)
        assert results[-1].recovered is not None
        return results

    return call


def test_a_full_disk_ends_a_peer_with_a_message_and_loses_no_round(play: Play) -> None:
    (result,) = play("disk")
    assert "exit code 2" in result.note
    assert "No space left on device" in result.note


def test_a_clock_that_is_set_by_an_hour_stops_nobody(play: Play) -> None:
    for result in play("clock", from_the_start=()):
        assert result.pause < DEADLINE


def test_a_fault_that_cannot_be_played_is_skipped_with_its_reason(
    play: Play, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import faults

    out = tmp_path / "page.md"
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    monkeypatch.setattr(sys, "argv", ["faults.py", "--only", "clock", "--out", str(out)])
    faults.main()
    assert "SKIPPED: clock (needs faketime)" in capsys.readouterr().err
    assert not out.exists()
    assert "\nNot measured: clock (needs faketime).\n" in faults.page(
        [faults.Result("freeze", 1.0, 2.0, 3.0)], ["clock (needs faketime)"]
    )


def test_the_limits_on_the_page_are_rounded_upwards(play: Play) -> None:
    import faults

    page = faults.page([faults.Result("freeze", 1.0, 2.1, 18.2)], [])
    assert "the others pause for at most 3 s." in page
    assert "All peers meet again within 19 s." in page


@pytest.mark.slow
def test_a_clock_that_is_wrong_by_an_hour_from_the_start(play: Play) -> None:
    assert len(play("clock")) == 4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_peer_killed_while_it_sends_a_model_of_50_mb(play: Play) -> None:
    killed, restarted = play("kill")
    assert not killed.note.startswith("0 of")
    assert killed.alone < DEADLINE
    assert restarted.recovered < 120


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_peer_frozen_beyond_the_lease(play: Play) -> None:
    (result,) = play("freeze")
    assert result.alone < 20


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_restarts_with_and_without_the_state_folder(play: Play) -> None:
    assert len(play("restart")) == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_link_that_is_too_slow_for_the_model(play: Play) -> None:
    play("slow")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_partition_in_halves_that_heals(play: Play) -> None:
    play("partition")
