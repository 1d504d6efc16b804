"""Constants on which all peers agree (data.scale): how they are read, checked, applied and computed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import homophily
from homophily.data import FederatedData, PeerData, prepared_data, sample_constants, write_constants
from homophily.data.constants import AgreedConstants, AgreedScale, constants_of
from homophily.errors import UserError

NAN = float("nan")
NOTHING: dict[str, Any] = {}


def shares(name: str, arrays: list[PeerData] | None = None, **settings: Any) -> FederatedData:
    return prepared_data(name, NOTHING, settings, None, 0, arrays).shares


def peer(*rows: list[float], y: list[Any] | None = None, test: list[list[float]] | None = None) -> PeerData:
    targets = y if y is not None else [i % 2 for i in range(len(rows))]
    held = rows if test is None else test
    return PeerData(list(rows), targets, test_x=held, test_y=targets[: len(held)])


# What they do


@pytest.mark.parametrize("name", ["digits", "linear"])
def test_constants_of_a_data_set_scale_as_standard_does_bit_for_bit(name: str) -> None:
    standard = shares(name, normalise="standard")
    agreed = shares(name, scale=sample_constants(name, NOTHING, NOTHING, None, 0).table)
    assert torch.equal(standard.train.x, agreed.train.x)
    assert torch.equal(standard.test.x, agreed.test.x)
    assert standard.digest == agreed.digest


def test_own_data_is_scaled_by_the_constants_and_not_by_itself() -> None:
    found = shares("", [peer([1.0, 4.0], [3.0, 8.0])], scale={"mean": [1.0, 2.0], "std": [2.0, 4.0]})
    assert found.train.x.tolist() == [[0.0, 0.5], [1.0, 1.5]]
    assert found.test.x.tolist() == found.train.x.tolist()


def test_pixels_are_divided_by_255_before_they_are_scaled() -> None:
    images = np.full((4, 3, 2, 2), 255, np.uint8)
    one = PeerData(images, [0, 1, 0, 1], test_x=images, test_y=[0, 1, 0, 1])
    found = shares("", [one], scale={"mean": [0.0, 0.5, 1.0], "std": [1.0, 0.25, 1.0]})
    assert found.train.x[0, :, 0, 0].tolist() == [1.0, 2.0, 0.0]


def test_a_standard_deviation_of_0_makes_a_feature_0() -> None:
    found = shares("", [peer([1.0, 4.0], [3.0, 8.0])], scale={"mean": [1.0, 2.0], "std": [0.0, 2.0]})
    assert found.train.x.tolist() == [[0.0, 1.0], [0.0, 3.0]]


def test_missing_values_become_the_agreed_fill_for_all_peers_alike() -> None:
    peers = [peer([NAN, 1.0], [100.0, 2.0]), peer([NAN, 1.0], [-100.0, NAN])]
    found = shares("", peers, scale={"mean": [1.0, 1.0], "std": [2.0, 1.0], "fill": [5.0, 3.0]})
    assert found.train.x[:, 0].tolist() == [2.0, 49.5, 2.0, -50.5]
    assert found.train.x[3, 1] == 2.0
    assert found.preparation.fill is not None
    assert found.preparation.fill.tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_without_fill_a_missing_value_becomes_the_mean_which_is_0_when_scaled() -> None:
    found = shares("", [peer([NAN, 1.0], [100.0, 2.0])], scale={"mean": [7.0, 1.0], "std": [2.0, 1.0]})
    assert found.train.x[0].tolist() == [0.0, 0.0]


def test_fill_alone_leaves_the_scale_as_it_is() -> None:
    found = shares("", [peer([NAN, 1.0], [100.0, 2.0])], scale={"fill": [3.0, 4.0]})
    assert found.train.x.tolist() == [[3.0, 1.0], [100.0, 2.0]]


def test_a_bundled_data_set_with_missing_values_and_one_test_set_for_all_can_be_filled() -> None:
    x = torch.tensor([[NAN, 1.0], [2.0, 3.0]] * 10)
    samples = homophily.data.Samples(x, torch.arange(20) % 2)
    source = homophily.data.Source("own", samples, samples, 2, defaults={"shift": "iid", "peers": 2, "train": 4})
    homophily.data.sources("filled-together")(lambda: source)
    try:
        found = shares("filled-together", test="all", scale={"mean": [2.0, 2.0], "std": [1.0, 1.0]})
    finally:
        del homophily.data.sources._items["filled-together"]
    assert not found.test.x.isnan().any()


def test_a_run_stores_the_constants_and_prepares_new_samples_with_them(tmp_path: Path) -> None:
    path = tmp_path / "scale.toml"
    constants = AgreedConstants(mean=[5.0, 1.0], std=[2.0, 1.0], classes=3)
    write_constants(constants, path, "a sample")
    config = {"rounds": 1, "data": {"scale": str(path)}, "method": "local"}
    run = homophily.run(config, data=[peer([1.0, 4.0], [3.0, 8.0])] * 2, out=tmp_path / "run", device="cpu")
    path.unlink()
    assert run.config.data.scale == constants.table
    assert run.config.data.normalise is None
    assert run.prepared(1, torch.tensor([[9.0, NAN]])).tolist() == [[2.0, 0.0]]
    assert run.model(0)(torch.zeros(1, 2)).shape == (1, 3)


# Classes and targets


def test_the_agreed_number_of_classes_is_that_of_the_model() -> None:
    found = shares("", [peer([1.0], [2.0])], scale={"classes": 4})
    assert (found.classes, found.outputs) == (4, 4)
    assert found.train.x.tolist() == [[1.0], [2.0]]


def test_a_model_with_fewer_outputs_than_agreed_classes_is_refused() -> None:
    with pytest.raises(UserError, match="the network has 2 outputs, but the data has 4 classes"):
        homophily.kin(
            {"data": {"scale": {"classes": 4}}},
            model=torch.nn.Linear(1, 2),
            data=[peer([1.0], [2.0])] * 2,
            device="cpu",
        )


def test_agreed_target_constants_do_not_change_the_targets() -> None:
    one = peer([1.0], [2.0], y=[10.0, 30.0])
    found = shares("", [one], scale={"target_mean": [7.0], "target_std": [2.0]})
    assert found.target_scale is not None
    assert [part.tolist() for part in found.target_scale] == [[7.0], [2.0]]
    assert found.train.y.tolist() == [[10.0], [30.0]]


def test_without_agreed_constants_targets_of_all_peers_are_pooled() -> None:
    found = shares("", [peer([1.0], [2.0], y=[10.0, 30.0]), peer([1.0], [2.0], y=[50.0, 70.0])])
    assert found.target_scale is not None
    mean, std = found.target_scale
    assert mean.tolist() == [40.0]
    assert std.tolist() == pytest.approx([500**0.5])
    assert found.own_constants == ("target_mean", "target_std")


def test_classes_have_no_target_scale() -> None:
    assert shares("digits").target_scale is None


# Computing and writing


def test_constants_of_a_sample_skip_missing_values_and_name_the_fill() -> None:
    found = constants_of(shares("", [peer([NAN, 1.0], [2.0, 1.0], [4.0, 1.0])], normalise="standard"))
    assert found.table == {"mean": [3.0, 1.0], "std": [1.0, 0.0], "fill": [3.0, 1.0], "classes": 2}


def test_a_feature_without_any_value_is_refused() -> None:
    with pytest.raises(UserError, match="data: feature 1 has no value in this sample"):
        constants_of(shares("", [peer([1.0, NAN], [2.0, NAN])], normalise="standard"))


def test_a_sample_may_be_one_npz_file_and_a_written_file_reads_back(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(3.0, 2.0, size=(50, 3)).astype(np.float32)
    np.savez(tmp_path / "one.npz", x=x, y=x[:, :1])
    found = sample_constants(str(tmp_path / "one.npz"), NOTHING, NOTHING, None, 0)
    write_constants(found, tmp_path / "scale.toml", "one.npz")
    read = AgreedScale.read(str(tmp_path / "scale.toml"))
    assert read.constants == found
    assert set(found.table) == {"mean", "std", "target_mean", "target_std"}


def test_a_hash_differs_if_a_constant_differs_and_not_by_how_it_is_written() -> None:
    digests = [
        AgreedScale.read(table).constants.digest
        for table in (
            {"mean": [1], "std": [2]},
            {"mean": [1.0], "std": [2.0], "fill": [1.0]},
            {"mean": [1.0], "std": [2.0], "fill": [0.0]},
            {"mean": [1.0], "std": [2.5]},
            {"mean": [1.0], "std": [2.0], "classes": 2},
        )
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 4


# Mistakes

TWO = {"mean": [0.0, 0.0], "std": [1.0, 1.0]}
MISTAKES: list[tuple[dict[str, Any], str]] = [
    (
        {"mean": [0.0], "std": [1.0]},
        r"data\.scale: mean has 1 values, but must have 2, one for each channel or feature",
    ),
    ({**TWO, "fill": [0.0]}, r"data\.scale: fill has 1 values, but must have 2"),
    ({"mean": [0.0, 0.0]}, r"data\.scale\.mean and data\.scale\.std must be given together"),
    ({"mean": [0.0, 0.0], "std": [1.0]}, r"data\.scale\.std has 1 values, but data\.scale\.mean has 2"),
    ({"mean": [0.0, NAN], "std": [1.0, 1.0]}, r"data\.scale\.mean\.1 = NaN: must be finite"),
    ({"mean": [0.0, 0.0], "std": [1.0, -1.0]}, r"data\.scale\.std\.1 = -1\.0: must be a finite standard deviation"),
    ({"mean": [0.0, 0.0], "std": [1.0, float("inf")]}, r"data\.scale\.std\.1 = Infinity: must be a finite standard"),
    ({"mean": 0.5, "std": 0.5}, r"data\.scale\.mean = 0\.5: must be a list"),
    ({**TWO, "sdt": [1.0]}, r"unknown key data\.scale\.sdt \(did you mean std\?\)"),
    ({"classes": 1}, r"data\.scale\.classes = 1: must be at least 2"),
    (
        {**TWO, "target_mean": [0.0], "target_std": [1.0]},
        r"data\.scale: target_mean and target_std are given, but the data is a classification task",
    ),
    ({"classes": 2}, r"data\.scale: the data has missing values \(NaN\), so fill or mean must be given"),
]


@pytest.mark.parametrize(("table", "message"), MISTAKES)
def test_a_mistake_in_the_table_is_named(table: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        shares("", [peer([NAN, 1.0], [2.0, 3.0])], scale=table)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read the file .*: No such file or directory"),
        ("mean = [", "is not a TOML file"),
        ("mean = [0]\nstd = [1]", "mean has 1 values, but must have 2"),
        ("mean = [0, inf]\nstd = [1, 1]", r"mean\.1 = Infinity: must be finite"),
        ("classes = 2\nfill = [1, 1]\nmin = 3", "unknown key min"),
        ("classes = 3\nfill = [1, 1]", "classes = 3, but the data has 5 classes"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_the_file(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "scale.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=f"data\\.scale = '{path}': .*{message}"):
        shares("", [peer([NAN, 1.0], [2.0, 3.0], y=[0, 4])], scale=os.fspath(path))


def test_other_data_than_the_constants_are_for_is_refused() -> None:
    with pytest.raises(UserError, match=r"data\.scale: classes = 2, but the data is a regression"):
        shares("", [peer([1.0], [2.0], y=[0.5, 1.5])], scale={"classes": 2})
    with pytest.raises(UserError, match=r"data\.scale: target_mean has 2 values, but must have 1, one per output"):
        shares("", [peer([1.0], [2.0], y=[0.5, 1.5])], scale={"target_mean": [0, 0], "target_std": [1, 1]})
    tokens = PeerData(np.ones((4, 2), np.int64), [0, 1, 0, 1])
    with pytest.raises(UserError, match=r"data\.scale: mean and std are given, but whole numbers \(tokens\) are not"):
        shares("", [tokens], scale=TWO)


def test_normalise_and_scale_together_are_refused() -> None:
    with pytest.raises(UserError, match=r"data\.normalise = 'unit': data\.scale is given too"):
        shares("digits", normalise="unit", scale={"classes": 10})
