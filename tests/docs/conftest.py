"""The reader that follows documentation pages."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from homophily.data import shifts, sources
from homophily.federation.merging import merges
from homophily.federation.similarity import metrics
from homophily.federation.topology import topologies
from homophily.methods import methods
from homophily.models import models
from homophily.trackers import trackers
from homophily.training.objectives import objectives
from tests.docs.pages import Reader


@pytest.fixture
def reader(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """A reader in an empty folder; names that a page registers and modules that it writes are removed afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("HOMOPHILY_MIRROR", "http://127.0.0.1:9")  # a test downloads nothing
    monkeypatch.setenv("WANDB_MODE", "offline")
    for registry in (
        methods,
        shifts,
        sources,
        models,
        merges,
        metrics,
        topologies,
        objectives,
        trackers,
    ):  # a page may register names
        monkeypatch.setattr(registry, "_items", dict(registry._items))
    reader = Reader(capsys, monkeypatch)
    yield reader
    for _, process, _ in reader.background:
        process.kill()
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
