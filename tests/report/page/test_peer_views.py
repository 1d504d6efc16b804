"""The view of a real peer's state folder."""

from __future__ import annotations

import json
import shutil
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from homophily import Run, UserError
from homophily.report.page.document import views_of
from tests.report.page.views import figure


def test_a_real_peer_s_state_shows_whom_it_merged_with(state: Path) -> None:
    (view,) = views_of([state])
    assert view.title == "Peer peer-1"
    shown, metrics = figure(view, "partners"), Run(state).metrics()
    merged = {(name, line["round"]) for line in metrics for name in line["merged"]}
    events = {(shown.rows[row], shown.rounds[column]) for row, column in np.argwhere(shown.events == 2).tolist()}
    assert events == merged
    assert list(figure(view, "by-round").series[0].y) == [line["accuracy"] for line in metrics]
    assert "refused no message" in figure(view, "refused").text
    facts = dict(view.facts)
    assert float(facts["MB served"]) > 0
    assert facts["certificate's last day"] > date.today().isoformat()
    assert {row[0] for row in figure(view, "reachable").rows} == {"peer-0", "peer-2", "peer-3"}


def test_a_peer_says_why_a_connection_fails(state: Path, tmp_path: Path) -> None:
    shutil.copytree(state, tmp_path / "peer")
    status = json.loads((state / "status.json").read_text())
    for failed, why in (({}, "every address in peer.connect was reached"), (None, "this is not known")):
        (tmp_path / "peer/status.json").write_text(json.dumps(status | {"failed_connections": failed}))
        assert figure(views_of([tmp_path / "peer"])[0], "failing").text == why
    failed = {"clinic:7447": "certificate expired on 2026-11-13"}
    (tmp_path / "peer/status.json").write_text(json.dumps(status | {"failed_connections": failed}))
    assert figure(views_of([tmp_path / "peer"])[0], "failing").rows == [[*failed, *failed.values()]]


def test_a_peer_s_refusals_are_shown_by_kind(state: Path, tmp_path: Path) -> None:
    shutil.copytree(state, tmp_path / "peer")
    status = json.loads((state / "status.json").read_text())
    refused = {"altered chunk (b)": 1, "handshake: x": 1, "altered chunk (a)": 2}
    (tmp_path / "peer/status.json").write_text(json.dumps(status | {"refused": refused}))
    shown = figure(views_of([tmp_path / "peer"])[0], "refused")
    assert list(shown.headings) == ["kind", "count", "last reason"]
    assert shown.rows == [["altered chunk", "3", "altered chunk (a)"], ["handshake: x", "1", "handshake: x"]]


def test_a_damaged_status_is_refused(state: Path, tmp_path: Path) -> None:
    shutil.copytree(state, tmp_path / "peer")
    (tmp_path / "peer/status.json").write_text("[1]")
    with pytest.raises(UserError, match="must hold a JSON object"):
        views_of([tmp_path / "peer"])
