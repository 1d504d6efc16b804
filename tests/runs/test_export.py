"""Exported models."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import homophily
from homophily.atomic_io import read_metadata
from homophily.experiments import runner
from homophily.runs.writer import RunWriter

Command = Callable[..., tuple[int, str, str]]
SMALL: dict[str, Any] = {
    "peers": 4,
    "rounds": 8,
    "checkpoint": 2,
    "data": {"test": 10, "validation": 5},
    "method": {"name": "random", "k": 1},
}


def test_an_exported_model_names_its_classes_if_targets_were_strings(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(3, 12, 2)).astype(np.float32)
    labels = np.where(np.arange(12) % 2 == 0, "well", "ill").tolist()
    named = [homophily.PeerData(each, labels) for each in x]
    numbered = [homophily.PeerData(each, [0, 1] * 6) for each in x]
    for name, peers, expected in (("named", named, ["ill", "well"]), ("numbered", numbered, None)):
        run = homophily.run({"rounds": 1}, model=nn.Linear(2, 2), data=peers, out=tmp_path / name)
        with safe_open(run.export(0, tmp_path / f"{name}.safetensors"), framework="pt") as file:
            metadata = file.metadata()
        assert "inputs" in metadata
        assert (json.loads(metadata["class_names"]) if "class_names" in metadata else None) == expected


@pytest.fixture
def named(tmp_path: Path) -> homophily.Run:
    """Two peers; the name of the second is a number, and not its own."""
    x = np.random.default_rng(0).normal(size=(2, 12, 2)).astype(np.float32)
    peers = {name: homophily.PeerData(each, [0, 1] * 6) for name, each in zip(("north", "0"), x, strict=True)}
    return homophily.run({"rounds": 1, "method": "local"}, model=nn.Linear(2, 2), data=peers, out=tmp_path / "run")


def test_a_peer_is_exported_by_its_name_or_its_number(
    named: homophily.Run, command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    for peer, number in (("north", 0), ("0", 1), ("1", 1)):
        file = tmp_path / "model.safetensors"
        assert command("export", str(named.path), str(file), "--peer", peer)[0] == 0
        assert torch.equal(load_file(file)["weight"], named.state_dict(number)["weight"])


def test_an_unknown_peer_is_refused_with_those_that_exist(named: homophily.Run, tmp_path: Path) -> None:
    for peer in ("south", 2, -1):
        with pytest.raises(homophily.UserError, match=f"peer {peer!r}: this run has peers 0 to 1, named north, 0$"):
            named.export(peer, tmp_path / "model.safetensors")


# Runs that have not finished


@pytest.fixture(autouse=True)
def _every_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a busy machine, on which a checkpoint may take so long that the next ones are left out."""
    monkeypatch.setattr(runner, "_NOTICEABLE", float("inf"))


class _Interrupts(homophily.Callback):
    """Stops the run as Ctrl-C does, in round 5."""

    def on_round(self, run: Any, metrics: dict[str, Any]) -> None:
        if metrics["round"] == 5:
            raise KeyboardInterrupt


def stopped(folder: Path, network: nn.Module | None = None, **more: Any) -> homophily.Run:
    """A run that was stopped in round 5, after the checkpoint of round 4."""
    with pytest.raises(KeyboardInterrupt):
        homophily.run({**SMALL, **more}, model=network, out=folder, callbacks=[_Interrupts()], device="cpu")
    return homophily.Run(folder, network)


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("more", [{}, {"training": {"patience": 3}}])
def test_a_stopped_run_exports_the_models_of_its_newest_checkpoint(
    more: dict[str, Any], normalised: bool, command: Command, tmp_path: Path
) -> None:
    """Also the best models of early stopping, and buffers that are kept outside the rows."""
    layers = [nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10)]
    model = nn.Sequential(*layers) if normalised else None
    found = stopped(tmp_path / "stopped", model, **more)
    whole = homophily.run({**SMALL, **more, "rounds": 4}, model=model, out=tmp_path / "whole", device="cpu")
    file, expected = tmp_path / "model.safetensors", tmp_path / "expected.safetensors"
    code, out, _ = command("export", str(found.path), str(file), "--peer", "1")
    assert (code, out) == (0, f"{file}\nthe model of round 4 of 8: the run has not finished\n")
    whole.export(1, expected)
    assert load_file(file).keys() == load_file(expected).keys()
    assert all(torch.equal(tensor, load_file(expected)[name]) for name, tensor in load_file(file).items())
    assert read_metadata(file) == read_metadata(expected)
    assert read_metadata(file)["round"] == "4"
    raw = torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(found.model(1)(found.prepared(1, raw)), whole.model(1)(whole.prepared(1, raw)))


def test_a_stopped_run_exports_its_adapters(command: Command, tmp_path: Path) -> None:
    lora = {"rank": 2, "targets": ["1"], "train": ["3"]}
    found = stopped(tmp_path / "stopped", model={"lora": lora})
    whole = homophily.run({**SMALL, "rounds": 4, "model": {"lora": lora}}, out=tmp_path / "whole", device="cpu")
    code, out, _ = command("export", str(found.path), str(tmp_path / "adapter"), "--peer", "2", "--adapter")
    assert (code, out.splitlines()[1]) == (0, "the model of round 4 of 8: the run has not finished")
    written = tmp_path / "adapter" / "adapter_model.safetensors"
    expected = whole.export_adapter(2, tmp_path / "expected") / "adapter_model.safetensors"
    assert load_file(written).keys() == load_file(expected).keys()
    assert all(torch.equal(tensor, load_file(expected)[name]) for name, tensor in load_file(written).items())
    assert read_metadata(written)["round"] == "4"


def test_a_stopped_run_knows_its_peers_by_name(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(2, 12, 2)).astype(np.float32)
    peers = {name: homophily.PeerData(each, ["ill", "well"] * 6) for name, each in zip(("north", "0"), x, strict=True)}
    keys = {"rounds": 8, "checkpoint": 2, "method": "local"}
    with pytest.raises(KeyboardInterrupt):
        homophily.run(keys, model=nn.Linear(2, 2), data=peers, out=tmp_path / "run", callbacks=[_Interrupts()])
    found = homophily.Run(tmp_path / "run")
    assert found.names == ["north", "0"]
    assert torch.equal(found.state_dict("0")["weight"], found.state_dict(1)["weight"])
    assert not torch.equal(found.state_dict("0")["weight"], found.state_dict("north")["weight"])
    with pytest.raises(homophily.UserError, match=r"peer 'south': this run has peers 0 to 1, named north, 0$"):
        found.state_dict("south")
    exported = read_metadata(found.export("north", tmp_path / "model.safetensors"))
    assert (exported["round"], json.loads(exported["class_names"])) == ("4", ["ill", "well"])


def test_models_are_exported_while_the_run_replaces_its_checkpoints(tmp_path: Path) -> None:
    keys = {**SMALL, "rounds": 100, "checkpoint": 1}
    running = threading.Thread(target=homophily.run, args=(keys,), kwargs={"out": tmp_path / "run", "device": "cpu"})
    running.start()
    exported: dict[int, dict[str, torch.Tensor]] = {}
    while running.is_alive():
        if RunWriter(tmp_path / "run").begun and RunWriter(tmp_path / "run").last_round:
            file = homophily.Run(tmp_path / "run").export(3, tmp_path / "model.safetensors")
            exported[int(read_metadata(file)["round"])] = load_file(file)
    running.join()
    assert len(exported) >= 5
    assert homophily.Run(tmp_path / "run").export(3, tmp_path / "model.safetensors")
    for round in (min(exported), sorted(exported)[len(exported) // 2]):
        short = homophily.run({**keys, "rounds": round}, out=tmp_path / f"short-{round}", device="cpu").state_dict(3)
        assert all(torch.equal(exported[round][name], tensor) for name, tensor in short.items())


def test_the_final_models_stay_those_of_a_run_that_is_extended(command: Command, tmp_path: Path) -> None:
    whole = homophily.run({**SMALL, "rounds": 3}, out=tmp_path / "run", device="cpu")
    before = whole.state_dict(0)
    code, out, _ = command("export", str(whole.path), "whole.safetensors", "--peer", "0")
    assert (code, out) == (0, "whole.safetensors\n")
    with pytest.raises(KeyboardInterrupt):
        homophily.resume(whole.path, {"rounds": 8}, callbacks=[_Interrupts()])
    code, out, _ = command("export", str(whole.path), "model.safetensors", "--peer", "0")
    assert out.splitlines()[1] == "the final model of round 3; the run was extended, and is in round 4"
    assert all(torch.equal(load_file(tmp_path / "model.safetensors")[name], tensor) for name, tensor in before.items())


def test_what_cannot_be_exported_yet_is_said_in_one_sentence(command: Command, tmp_path: Path) -> None:
    folder = str(stopped(tmp_path / "run").path)
    assert "this run has peers 0 to 3: name one with --peer" in command("export", folder, "model.safetensors")[2]
    inputs = tmp_path / "run" / "inputs.safetensors"
    kept = inputs.read_bytes()
    inputs.unlink()  # as in a folder of an older version
    assert "an older version of homophily" in command("export", folder, "model.safetensors", "--peer", "0")[2]
    inputs.write_bytes(kept)
    (damaged,) = (tmp_path / "run" / "checkpoints").glob("round-*")
    (damaged / "state.safetensors").write_bytes(b"")
    assert "state.safetensors is damaged" in command("export", folder, "model.safetensors", "--peer", "0")[2]
    shutil.rmtree(damaged)
    assert (
        "holds no models yet: a checkpoint is written after every 2 rounds (checkpoint = 2)"
        in (command("export", folder, "model.safetensors", "--peer", "0")[2])
    )
