"""The server of the live page: what it answers, and to whom."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

import homophily
from homophily.cli.live import follow_folder
from homophily.errors import UserError
from homophily.report.live.access import COOKIE, VARIABLE, Access, bound, split_address
from homophily.report.live.server import address
from tests.patience import PATIENCE
from tests.report.live.serving import get, served
from tests.report.page.folders import network, peers


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> homophily.Simulation:
    """A run in which two of four rounds are over."""
    out = tmp_path_factory.mktemp("live") / "run"
    found = homophily.Simulation({"rounds": 4}, model=network(), data=peers(), out=out, device="cpu")
    found.step()
    found.step()
    return found


def test_the_page_has_a_strict_policy_and_its_data_an_etag(run: homophily.Simulation) -> None:
    with served(run.path) as (port, _):
        status, headers, page = get(port, "/")
        assert status == 200
        assert page.startswith("<!doctype html>")
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "connect-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        status, headers, body = get(port, "/data")
        facts = dict(map(tuple, json.loads(body)["views"][0]["facts"]))
        assert (status, facts["progress"]) == (200, "2 of 4")
        assert facts["time left"] == "-"  # no process works on the run
        changed = parsedate_to_datetime(headers["last-modified"]).timestamp()
        files = [path for path in run.path.glob("**/*") if path.is_file() and "checkpoints" not in path.parts]
        assert changed == int(max(path.stat().st_mtime for path in files))
        assert get(port, "/data", **{"If-None-Match": headers["etag"]})[::2] == (304, "")


def test_only_get_of_known_paths_is_answered(run: homophily.Simulation) -> None:
    with served(run.path) as (port, _):
        for method in ("POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"):
            status, headers, _ = get(port, "/data", method)
            assert (status, headers["allow"]) == (405, "GET"), method
        for path in ("/config.toml", "/../config.toml", "/data/..", "//etc/passwd", "/static/%2e%2e/run.json"):
            assert get(port, path)[0] == 404, path


def test_another_host_name_is_refused_against_dns_rebinding(run: homophily.Simulation) -> None:
    with served(run.path) as (port, _):
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::2]"):
            assert get(port, "/metrics", Host=host)[0] == 421, host
        for host in ("127.0.0.1", f"localhost:{port}", "[::1]:1", "LOCALHOST"):
            assert get(port, "/metrics", Host=host)[0] == 200, host


def test_outside_loopback_a_token_is_exchanged_for_a_cookie(
    run: homophily.Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "a long enough token")
    with served(run.path, "0.0.0.0") as (port, access):
        assert access.token == "a long enough token"
        for path in ("/", "/data", "/events", "/metrics", "/health", "/?token=wrong", "/data?token=%ff"):
            assert get(port, path)[0] == 401, path
        status, headers, _ = get(port, "/?token=a%20long%20enough%20token")
        assert (status, headers["location"]) == (303, "/")
        cookie, *flags = [part.strip() for part in headers["set-cookie"].split(";")]
        assert {"HttpOnly", "SameSite=strict"} <= set(flags)
        assert access.token not in cookie
        assert get(port, "/data", Cookie=cookie)[0] == 200
        assert get(port, "/data", Cookie=f"{COOKIE}=wrong")[0] == 401
        assert get(port, "/metrics", Authorization="Bearer a long enough token")[0] == 200
        assert get(port, "/metrics", Authorization="Bearer wrong")[0] == 401
        assert get(port, "/data", Cookie=cookie, Host="evil.example")[0] == 421


def test_a_token_is_drawn_if_none_is_given_and_a_short_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert Access("127.0.0.1").token is None
    drawn = {Access("192.0.2.1").token for _ in range(3)}
    assert len(drawn) == 3
    assert all(token is not None and len(token) >= 32 for token in drawn)
    with bound("127.0.0.1", 0) as listening:
        access = Access("192.0.2.1")
        assert address(access, listening).endswith(f"/?token={access.token}")
        monkeypatch.setenv(VARIABLE, "a long enough token")  # a log keeps what is printed
        assert address(Access("192.0.2.1"), listening).endswith("/?token=$HOMOPHILY_LIVE_TOKEN")
    monkeypatch.setenv(VARIABLE, "short")
    with pytest.raises(UserError, match="HOMOPHILY_LIVE_TOKEN: must have at least 16 characters"):
        Access("192.0.2.1")


def test_an_event_follows_each_change_and_the_end_is_announced(run: homophily.Simulation) -> None:
    heard: list[str] = []
    first, second = threading.Event(), threading.Event()

    def listen(port: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request("GET", "/events")
        answer = connection.getresponse()
        heard.append(str(answer.getheader("content-type")))
        while line := answer.readline().decode():
            heard.append(line.strip())
            if line.startswith("data: "):
                (second if first.is_set() else first).set()

    with served(run.path) as (port, _):
        listener = threading.Thread(target=listen, args=(port,), daemon=True)
        listener.start()
        assert first.wait(10)
        run.step()
        assert second.wait(10)
    listener.join(10)
    assert heard[0].startswith("text/event-stream")
    assert heard[-3:-1] == ["event: ended", "data:"] or heard[-2:] == ["event: ended", "data:"]
    versions = [line for line in heard if line.startswith("data: ")]
    assert len(versions) == len(set(versions)) >= 2


def test_a_folder_that_is_not_a_run_and_a_port_in_use_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no run")
    for folder in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(UserError, match=r"has no config\.toml"):
            follow_folder(folder)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError, match=r"cannot listen on 127\.0\.0\.1, port"):
            bound("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize("text", ["9464", ":9464", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000"])
def test_an_address_needs_host_and_port(text: str) -> None:
    with pytest.raises(UserError, match=f"--metrics {text}: must be HOST:PORT"):
        split_address(text, "--metrics")
    assert split_address("[::1]:9464", "--metrics") == ("::1", 9464)
