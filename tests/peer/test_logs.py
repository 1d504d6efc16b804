"""The log of a peer: as text or as JSON lines, rotated by size, and on stderr if wanted."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from homophily.peer import Peer
from homophily.peer.deploy import write_files
from homophily.peer.logs import LogSettings, logged_to, peer_logger
from homophily.simulation.configuration import make

CONFIG = {"peers": 2, "rounds": 1, "method": {"name": "random", "k": 1}, "data": {"test": 10, "angles": [0]}}


def test_a_json_line_has_time_level_peer_and_message(tmp_path: Path) -> None:
    log = peer_logger("hospital-a")
    with logged_to(tmp_path / "peer.log", log, LogSettings(as_json=True)):
        log.warning('%s connected\nwith "quotes" and an ä', "hospital-b")
    (line,) = (tmp_path / "peer.log").read_text(encoding="utf-8").splitlines()
    found = json.loads(line)
    time = datetime.fromisoformat(found.pop("time"))
    assert timedelta() <= datetime.now(UTC) - time < timedelta(minutes=1)
    message = 'hospital-b connected\nwith "quotes" and an ä'
    assert found == {"level": "warning", "peer": "hospital-a", "message": message}


def test_as_many_older_files_are_kept_as_asked_for(tmp_path: Path) -> None:
    log = peer_logger("hospital-a")
    with logged_to(tmp_path / "peer.log", log, LogSettings(bytes=1000, older=3)):
        for number in range(100):
            log.info("line %d %s", number, "x" * 100)
    names = ["peer.log", "peer.log.1", "peer.log.2", "peer.log.3"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    assert "line 99 " in (tmp_path / "peer.log").read_text(encoding="utf-8")


def test_the_log_is_printed_only_if_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = peer_logger("hospital-a")
    for wanted in (False, True):
        with logged_to(tmp_path / "peer.log", log, LogSettings(to_stderr=wanted)):
            log.info("hello")
        assert ("hello" in capsys.readouterr().err) == wanted
    assert log.handlers == []


def test_a_peer_writes_its_log_as_its_settings_say(tmp_path: Path) -> None:
    keys = {"deadline": 1.0, "lease": 0.5, "wait_for": 0, "log_mb": 0.01, "log_files": 2}
    file, _ = write_files(make(CONFIG), 2, tmp_path, "free", **keys)
    with Peer(file, json_log=True) as peer:
        peer.result()
        (handler,) = (one for one in peer_logger("peer-0").handlers if isinstance(one, logging.FileHandler))
        assert (handler.maxBytes, handler.backupCount) == (10485, 2)  # type: ignore[attr-defined]
    lines = [json.loads(line) for line in (peer.settings.state / "peer.log").read_text().splitlines()]
    assert {line["peer"] for line in lines} == {"peer-0"}
    assert "its state folder holds 0 of 1 rounds" in lines[0]["message"]
