"""Fixtures: the authority of the federation, another one that issues the same names, and the folder of a clinic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from homophily.peer import certificates, federation_folder
from tests.peer.clinics import NAMES, Clinics
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


@pytest.fixture
def clinic(tmp_path: Path) -> Path:
    """The folder of ann, who is alone: her certificate, and samples of which one has a missing value."""
    certificates.init(tmp_path / "certs")
    certificates.issue(tmp_path / "certs", "ann", ["127.0.0.1"])
    x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    np.savez(tmp_path / "whole.npz", x=x, y=np.arange(40) % 2)
    np.savez(tmp_path / "numbers.npz", x=x, y=x[:, 0])
    x[3, 0] = np.nan
    np.savez(tmp_path / "ann.npz", x=x, y=np.arange(40) % 2)
    return tmp_path


@pytest.fixture
def office(tmp_path: Path) -> Path:
    """The folder of an authority with three members."""
    folder = tmp_path / "certs"
    (tmp_path / "shared.toml").write_text('rounds = 100000\nmethod = "random"\n')
    federation_folder.init(folder, "clinics", tmp_path / "shared.toml")
    for name in NAMES:
        federation_folder.add(folder, name)
        federation_folder.issue_key(folder, name, ["127.0.0.1"], 365)
    return folder


@pytest.fixture
def clinics(office: Path, tmp_path: Path) -> Iterator[Clinics]:
    made = Clinics(tmp_path, (*NAMES, "dan"))
    yield made
    made.close()
