"""Users' own data in files: a folder of .npz files, and what is said about damaged ones."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homophily.data.npz import read_folder
from homophily.errors import UserError
from tests.data.test_user_data import GOOD, share


def test_a_folder_has_one_file_per_peer_in_order_of_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "b.npz", x=GOOD, y=[0, 1, 0], cluster="sea")
    np.savez_compressed(tmp_path / "a.npz", x=GOOD * 2, y=[1, 1, 1], test_x=GOOD, test_y=[1, 0, 1], cluster=4)
    (tmp_path / "readme.txt").write_text("not a peer")
    a, b = read_folder(tmp_path)
    assert (a.name, a.cluster, b.name, b.cluster) == ("a", 4, "b", "sea")
    assert b.test_x is None
    shares = share(a, b, test=1)
    assert shares.train.count.tolist() == [3, 2]
    assert shares.cluster_names == ("4", "sea")


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no \.npz file in this folder") as error:
        read_folder(tmp_path)
    assert str(tmp_path) in str(error.value)


def npz(path: Path, **arrays: Any) -> bytes:
    np.savez(path, **arrays)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"x": GOOD}, "the key 'y' is missing"),
        ({"x": GOOD, "y": [0, 1, 0], "labels": [1]}, "unknown key 'labels'; allowed keys are x, y, validation_x"),
        ({"x": np.array([{}, {}]), "y": [0, 1]}, r"'x' contains Python objects \(pickles\), which are not read"),
        ({"x": GOOD, "y": [0, 1, 0], "cluster": [1, 2]}, "'cluster' must be a string or a whole number"),
        ({"x": GOOD, "y": [0, 1, 0], "cluster": 1.5}, "'cluster' must be a string or a whole number"),
    ],
)
def test_a_file_with_wrong_content_is_named(tmp_path: Path, arrays: dict[str, Any], complaint: str) -> None:
    npz(tmp_path / "lyon.npz", **arrays)
    with pytest.raises(UserError, match=rf"lyon\.npz: {complaint}"):
        read_folder(tmp_path)


class Boom:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("a pickle was loaded",)


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: b"no archive",
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[:90] + bytes(b ^ 255 for b in whole[90:200]) + whole[200:],
        lambda whole: pickle.dumps(Boom()),
    ],
    ids=["empty", "text", "cut", "flipped", "pickle"],
)
def test_a_damaged_file_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    whole = npz(tmp_path / "lyon.npz", x=GOOD, y=[0, 1, 0])
    (tmp_path / "lyon.npz").write_bytes(damage(whole))
    with pytest.raises(UserError, match=r"lyon\.npz is damaged or not a \.npz file"):
        read_folder(tmp_path)


def test_a_single_array_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "lyon.npz").open("wb") as file:
        np.save(file, GOOD)
    with pytest.raises(UserError, match=r"lyon\.npz contains a single array instead of x and y"):
        read_folder(tmp_path)
