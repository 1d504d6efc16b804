"""Fixtures: the authority of the federation, and another one that issues the same names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peer.linked import Pair, close_all
from tests.peer.people import People


@pytest.fixture(scope="session")
def people(tmp_path_factory: pytest.TempPathFactory) -> People:
    return People(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> People:
    """Another authority, with the same names."""
    return People(tmp_path_factory.mktemp("other-authority"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "certs"


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Links are closed when the test is over, however it ends."""
    yield
    close_all()


@pytest.fixture
def pair(people: People) -> Pair:
    return Pair(people)
