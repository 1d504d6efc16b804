"""Real peers and the constants of data.scale: what a peer computes from its own data is reported, others refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from homophily.errors import UserError
from homophily.peer import Peer
from homophily.peer.deploy import deploy, status, write_files
from homophily.peer.identity import Refused
from homophily.peer.settings import load
from homophily.peer.setup import PeerSetup, prepare_peer
from homophily.peer.wire import ModelMessage, pack_model, unpack_model
from homophily.simulation.configuration import make
from tests.patience import PATIENCE
from tests.peer.test_commands import started

SCALED = "inputs are scaled by this peer's own data (data.normalise = 'standard'); give data.scale, written by "
FILLED = "missing values are filled with means of this peer's own data; give data.scale, written by "
TABLE = "scale = { mean = [1.0, 2.0], std = [2.0, 0.5], classes = 2 }"


def ann(clinic: Path, data: str, peer: str = "", privacy: bool = False) -> Path:
    file = clinic / "ann.toml"
    table = f'[peer]\nname = "ann"\nallow = ["ann"]\ndevice = "cpu"\n{peer}'
    promise = "privacy = { epsilon = 8.0 }\n" if privacy else ""
    file.write_text(f'rounds = 1\nmethod = "local"\n{promise}data = {{ {data} }}\n{table}')
    return file


def prepared(clinic: Path, data: str, peer: str = "", privacy: bool = False) -> PeerSetup:
    return prepare_peer(load(ann(clinic, data, peer, privacy)))


@pytest.mark.parametrize(
    ("data", "notes"),
    [
        ('name = "ann.npz", normalise = "standard"', [SCALED, FILLED]),
        ('name = "ann.npz"', [FILLED]),
        ('name = "whole.npz", normalise = "standard"', [SCALED]),
        ('name = "whole.npz", normalise = "half"', []),
        ('name = "whole.npz"', []),
        (f'name = "ann.npz", {TABLE}', []),
    ],
)
def test_a_peer_says_what_it_computes_from_its_own_data(clinic: Path, data: str, notes: list[str]) -> None:
    setup = prepared(clinic, data)
    assert [note.partition("`")[0] for note in setup.notes] == notes
    assert setup.training.task.data.own_constants == (() if "classes" in data else ("classes",))


def test_the_notes_are_in_the_log_the_status_and_the_summary(clinic: Path) -> None:
    run = Peer(ann(clinic, 'name = "ann.npz", normalise = "standard"')).result()
    log = (clinic / "ann" / "peer.log").read_text()
    for note in (SCALED, FILLED):
        assert log.count(note) == 1
        assert sum(text.startswith(note) for text in run.summary["notes"]) == 1
        assert sum(text.startswith(note) for text in status(clinic / "ann")["notes"]) == 1


def test_the_target_scale_of_a_peer_is_agreed_only_if_it_is_given(clinic: Path) -> None:
    own = prepared(clinic, 'name = "numbers.npz"').training.task.data
    assert own.own_constants == ("target_mean", "target_std")
    assert own.target_scale is not None
    inputs_only = prepared(clinic, 'name = "numbers.npz", scale = { mean = [0, 0], std = [1, 1] }')
    assert inputs_only.training.task.data.own_constants == own.own_constants
    given = prepared(clinic, 'name = "numbers.npz", scale = { target_mean = [3], target_std = [2] }').training.task.data
    assert given.own_constants == ()
    assert given.target_scale is not None
    assert [part.tolist() for part in given.target_scale] == [[3.0], [2.0]]


@pytest.mark.parametrize(
    ("data", "missing"),
    [
        ('name = "whole.npz"', r"data\.scale with classes, since constants would be computed"),
        ('name = "whole.npz", scale = { mean = [0, 0], std = [1, 1] }', r"data\.scale with classes"),
        (
            'name = "numbers.npz", scale = { mean = [0, 0], std = [1, 1] }',
            r"data\.scale with target_mean and target_std",
        ),
    ],
)
def test_a_private_peer_refuses_constants_of_its_own_data(clinic: Path, data: str, missing: str) -> None:
    with pytest.raises(UserError, match=f"privacy: .*{missing}"):
        prepared(clinic, data, privacy=True)


def test_a_private_peer_takes_classes_from_its_file_or_from_the_agreed_constants(clinic: Path) -> None:
    with_test_samples(clinic)
    inputs = 'name = "tested.npz", scale = { mean = [0, 0], std = [1, 1] }'
    setups = [
        prepared(clinic, f'name = "tested.npz", {TABLE}', privacy=True),
        prepared(clinic, inputs, "classes = 2", privacy=True),
    ]
    assert [setup.training.task.data.classes for setup in setups] == [2, 2]
    assert all(setup.training.account is not None for setup in setups)


def with_test_samples(clinic: Path, **more: Any) -> None:
    x = np.random.default_rng(1).normal(size=(40, 2)).astype(np.float32)
    y = np.arange(40) % 2
    np.savez(clinic / "tested.npz", x=x[:30], y=y[:30], test_x=x[30:], test_y=y[30:], **more)


def test_a_private_peer_refuses_to_draw_its_training_samples(clinic: Path) -> None:
    with_test_samples(clinic)
    for data in (f'name = "whole.npz", {TABLE}', f'name = "tested.npz", train = 20, {TABLE}'):
        with pytest.raises(UserError, match="one sample more would change which others are drawn"):
            prepared(clinic, data, privacy=True)


@pytest.mark.parametrize(
    ("person", "most", "problem"),
    [
        (None, 3, "it is not known whose the samples are"),
        (np.arange(30) // 3, 2, "peer 'tested' has 3 training samples of one person"),
        (np.arange(30) // 3, 3, None),
    ],
)
def test_persons_have_no_more_samples_than_is_promised(
    clinic: Path, person: np.ndarray[Any, Any] | None, most: int, problem: str | None
) -> None:
    with_test_samples(clinic, **({} if person is None else {"person": person}))
    data, promise = f'name = "tested.npz", {TABLE}', f'privacy.unit = "person"\nprivacy.samples_per_person = {most}\n'
    file = ann(clinic, data, privacy=True)
    file.write_text(file.read_text().replace("privacy = { epsilon = 8.0 }\n", f"privacy.epsilon = 8.0\n{promise}"))
    if problem is None:
        assert Peer(file).result().summary["privacy"]["unit"] == "person"
        return
    with pytest.raises(UserError, match=problem):
        Peer(file)
    assert not (clinic / "ann").exists()


def test_the_file_of_the_constants_is_relative_to_the_file_of_the_peer(clinic: Path) -> None:
    (clinic / "agreed.toml").write_text(TABLE.removeprefix("scale = { ").removesuffix(" }").replace("], ", "]\n"))
    setup = prepared(clinic, 'name = "ann.npz", scale = "agreed.toml"')
    assert setup.config.data.scale == {"mean": [1.0, 2.0], "std": [2.0, 0.5], "classes": 2}
    x = setup.training.task.data.train.x
    assert torch.equal(x, prepared(clinic, f'name = "ann.npz", {TABLE}').training.task.data.train.x)
    with pytest.raises(UserError, match=rf"data\.scale = '{clinic}/other\.toml': cannot read the file"):
        prepared(clinic, 'name = "ann.npz", scale = "other.toml"')


def test_a_peer_with_other_constants_makes_models_that_are_refused(clinic: Path) -> None:
    tables: list[dict[str, Any]] = [{}, {"mean": [0, 0]}, {"mean": [0, 1]}, {"mean": [0, 0], "fill": [0, 0]}]
    numbers = []
    for table in tables:
        scale = ", ".join(f"{key} = {json.dumps(values)}" for key, values in table.items())
        given = f", scale = {{ {scale}, std = [1, 1] }}" if table else ""
        numbers.append(prepared(clinic, f'name = "whole.npz"{given}').expected.network)
    assert len(set(numbers[:3])) == 3
    assert numbers[3] == numbers[1]  # the mean is what fills missing values by default


def five_outputs(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    """A network that is the same for any number of classes up to five."""
    return nn.Linear(inputs[0], 5)


def test_peers_with_other_numbers_of_classes_refuse_each_others_models(clinic: Path) -> None:
    """Even if their networks are the same: fingerprints depend on the number of classes."""
    numbers = {}
    for classes in (2, 3, 5):
        file = ann(clinic, 'name = "whole.npz"', f"classes = {classes}")
        model = 'model = "tests.peer.test_constants:five_outputs"\n'
        file.write_text(model + file.read_text())
        numbers[classes] = prepare_peer(load(file)).expected
    assert len({expected.network for expected in numbers.values()}) == 3
    packed = pack_model(ModelMessage(torch.zeros(15), 40), numbers[2].network)
    assert unpack_model(packed, numbers[2]).samples == 40
    with pytest.raises(Refused, match=r"made for another network .*classes"):
        unpack_model(packed, numbers[3])


def test_a_state_resumes_only_with_the_constants_it_began_with(clinic: Path) -> None:
    Peer(ann(clinic, f'name = "ann.npz", {TABLE}')).result()
    other = ann(clinic, f'name = "ann.npz", {TABLE.replace("2.0]", "3.0]")}')
    message = r"data\.scale: .*ann holds a state with other constants: set peer\.state to a new folder"
    with pytest.raises(UserError, match=message):
        Peer(other).result()
    with pytest.raises(UserError, match=message):
        Peer(ann(clinic, 'name = "ann.npz"')).result()


def test_two_numbers_of_classes_are_refused(clinic: Path) -> None:
    with pytest.raises(UserError, match=r"peer\.classes = 3, but data\.scale has classes = 2"):
        prepared(clinic, f'name = "ann.npz", {TABLE}', peer="classes = 3")
    assert prepared(clinic, f'name = "ann.npz", {TABLE}', peer="classes = 2").training.task.data.classes == 2


def test_a_deployment_with_constants_from_a_file_equals_its_simulation(here: Path) -> None:
    (here / "agreed.toml").write_text("mean = [0.3]\nstd = [0.4]\nclasses = 12\n")
    config = make(
        {"rounds": 2, "data": {"scale": "agreed.toml", "angles": [0, 180], "test": 20}, "method": {"name": "random"}}
    )
    result = deploy(config, 2, here / "deployment", progress=lambda text: None).result()
    assert result["identical"]
    assert result["bills_identical"]
    assert status(here / "deployment" / "peer-0")["notes"] == []


def test_peers_with_different_constants_refuse_each_other(tmp_path: Path) -> None:
    data = {"angles": [0, 180], "scale": {"mean": [0.25], "std": [0.5]}}
    config = make({"rounds": 2, "peers": 2, "data": data, "method": "random"})
    first, second = write_files(config, 2, tmp_path, "free", wait_for=1, deadline=5.0)
    second.write_text(second.read_text().replace("0.25", "0.75"))
    with started(second, (tmp_path / "peer-1" / "config.toml").exists) as other:
        run = Peer(first).result()
        other.communicate(timeout=PATIENCE)
    assert all(not line["merged"] for line in run.metrics())
    log = (tmp_path / "peer-0" / "peer.log").read_text()
    assert log.count(" peer-1 has data.scale = ") == 1
    assert ": give both the same value" in log
    refused = "made for another network (model, task, classes, features, frozen weights), seed or data.scale"
    assert any(reason.startswith(refused) for reason in status(tmp_path / "peer-0")["refused"])
