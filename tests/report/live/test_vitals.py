"""Health and metrics of runs, comparisons and real peers, from their folders."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import struct
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import homophily
from homophily.atomic_io import locked
from homophily.report.live.access import VARIABLE
from homophily.report.live.endpoint import MOST_CONNECTIONS, serving
from homophily.report.live.following import Following
from homophily.report.live.prometheus import exposition
from homophily.report.live.vitals import ComparisonProgress, Vitals, health_of, vitals_of
from tests.callbacks import InterruptAt
from tests.report.live.serving import get, served
from tests.report.page.folders import network, peers

LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (-?[\d.e+-]+|NaN)')


def parsed(text: str) -> dict[str, list[tuple[str, float]]]:
    """The samples by name. Every line must be of the format, and each metric has one HELP and one TYPE before it."""
    found: dict[str, list[tuple[str, float]]] = {}
    lines = text.removesuffix("\n").split("\n")
    for line in lines:
        if line.startswith("# "):
            _, kind, name, rest = line.split(" ", 3)
            assert kind in ("HELP", "TYPE")
            assert rest
            assert name not in found
        else:
            match = LINE.fullmatch(line)
            assert match, line
            found.setdefault(match[1], []).append((match[2] or "", float(match[3])))
    for name in found:
        assert sum(line.startswith(f"# HELP {name} ") for line in lines) == 1
        assert sum(line.startswith(f"# TYPE {name} ") for line in lines) == 1
    return found


@pytest.fixture
def half(tmp_path: Path) -> Path:
    """A run that has stopped after two of five rounds."""
    run = homophily.Simulation({"rounds": 5}, model=network(), data=peers(), out=tmp_path / "run", device="cpu")
    run.step()
    run.step()
    return run.path


def test_epsilon_spent_and_promised_are_served_while_a_run_goes_on(tmp_path: Path) -> None:
    config = {
        "peers": 4, "rounds": 2, "data": {"train": 40, "test": 10}, "method": "random", "training": {"batch": 10},
        "privacy": {"epsilon": 8.0},
    }  # fmt: skip
    run = homophily.Simulation(config, out=tmp_path / "run")
    run.step()
    spent = homophily.Run(run.path).metrics()[-1]["epsilon_spent"]
    found = {name: samples[0][1] for name, samples in parsed(exposition(run.path)).items()}
    assert found["homophily_epsilon_promised"] == 8.0
    assert 0 < found["homophily_epsilon_spent"] == spent < 8.0
    with locked(run.path):
        facts = dict(Following(run.path).snapshot().views[0].facts)
    assert facts["epsilon spent"] == f"{spent:.3g} of 8"


def aged(path: Path, seconds: float) -> None:
    """Let a file be that old."""
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_a_run_is_healthy_while_rounds_advance(half: Path) -> None:
    aged(half / "config.toml", 7200)
    stopped = health_of(half)
    assert not stopped.good
    assert stopped.reason == f"stopped at round 2 of 5: no process works on {half}"
    with locked(half):
        assert health_of(half).good
        aged(half / "metrics.jsonl", 59)
        assert health_of(half).good
        aged(half / "metrics.jsonl", 69)
        late = health_of(half)
        assert not late.good
        assert re.fullmatch(
            r"round 2 of 5 does not end: no change for \d+ s; the last rounds took \S+ s each", late.reason
        )


def test_a_resumed_run_has_time_for_its_first_round(half: Path) -> None:
    """A resume writes the config. The last round before it may have ended long ago."""
    aged(half / "metrics.jsonl", 86400)
    with locked(half):
        for age, good in ((590, True), (610, False)):
            aged(half / "config.toml", age)
            assert health_of(half).good is good
        assert re.match(r"round 2 of 5 does not end: no change for 61\d s", health_of(half).reason)
        found = parsed(exposition(half))
        assert found["homophily_up"] == [("", 0.0)]
        assert "homophily_seconds_left" not in found  # it is not known


def test_a_resume_of_a_comparison_writes_the_config_of_the_run_that_goes_on(tmp_path: Path) -> None:
    settings = {"rounds": 3, "checkpoint": 1, "peers": 4, "data": {"train": 6, "test": 10, "angles": [0, 180]}}
    with pytest.raises(KeyboardInterrupt):
        homophily.compare(
            settings, methods=["local"], seeds=[0], callbacks=lambda method, seed: [InterruptAt(2)], out=tmp_path / "c"
        )
    (config,) = (tmp_path / "c").glob("*/config.toml")
    aged(config, 7200)
    text = config.read_text()
    homophily.compare(settings, methods=["local"], seeds=[0], out=tmp_path / "c")
    assert time.time() - config.stat().st_mtime < 7000
    assert config.read_text() == text


def test_a_peer_that_waited_has_time_for_its_first_round(state: Path, tmp_path: Path) -> None:
    """It writes its status when the wait ends; its process may have begun hours before."""
    copy = tmp_path / "state"
    shutil.copytree(state, copy)
    (copy / "summary.json").unlink()
    for name, age in (("metrics.jsonl", 86400), ("config.toml", 7200), ("status.json", 590)):
        aged(copy / name, age)
    with locked(copy):
        assert health_of(copy).good
        aged(copy / "status.json", 610)
        assert not health_of(copy).good


def test_a_slow_run_has_ten_times_its_round_time(half: Path) -> None:
    aged(half / "config.toml", 7200)
    lines = [{"round": i, "seconds": 30.0 * i} for i in (1, 2)]
    (half / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert Vitals(half).round_seconds == 30.0
    assert Vitals(half).seconds_left is None  # no process works on the rest
    with locked(half):
        assert Vitals(half).seconds_left == 90.0
        for age, good in ((290, True), (310, False)):
            aged(half / "metrics.jsonl", age)
            assert health_of(half).good is good


def test_an_incomplete_last_line_is_not_read(half: Path) -> None:
    with (half / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "sec')
    assert Vitals(half).round == 2


def test_a_finished_run_a_comparison_and_an_empty_folder(folders: Path, tmp_path: Path) -> None:
    assert health_of(folders / "panm") == health_of(folders / "compare")
    assert health_of(folders / "panm").reason == "finished"
    assert not health_of(tmp_path).good
    assert parsed(exposition(tmp_path)) == {"homophily_up": [("", 0.0)]}


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("run.json", '{"format": 99}', "run.json: its format is 99, and this version reads format 3"),
        ("config.toml", "x = 1\n", "x = 1: extra inputs are not permitted"),
        ("metrics.jsonl", "{]\n", "Expecting property name"),
    ],
)
def test_a_folder_that_cannot_be_read_says_why(half: Path, file: str, text: str, why: str) -> None:
    (half / file).write_text(text)
    with served(half) as (port, _), locked(half):
        status, _, body = get(port, "/health")
        assert (status, why in body) == (503, True), body
        status, _, body = get(port, "/metrics")
        assert status == 200
        assert parsed(body) == {"homophily_up": [("", 0.0)]}
        view = json.loads(get(port, "/data")[2])["views"][0]
        assert view["state"] == "unreadable"
        assert why in view["tabs"][0]["figures"][0]["text"]


def test_metrics_are_those_of_the_folder(half: Path) -> None:
    last: dict[str, Any] = homophily.Run(half).metrics()[-1]
    found = {name: values for name, ((_, values),) in parsed(exposition(half)).items()}
    assert found["homophily_round"] == 2
    assert found["homophily_rounds"] == 5
    assert found["homophily_score"] == pytest.approx(last["accuracy"])
    assert found["homophily_bytes_sent_per_peer"] == last["bytes_sent_per_peer"]
    assert found["homophily_models_sent_per_peer"] == last["models_sent_per_peer"]
    assert found["homophily_same_cluster_merges_ratio"] == last["same_cluster_merges"]
    assert found["homophily_seconds_total"] == last["seconds"]
    assert found["homophily_diverged_peers"] == 0
    assert found["homophily_up"] == 0


def test_the_runs_of_a_comparison_differ_in_their_labels(folders: Path) -> None:
    found = parsed(exposition(folders / "compare"))["homophily_score"]
    assert len({labels for labels, _ in found}) == len(found) == 15
    assert any('method="oracle",seed="3",headline="accuracy"' in labels for labels, _ in found)
    assert parsed(exposition(folders / "compare"))["homophily_runs"] == [("", 15.0)]


def test_a_comparison_counts_the_runs_that_have_not_begun(folders: Path, tmp_path: Path) -> None:
    folder = tmp_path / "compare"
    shutil.copytree(folders / "compare", folder)
    shutil.rmtree(folder / "oracle-4")
    for name in ("summary.json", "scores.json"):
        (folder / "oracle-3" / name).unlink()
    for run in folder.glob("*-[0-4]"):
        rounds = 1 if run.name == "oracle-3" else 3
        lines = [json.dumps({"round": i, "seconds": 2.0 * i}) for i in range(1, rounds + 1)]
        (run / "metrics.jsonl").write_text("\n".join([*lines, ""]), encoding="utf-8")
    assert ComparisonProgress.of(folder, vitals_of(folder)) == ComparisonProgress(13, 15, None)
    with locked(folder / "oracle-3"):
        assert ComparisonProgress.of(folder, vitals_of(folder)) == ComparisonProgress(
            13, 15, 10.0
        )  # 2 and 3 rounds of 2 s
        found = parsed(exposition(folder))
        facts = dict(Following(folder).snapshot().views[0].facts)
    assert (found["homophily_runs"], found["homophily_runs_finished"]) == ([("", 15.0)], [("", 13.0)])
    assert (facts["runs finished"], facts["time left"]) == ("13 of 15", "10 s")


def test_health_of_a_comparison_names_the_run(folders: Path, tmp_path: Path) -> None:
    folder = tmp_path / "compare"
    shutil.copytree(folders / "compare", folder)
    for name in ("oracle-3", "oracle-4"):
        (folder / name / "summary.json").unlink()
        aged(folder / name / "config.toml", 7200)
        aged(folder / name / "metrics.jsonl", 3600)
    assert health_of(folder).reason.startswith("oracle-3: stopped at round ")
    with locked(folder / "oracle-3"), locked(folder / "oracle-4"):
        late = health_of(folder)
        assert (late.good, " does not end: no change for " in late.reason) == (False, True)
        (view,) = Following(folder).snapshot().views
        assert [note.partition(":")[0] for note in view.notes] == ["oracle-3", "oracle-4"]
        os.utime(folder / "oracle-4" / "metrics.jsonl")
        assert health_of(folder).good
        assert health_of(folder).reason.startswith("oracle-4: round ")
        assert Following(folder).snapshot().views[0].notes == []  # the other run may wait for its turn


def test_a_comparison_of_which_one_run_has_begun_is_not_finished(folders: Path, tmp_path: Path) -> None:
    folder = tmp_path / "compare"
    shutil.copytree(folders / "compare", folder)
    for run in [*folder.glob("*-[1-4]"), *(one for one in folder.glob("*-0") if one.name != "oracle-0")]:
        shutil.rmtree(run)
    assert not health_of(folder).good


def test_a_real_peer_with_hostile_names(state: Path, tmp_path: Path) -> None:
    copy = tmp_path / "state"
    shutil.copytree(state, copy)
    status = json.loads((state / "status.json").read_text())
    status["peer"] = 'a"b\\c\nd'
    status["failed_connections"] = {"127.0.0.1:7447": "connection refused"}
    status["refused"] = {"wrong signature (peer-2)": 2, "wrong signature (peer-3)": 1, "handshake: x": 4}
    (copy / "status.json").write_text(json.dumps(status))
    found = parsed(exposition(copy))
    assert found["homophily_round"] == [(r'peer="a\"b\\c\nd",federation="' + status["federation"] + '"', 3.0)]
    kinds = {labels.partition("kind=")[2]: value for labels, value in found["homophily_refusals_total"]}
    assert kinds == {'"wrong signature"': 3.0, '"handshake: x"': 4.0}
    assert found["homophily_bytes_received_total"][0][1] == status["bytes_received"]
    assert found["homophily_bytes_served_total"][0][1] == status["bytes_served"] > 0
    assert found["homophily_certificate_expiry_timestamp_seconds"][0][1] > time.time()
    assert found["homophily_neighbours_online"][0][1] == len(status["neighbours"])
    assert found["homophily_failed_connections"][0][1] == 1


def test_a_peer_that_waits_for_others_is_not_healthy(state: Path, tmp_path: Path) -> None:
    copy = tmp_path / "state"
    shutil.copytree(state, copy)
    (copy / "summary.json").unlink()
    status = json.loads((state / "status.json").read_text())
    with locked(copy):
        (copy / "status.json").write_text(json.dumps({**status, "headline": None}))  # a round that is not scored
        os.utime(copy / "metrics.jsonl")
        assert health_of(copy).good
        (copy / "status.json").write_text(json.dumps({**status, "waiting": True, "unreachable": ["peer-2"]}))
        assert health_of(copy).reason == "waits for other peers at round 3 of 3; unreachable: peer-2"


def test_both_servers_answer_the_same(half: Path) -> None:
    with served(half) as (port, _), serving(half, "127.0.0.1:0") as where:
        assert where.endswith("/metrics")
        other = int(where.split(":")[2].partition("/")[0])
        for path in ("/metrics", "/health"):
            page, alone = get(port, path), get(other, path)
            assert (page[0], page[2]) == (alone[0], alone[2])
            assert page[1]["content-type"] == alone[1]["content-type"]
        assert get(other, "/health")[0] == 503
        assert get(other, "/data")[0] == 404
        assert get(other, "/metrics", Host="evil.example")[0] == 421
        for method in ("POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"):
            status, headers, _ = get(other, "/metrics", method)
            assert (status, headers["allow"]) == (405, "GET"), method


def test_metrics_outside_this_machine_need_the_token_which_no_log_shows(
    half: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "a long enough token")
    with serving(half, "0.0.0.0:0") as where:
        assert where.endswith("/metrics with the header Authorization: Bearer $HOMOPHILY_LIVE_TOKEN")
        port = int(where.split(":")[2].partition("/")[0])
        for path in ("/metrics", "/health", "/metrics?token=a%20long%20enough%20token"):
            assert get(port, path)[0] == 401
        assert get(port, "/metrics", Authorization="Bearer a long enough token")[0] == 200
        assert get(port, "/metrics", Authorization="Bearer another long token")[0] == 401


def test_whoever_connects_to_the_metrics_neither_fills_the_log_nor_the_memory(
    half: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(half, "127.0.0.1:0") as where, ExitStack() as stack:
        port = int(where.partition("127.0.0.1:")[2].partition("/")[0])

        def connection() -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))

        ask = "GET {} HTTP/1.0\r\nHost: localhost\r\n\r\n"
        gone = connection()
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.sendall(ask.format("/metrics").encode())
        gone.close()
        nowhere = connection()
        nowhere.sendall(ask.format("http://[").encode())
        assert nowhere.recv(100).startswith(b"HTTP/1.0 404")
        before = threading.active_count()
        many = [connection() for _ in range(2 * MOST_CONNECTIONS)]
        assert many[-1].recv(1) == b""  # it is closed at once
        assert threading.active_count() <= before + MOST_CONNECTIONS
    assert capfd.readouterr().err == ""
