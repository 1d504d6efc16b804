"""The device on which a real peer trains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from homophily.peer.deploy import write_files
from homophily.peer.settings import load
from homophily.runs.reader import Run
from homophily.simulation.configuration import make
from tests.peer.field import Field

QUICK: dict[str, Any] = {"peers": 2, "rounds": 2, "data": {"train": 20, "test": 10, "angles": [0, 180]}}
Command = Callable[..., tuple[int, str, str]]


def test_device_auto_uses_cuda_if_it_is_available(tmp_path: Path) -> None:
    file, _ = write_files(make(QUICK), 2, tmp_path, "free")
    file.write_text(file.read_text().replace('device = "cpu"\n', ""))
    assert load(file).peer.device == "auto"


def test_a_missing_cuda_device_is_reported_before_anything_is_written(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    file, _ = write_files(make(QUICK), 2, tmp_path, "free", device="cuda")
    code, _, err = command("peer", str(file))
    assert code == 2
    assert "peer.device = 'cuda': this machine has no CUDA device that torch can use" in err
    assert "Traceback" not in err
    assert not (tmp_path / "peer-0").exists()


@pytest.mark.parametrize("pace", ["lockstep", "free"])
def test_a_deployment_is_compared_on_the_cpu(tmp_path: Path, pace: str) -> None:
    assert [load(file).peer.device for file in write_files(make(QUICK), 2, tmp_path, pace)] == ["cpu", "cpu"]


def test_peers_that_choose_for_themselves_say_where_they_trained(tmp_path: Path) -> None:
    assert_trained_on(tmp_path, "auto", "cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("method", ["kin", "panm", "dac"])
def test_peers_on_a_gpu_meet_and_merge(tmp_path: Path, method: str) -> None:
    assert_trained_on(tmp_path, "cuda", "cuda", method)


def assert_trained_on(folder: Path, device: str, found: str, method: str = "random") -> None:
    alike = {**QUICK["data"], "angles": [0]}  # so that everyone has someone to merge with
    peers = Field(
        folder, 2, "lockstep", {"device": device, "wait_for": 1}, rounds=2, data=alike, method={"name": method, "k": 1}
    )
    peers.start(0, 1)
    assert [peers.end(0), peers.end(1)] == [0, 0]
    for name in peers.names:
        assert torch.device(Run(folder / name).about["device"]).type == found
        assert [line["merged"] for line in Run(folder / name).metrics()][-1], "peers that never merge prove nothing"
