"""Shared fixtures. Tests use one torch thread, so that a busy machine does not slow them down."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from homophily.cli import app as cli
from tests.processes import Processes

_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_configure() -> None:
    torch.set_num_threads(1)
    if not os.environ.get("HOMOPHILY_DATA") and _BESIDE.is_dir():
        os.environ["HOMOPHILY_DATA"] = str(_BESIDE)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, so that runs/ is made there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """The command line in an empty folder, in this process: exit code, stdout, stderr."""

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["homophily", *words])
        monkeypatch.setattr(sys, "path", list(sys.path))
        code: Any = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        out, err = capfd.readouterr()
        return code, out, err

    return call


@pytest.fixture(scope="module")
def homophily_process() -> Iterator[Processes]:
    """The command line in separate processes."""
    processes = Processes()
    yield processes
    processes.close()
