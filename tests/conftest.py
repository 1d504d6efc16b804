"""One thread: small tensors, and a busy machine must not change what a test takes."""

import os
from pathlib import Path

import pytest
import torch

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
