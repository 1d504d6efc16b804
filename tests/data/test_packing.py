"""Inputs with named fields become one tensor, and the fields come back from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from homophily.data.fields import Fields
from homophily.data.npz import read_file
from homophily.data.packing import packed, tensors
from homophily.data.peer_data import PeerData
from homophily.errors import UserError


def test_fields_of_whole_numbers_are_one_integer_tensor() -> None:
    x = {"input_ids": [[5, 6, 7], [8, 9, 1]], "attention_mask": np.array([[1, 1, 0], [1, 1, 1]]), "flag": [True, False]}
    (peer,), fields = packed([PeerData(x, [0, 1])], None, 0)
    assert fields is not None
    assert peer.x.tolist() == [[5, 6, 7, 1, 1, 0, 1], [8, 9, 1, 1, 1, 1, 0]]  # type: ignore[union-attr]
    parts = fields.unpack(peer.x[None])  # type: ignore[index, arg-type]
    assert {name: (tuple(part.shape), part.dtype) for name, part in parts.items()} == {
        "input_ids": ((1, 2, 3), torch.int64),
        "attention_mask": ((1, 2, 3), torch.int64),
        "flag": ((1, 2), torch.bool),
    }
    assert Fields.from_json(fields.to_json()) == fields


def test_floats_pixels_and_whole_numbers_are_one_float_tensor_and_come_back_exactly() -> None:
    torch.manual_seed(0)
    x = {"a": torch.randn(4, 2, 3).double(), "pixels": torch.tensor([[0, 255]] * 4, dtype=torch.uint8)}
    x["id"] = torch.randint(0, 1 << 24, (4,))
    (peer,), fields = packed([PeerData(x, [0] * 4)], None, 0)
    assert fields is not None
    parts = fields.unpack(peer.x)  # type: ignore[arg-type]
    assert torch.equal(parts["a"], x["a"].float())
    assert torch.equal(parts["pixels"], torch.tensor([[0.0, 1.0]] * 4))
    assert torch.equal(parts["id"], x["id"])
    assert parts["id"].dtype == torch.int64


def test_lists_of_tokens_are_padded_over_all_peers_and_masks_and_targets_with_them() -> None:
    one = {"input_ids": [[3, 4], [5]], "attention_mask": [[1, 1], [1]], "features": [[0.5, 1.0], [2.0, 3.0]]}
    two = {"input_ids": [[3, 4, 6]], "attention_mask": [[1, 1, 1]], "features": [[0.5, 1.0]]}
    peers, fields = packed([PeerData(one, [[0, 1], [1]]), PeerData(two, [[1, 1, 1]])], None, 9)
    assert fields is not None
    parts = fields.unpack(peers[0].x)  # type: ignore[arg-type]
    assert parts["input_ids"].tolist() == [[3, 4, 9], [5, 9, 9]]
    assert parts["attention_mask"].tolist() == [[1, 1, 0], [1, 0, 0]]
    assert parts["features"].shape == (2, 2)
    assert peers[0].y.tolist() == [[0, 1, -100], [1, -100, -100]]  # type: ignore[union-attr]


def test_what_shows_how_peers_differ_are_the_tokens_that_count_or_the_floats() -> None:
    x = {"attention_mask": torch.tensor([[1, 0]]), "input_ids": torch.tensor([[7, 3]])}
    fields = Fields.of(x)
    assert fields.described(fields.pack(x, "x")).tolist() == [[7, -1]]
    y = {"word": torch.tensor([1]), "image": torch.rand(1, 1, 4, 4)}
    fields = Fields.of(y)
    assert torch.equal(fields.described(fields.pack(y, "x")), y["image"])


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ({"a": [[1, 2]], "b": [[1.0]] * 2}, "different numbers of samples"),
        ({"a": torch.tensor([1 << 25]), "b": torch.tensor([0.5])}, "field 'a' has whole numbers above 16,777,216"),
        ({"a": [["x"]]}, "a must contain real numbers"),
        ({"a": torch.tensor([torch.inf])}, "a contains infinite values"),
        ({}, "at least one"),
        ({"a": torch.tensor(3)}, "one row per sample"),
    ],
)
def test_mistakes_name_the_peer_and_the_field(x: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=rf"peer 0: x.*{message}"):
        packed([PeerData(x, [0])], None, 0)


def test_peers_with_other_fields_are_refused() -> None:
    with pytest.raises(UserError, match=r"peer 'b': x has the fields b int64 \[\], but the fields must be a int64"):
        packed([PeerData({"a": [1]}, [0]), PeerData({"b": [1]}, [0], name="b")], None, 0)
    with pytest.raises(UserError, match="peer 1: x has no named fields"):
        packed([PeerData({"a": [1]}, [0]), PeerData([[1]], [0])], None, 0)
    assert packed([PeerData([[1]], [0])], None, 0)[1] is None
    assert tensors({"a": [1]}, "x")["a"].tolist() == [1]


def test_a_file_has_one_key_for_each_field(tmp_path: Path) -> None:
    ids = np.array([[1, 2], [3, 4]])
    np.savez(tmp_path / "peer.npz", **{"x.input_ids": ids, "x.attention_mask": ids > 1, "y": np.array([0, 1])})
    found = read_file(tmp_path / "peer.npz")
    assert set(found.x) == {"input_ids", "attention_mask"}
    np.savez(tmp_path / "both.npz", **{"x.input_ids": ids, "x": ids, "y": np.array([0, 1])})
    with pytest.raises(UserError, match=r"has both 'x' and its field 'x\.input_ids'"):
        read_file(tmp_path / "both.npz")
