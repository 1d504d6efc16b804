"""Fixtures for all tests. Torch uses one thread: tensors are small, and a busy machine must not slow a test down."""

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from homophily.cli import app as cli
from tests.processes import Processes

# absl keeps the stderr that it is imported with and closes it as soon as another package configures logging.
# tensorboard and dp-accounting import absl, so it must get the real stderr instead of the one in which pytest captures.
with contextlib.redirect_stderr(sys.__stderr__):
    importlib.import_module("absl.logging")

_SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_configure() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets its background jobs ignore it
    if not os.environ.get("HOMOPHILY_DATA") and _SHARED_DATA.is_dir():
        os.environ["HOMOPHILY_DATA"] = str(_SHARED_DATA)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder; runs/ is created there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Calls the command line in an empty folder, in this process; returns exit code, stdout and stderr."""

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
    """Calls the command line in separate processes."""
    processes = Processes()
    yield processes
    processes.close()
