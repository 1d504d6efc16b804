"""Refusals are counted and logged once per reason, in bounded memory and disk."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from homophily.peer.identity import Refused
from homophily.peer.logs import logged_to, peer_logger
from homophily.peer.refusals import Refusals


def test_reasons_are_counted_and_each_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals(peer_logger("me"))
    with caplog.at_level(logging.WARNING, "homophily.peer.me"):
        for _ in range(5):
            refusals.add(Refused("wrong signature"))
            refusals.add("altered chunk", "bob")
    assert refusals.counts() == {"wrong signature": 5, "altered chunk (bob)": 5}
    assert len(caplog.records) == 2


def test_the_reason_that_occurred_last_comes_last() -> None:
    refusals = Refusals(peer_logger("me"))
    for peer in ("bob", "carol", "bob"):
        refusals.add("altered chunk", peer)
    assert list(refusals.counts().items()) == [("altered chunk (carol)", 1), ("altered chunk (bob)", 2)]


def test_a_flood_of_different_reasons_is_counted_as_one_and_none_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals(peer_logger("me"))
    with caplog.at_level(logging.WARNING, "homophily.peer.me"):
        for i in range(5000):
            refusals.add(f"reason {i}")
    assert len(refusals.counts()) <= 1001
    assert len(caplog.records) <= 1001
    assert sum(refusals.counts().values()) == 5000


def test_threads_lose_no_count() -> None:
    refusals = Refusals(peer_logger("me"))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: refusals.add("busy", f"peer-{i % 3}"), range(3000)))
    assert sum(refusals.counts().values()) == 3000


def test_the_log_file_stays_small(tmp_path: Path) -> None:
    log = peer_logger("me")
    with logged_to(tmp_path / "peer.log", log):
        for i in range(300):
            log.warning("%d %s", i, "x" * 10_000)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["peer.log", "peer.log.1"]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2 << 20
