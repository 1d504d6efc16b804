"""Peers' data from tables: what becomes inputs, targets, peers and splits, and error messages with column and row."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from homophily.data import PeerData, from_csv, from_frame, from_parquet
from homophily.errors import UserError

FRAME = pd.DataFrame(
    {
        "hospital": ["lyon", "bern", "lyon", "bern", "bern"],
        "age": [51, 60, 47, 70, 33],
        "smoker": [True, False, False, True, True],
        "weight": [70.5, np.nan, 61.0, 88.0, 59.5],
        "label": ["ill", "well", "well", "ill", "well"],
    }
)
KEYS: dict[str, Any] = {"peer": "hospital", "target": "label"}


def same(a: list[PeerData], b: list[PeerData]) -> None:
    assert [(p.name, p.cluster) for p in a] == [(p.name, p.cluster) for p in b]
    for one, other in zip(a, b, strict=True):
        for field in ("x", "y", "validation_x", "validation_y", "test_x", "test_y"):
            mine, yours = getattr(one, field), getattr(other, field)
            assert (mine is None) == (yours is None)
            if mine is not None:
                np.testing.assert_array_equal(mine, yours)


def test_a_frame_has_one_peer_per_name_in_order_of_names() -> None:
    bern, lyon = from_frame(FRAME, **KEYS)
    assert (bern.name, lyon.name) == ("bern", "lyon")
    np.testing.assert_array_equal(lyon.x, np.float32([[51, 1, 70.5], [47, 0, 61.0]]))
    assert np.isnan(bern.x[0, 2])  # type: ignore[index, call-overload]
    assert list(lyon.y) == ["ill", "well"]


def test_the_person_of_each_training_row_is_no_input(tmp_path: Path) -> None:
    frame = FRAME.assign(patient=["a", "b", "a", "007", "7"], part=["train", "train", "train", "test", "train"])
    keys = {**KEYS, "person": "patient", "split": "part"}
    bern, lyon = from_frame(frame, **keys)
    assert (list(lyon.person), list(bern.person)) == (["a", "a"], ["b", "7"])  # type: ignore[arg-type]
    assert np.shape(lyon.x) == (2, 3)
    frame.to_csv(tmp_path / "patients.csv", index=False)
    again = from_csv(tmp_path / "patients.csv", **keys)
    same(again, [bern, lyon])
    assert list(again[0].person) == ["b", "7"]  # type: ignore[arg-type]


def test_names_that_are_numbers_are_in_numerical_order() -> None:
    frame = pd.DataFrame({"site": [10, 2, 10, 2, 1, 1], "x": range(6), "y": [0, 1] * 3})
    assert [peer.name for peer in from_frame(frame, peer="site", target="y")] == ["1", "2", "10"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_file_gives_the_same_as_the_frame(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"patients.{kind}"
    if kind == "csv":
        FRAME.to_csv(path, index=False)
        same(from_csv(path, **KEYS), from_frame(FRAME, **KEYS))
    else:
        FRAME.to_parquet(path)
        same(from_parquet(path, **KEYS), from_frame(FRAME, **KEYS))


def test_names_in_a_csv_file_stay_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "sites.csv"
    path.write_text("site,group,x,y\n007, NA,1,0\n007, NA,?,1\n012,None,NA,0\n012,None,3,1\n")
    first, second = from_csv(path, peer="site", target="y", cluster="group")
    assert [(p.name, p.cluster) for p in (first, second)] == [("007", "NA"), ("012", "None")]
    np.testing.assert_array_equal(first.x, np.float32([[1], [np.nan]]))
    np.testing.assert_array_equal(second.x, np.float32([[np.nan], [3]]))


def test_without_a_peer_column_all_rows_are_one_peer_named_after_the_file(tmp_path: Path) -> None:
    path = tmp_path / "lyon.csv"
    FRAME.drop(columns="hospital").to_csv(path, index=False)
    (peer,) = from_csv(path, target="label")
    assert (peer.name, len(peer.x)) == ("lyon", 5)


@pytest.mark.parametrize(
    ("values", "target", "dtype", "shape"),
    [
        ([0, 1, 2, 1], "y", np.int64, (4,)),
        ([True, False, True, True], "y", np.int64, (4,)),
        (pd.array([0, 1, 2, 1], dtype="Int64"), "y", np.int64, (4,)),
        ([0.5, 1, 2, 1], "y", np.float32, (4,)),
        ([0, 1, 2, 1], ["y"], np.float32, (4, 1)),
        ([0, 1, 2, 1], ["y", "x"], np.float32, (4, 2)),
        (pd.Categorical(["a", "b", "a", "b"]), "y", np.dtype("<U1"), (4,)),
    ],
)
def test_whole_numbers_and_strings_are_classes_and_lists_of_columns_a_regression(
    values: Any, target: Any, dtype: Any, shape: tuple[int, ...]
) -> None:
    (peer,) = from_frame(pd.DataFrame({"x": [1, 2, 3, 4], "z": 0.0, "y": values}), target=target)
    y = np.asarray(peer.y)
    assert (y.dtype, y.shape) == (dtype, shape)


def test_a_column_of_lists_is_the_input_and_may_be_ragged(tmp_path: Path) -> None:
    frame = pd.DataFrame({"who": ["a", "a", "b"], "input_ids": [[1, 2, 3], [4], [5, 6]], "y": [0, 1, 1]})
    frame.to_parquet(tmp_path / "text.parquet")
    a, b = from_parquet(tmp_path / "text.parquet", peer="who", target="y", features="input_ids")
    assert [one.tolist() for one in a.x] == [[1, 2, 3], [4]]
    assert [one.tolist() for one in b.x] == [[5, 6]]
    square = pd.DataFrame({"image": [torch.zeros(1, 2, 2)] * 3, "y": [0, 1, 1]})
    assert np.asarray(from_frame(square, target="y")[0].x).shape == (3, 1, 2, 2)


def test_a_split_column_gives_validation_and_test_samples() -> None:
    frame = FRAME.assign(part=["train", "train", "test", "validation", "test"])
    bern, lyon = from_frame(frame, **KEYS, features=["age"], split="part")
    assert (np.asarray(lyon.x).tolist(), np.asarray(lyon.test_x).tolist(), lyon.validation_x) == ([[51]], [[47]], None)
    assert [len(part) for part in (bern.x, bern.validation_x, bern.test_y)] == [1, 1, 1]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "keys", "message"),
    [
        ({}, {"target": "labels"}, "target: the frame has no column 'labels'; did you mean 'label'?"),
        (
            {},
            {"peer": "zzz"},
            "peer: the frame has no column 'zzz'; its columns are hospital, age, smoker, weight, label",
        ),
        ({}, {"features": ["age", "wieght"]}, "features: the frame has no column 'wieght'; did you mean 'weight'?"),
        (
            {"weight": ["70", "heavy", "61", "88", "59"]},
            {},
            "the frame: column 'weight', row 2: 'heavy' is not a number; encode the column as numbers (0 and 1 for "
            "each category, a list of tokens for text)",
        ),
        ({"weight": [1, np.inf, 2, 3, 4]}, {}, "the frame: column 'weight', row 2: the value is infinite or too large"),
        ({"label": ["ill", None, "ill", "ill", "ill"]}, {}, "the frame: column 'label', row 2: the value is missing"),
        ({"label": ["ill", 3, "ill", "ill", "ill"]}, {}, "the frame: column 'label', row 2: 3 is neither a number nor"),
        ({"hospital": ["a", "b", None, "a", "b"]}, {}, "the frame: column 'hospital', row 3: the value is missing"),
        ({"age": pd.to_datetime(["2020-01-01"] * 5)}, {}, "the frame: column 'age' contains datetime64"),
        (
            {"part": "trian"},
            {"split": "part"},
            "the frame: column 'part', row 1: must be one of train, validation, test",
        ),
        ({"part": "test"}, {"split": "part"}, "the frame: peer 'bern' has no row whose 'part' is 'train'"),
        (
            {"region": list("abcde")},
            {"cluster": "region"},
            "the frame: column 'region', row 4: peer 'bern' is in cluster 'd' here, but in 'b' in row 2",
        ),
        ({"ids": [[1], [2], [3], [4], [5]]}, {}, "the frame: column 'ids' holds lists, and 'age' does not: name one"),
        (
            {"ids": [[1], ["a"], [3], [4], [5]]},
            {"features": "ids"},
            "the frame: column 'ids', row 2: it must be a list",
        ),
        ({}, {"features": []}, "the frame: there are no input columns"),
        ({}, {"target": []}, "the frame: target names no column"),
    ],
)
def test_a_mistake_is_named_with_column_and_row(change: dict[str, Any], keys: dict[str, Any], message: str) -> None:
    frame = FRAME.assign(**{name: pd.Series(v, dtype=None) if isinstance(v, list) else v for name, v in change.items()})
    with pytest.raises(UserError) as error:
        from_frame(frame, **{**KEYS, **keys})
    assert str(error.value).startswith(message)


def test_a_frame_without_rows_or_with_a_column_twice_is_refused() -> None:
    with pytest.raises(UserError, match="the frame has no rows"):
        from_frame(FRAME.iloc[:0], **KEYS)
    with pytest.raises(UserError, match="the frame has 2 columns 'age'"):
        from_frame(pd.concat([FRAME, FRAME[["age"]]], axis=1), **KEYS)
    with pytest.raises(UserError, match="from_frame: must be given a pandas DataFrame, not dict"):
        from_frame({}, **KEYS)


@pytest.mark.parametrize(("name", "content"), [("a.csv", b""), ("a.csv", b'a,b\n"1'), ("a.parquet", b"PAR1 no")])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    read = from_csv if name.endswith("csv") else from_parquet
    with pytest.raises(UserError, match=rf"{name}.* (cannot be read|has no column)"):
        read(tmp_path / name, **KEYS)
    with pytest.raises(UserError, match="there is no such file"):
        read(tmp_path / f"no-{name}", **KEYS)


def test_without_pandas_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match=r"a table needs pandas: pip install 'homophily\[tables\]'"):
        from_csv(tmp_path / "a.csv", **KEYS)
