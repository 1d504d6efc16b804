"""What `homophily status` prints."""

import json
from datetime import datetime
from pathlib import Path

import pytest

pytest.importorskip("zenoh", reason="real peers need the peer extra")

from homophily.cli.peer import status


def test_status_prints_times_as_dates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written, expires = (datetime(2026, 11, 18, hour).timestamp() for hour in (9, 15))
    found = {"peer": "clinic-a", "time": written, "certificate_expires": expires}
    (tmp_path / "status.json").write_text(json.dumps(found), encoding="utf-8")
    status(tmp_path)
    shown = {line[:20].strip(): line[20:].strip() for line in capsys.readouterr().out.splitlines()}
    assert shown["time"] == "2026-11-18 09:00:00"
    assert shown["certificate expires"] == "2026-11-18 15:00:00"
    status(tmp_path, as_json=True)
    assert json.loads(capsys.readouterr().out) == found
