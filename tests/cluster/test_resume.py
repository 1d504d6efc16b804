"""A run that some ranks began is resumed by another number of ranks, with the same result."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from homophily.runs.backup import back_up, restore
from homophily.runs.reader import Run
from tests.cluster import halves
from tests.cluster.test_ranks import contents, tensors, torchrun

# A server's models, chosen models, memory, fingerprints, early stopping, what the guard counted, and noise.
NAMES = ["fedavg-stopping", "ifca", "dac", "kin", "stopping", "guarded", "private", "generated", "star", "unequal-kin"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs, begun and resumed in this process; in half/, as they were in between."""
    folder = tmp_path_factory.mktemp("whole")
    halves.main(folder, "begin", NAMES)
    shutil.copytree(folder, folder / "half")
    halves.main(folder, "resume", NAMES)
    return folder


@pytest.mark.parametrize(("first", "second"), [(3, 2), (2, 4), (3, 0)])
def test_another_number_of_ranks_continues_to_the_same_result(
    first: int, second: int, whole: Path, tmp_path: Path
) -> None:
    begun = torchrun(first, "tests.cluster.halves", str(tmp_path), "begin", *NAMES)
    assert begun.returncode == 0, begun.stderr
    checkpoint = tmp_path / "ifca" / "checkpoints" / "round-000002"
    assert len(list(checkpoint.glob("state*.safetensors"))) == first
    back_up(tmp_path / "ifca", tmp_path / "ifca.tar")
    restore(tmp_path / "ifca.tar", tmp_path / "restored")
    assert {file.name for file in checkpoint.iterdir()} == {
        file.name for file in (tmp_path / "restored" / "checkpoints" / "round-000002").iterdir()
    }
    for name in NAMES:  # the models of a checkpoint in several files
        found, expected = Run(tmp_path / name), Run(whole / "half" / name)
        for peer in (0, 3, int(found.config.peers or 0) - 1):
            ours, theirs = found.state_dict(peer), expected.state_dict(peer)
            assert all(torch.equal(ours[key], theirs[key]) for key in theirs), (name, peer)
    if second:
        done = torchrun(second, "tests.cluster.halves", str(tmp_path), "resume", *NAMES)
        assert done.returncode == 0, done.stderr
    else:
        halves.main(tmp_path, "resume", NAMES)
    for name in NAMES:
        assert contents(tmp_path / name) == contents(whole / name), name
        found, expected = tensors(tmp_path / name), tensors(whole / name)
        assert found.keys() == expected.keys()
        for key in found:
            assert found[key].numpy().tobytes() == expected[key].numpy().tobytes(), (name, key)
