"""The facts and notes of the live page, from a folder that changes."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import homophily
from homophily.atomic_io import locked
from homophily.report.live.following import Following, enumerated
from homophily.report.page.figures import Timeline
from tests.report.page.folders import HOSTILE, network, peers


def shown(folder: Path) -> tuple[dict[str, str], list[str]]:
    """The facts and the notes."""
    (view,) = Following(folder).snapshot().views
    return dict(view.facts), list(view.notes)


def rewritten(folder: Path, **fields: Any) -> None:
    """Other values in the line of the last round."""
    path = folder / "metrics.jsonl"
    *lines, last = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([*lines, json.dumps(json.loads(last) | fields), ""]), encoding="utf-8")


def begun(out: Path, **settings: Any) -> Path:
    run = homophily.Simulation({"rounds": 5, **settings}, model=network(), data=peers(), out=out, device="cpu")
    run.step()
    run.step()
    run.save()
    return run.path


def test_diverged_peers_are_named_while_the_run_goes_on(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    facts, notes = shown(folder)
    assert (facts["diverged peers"], notes) == ("0", [])
    assert "unreachable peers" not in facts
    rewritten(folder, diverged=[0, 3])
    facts, notes = shown(folder)
    assert facts["diverged peers"] == "2"
    assert notes == [f"diverged in round 2: {HOSTILE}, peer & 3"]


def test_a_peer_without_a_known_name_is_named_by_its_number(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", record=False)
    rewritten(folder, diverged=[3])
    assert shown(folder)[1] == ["diverged in round 2: peer 3"]


def test_a_run_whose_peers_all_diverge_names_a_dozen(tmp_path: Path) -> None:
    settings = {"peers": 14, "rounds": 4, "training": {"lr": 1e30}, "data": {"test": 20}, "method": "local"}
    run = homophily.Simulation(settings, out=tmp_path / "run", device="cpu")
    run.step()
    run.step()
    facts, notes = shown(run.path)
    assert facts["diverged peers"] == "14"
    assert notes == [f"diverged in round 2: {', '.join(f'peer {i}' for i in range(12))} and 2 more"]


def test_unreachable_peers_are_named(state: Path, tmp_path: Path) -> None:
    assert shown(state)[0]["unreachable peers"] == "0"
    folder = tmp_path / "peer"
    shutil.copytree(state, folder)
    (folder / "summary.json").unlink()
    status = json.loads((state / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps(status | {"unreachable": ["clinic-a", "clinic-b"]}))
    rewritten(folder, diverged=[0])
    facts, notes = shown(folder)
    assert (facts["unreachable peers"], facts["diverged peers"]) == ("2", "1")
    assert notes[-2:] == ["the model of this peer had diverged in round 3", "unreachable: clinic-a, clinic-b"]


def test_failing_connections_and_the_end_of_the_certificate_are_noted(state: Path, tmp_path: Path) -> None:
    folder = tmp_path / "peer"
    shutil.copytree(state, folder)
    (folder / "summary.json").unlink()
    status = json.loads((state / "status.json").read_text())
    failing = {"failed_connections": {"10.0.0.7:7447": "connection refused"}}

    def notes_with(expires: float) -> list[str]:
        (folder / "status.json").write_text(json.dumps(status | failing | {"certificate_expires": expires}))
        return shown(folder)[1]

    now = time.time()
    assert notes_with(now + 31 * 86400) == []  # no process works on the folder, so that nothing is dialled
    assert notes_with(now - 86400)[-1].startswith("the certificate of this peer expired on 20")
    with locked(folder):
        *_, dial, end = notes_with(now + 29 * 86400)
        assert dial == "connection to 10.0.0.7:7447 fails: connection refused"
        assert end.startswith("the certificate of this peer expires on 20")


def test_a_peer_of_many_rounds_shows_the_last_exchanges(state: Path, tmp_path: Path) -> None:
    folder = tmp_path / "peer"
    shutil.copytree(state, folder)
    line = json.loads((folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    lines = [json.dumps(line | {"round": i, "merged": [f"peer-{1 + (i == 1)}"], "met": []}) for i in range(1, 201)]
    (folder / "metrics.jsonl").write_text("\n".join([*lines, ""]), encoding="utf-8")
    (view,) = Following(folder).snapshot().views
    figure = next(one for tab in view.tabs for one in tab.figures if one.id == "partners")
    assert isinstance(figure, Timeline)
    assert figure.rounds == list(range(141, 201))
    assert figure.rows == ["peer-1", "peer-2"]  # also the one of the first round
    assert figure.events.tolist() == [[2] * 60, [0] * 60]
    assert "the last 60 rounds" in figure.text


def test_a_run_appears_in_a_folder_that_was_not_there(tmp_path: Path) -> None:
    following = Following(tmp_path / "run")
    (view,) = following.snapshot().views
    assert (view.state, view.title) == ("waiting", "Waiting for the first round")
    begun(tmp_path / "run")
    assert dict(following.snapshot().views[0].facts)["progress"] == "2 of 5"


def test_a_peer_that_waits_for_others_says_so(state: Path, tmp_path: Path) -> None:
    folder = tmp_path / "peer"
    shutil.copytree(state, folder)
    (folder / "summary.json").unlink()
    status = json.loads((state / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps(status | {"waiting": True, "time": 0}))
    note = "waits for other peers before its first round since it started"
    facts, notes = shown(folder)
    assert facts["status of"] == "1970-01-01 00:00:00 UTC"
    assert note not in notes  # no process works on the folder
    handle = os.open(folder, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert note in shown(folder)[1]
    os.close(handle)


def test_a_round_that_does_not_end_is_noted_though_no_file_changes(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    now = time.time()
    os.utime(folder / "config.toml", (now - 100, now - 100))
    os.utime(folder / "metrics.jsonl", (now - 58.5, now - 58.5))
    with locked(folder):
        following = Following(folder)
        first = following.snapshot()
        assert first.views[0].notes == []
        assert dict(first.views[0].facts)["time left"] != "-"
        before = following.version()
        deadline = now + 30
        while following.version() == before and time.time() < deadline:
            time.sleep(0.05)
        (view,) = following.snapshot().views
    assert view.notes[0].startswith("round 2 of 5 does not end: no change for 60 s; the last rounds took ")
    assert dict(view.facts)["time left"] == "-"


def test_the_leases_of_a_comparison_are_no_change(tmp_path: Path) -> None:
    settings = {"rounds": 1, "peers": 4, "data": {"train": 6, "test": 10, "angles": [0, 180]}}
    study = homophily.compare(settings, methods=["local"], out=tmp_path / "study", device="cpu").path
    following = Following(study)
    before = following.version()
    os.utime(study / "leases" / "local-0.1")
    (study / "leases" / ".clock-0").touch()
    assert following.version() == before
    os.utime(study / "local-0" / "metrics.jsonl", (0, 0))
    assert following.version() != before


def test_long_lists_and_long_names_are_cut() -> None:
    assert enumerated(["a"]) == "a"
    assert enumerated([str(i) for i in range(12)]) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11"
    assert enumerated([str(i) for i in range(13)]).endswith("10, 11 and 1 more")
    assert len(enumerated(["x" * 500])) == 80
