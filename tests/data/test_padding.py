"""Padding of sequences of different lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import homophily
from homophily.data import PeerData, padded
from homophily.data.padding import aligned
from homophily.errors import UserError


@given(st.lists(st.lists(st.integers(1, 9), max_size=6), min_size=1), st.integers(0, 3))
def test_each_row_is_the_sequence_and_then_the_padding(sequences: list[list[int]], more: int) -> None:
    longest = max(map(len, sequences)) + more
    found = padded(sequences, longest, pad=-1)
    assert found.shape == (len(sequences), longest)
    assert [row[: len(one)] for row, one in zip(found.tolist(), sequences, strict=True)] == sequences
    assert all((row[len(one) :] == -1).all() for row, one in zip(found, sequences, strict=True))


def test_sequences_may_be_tensors_arrays_and_of_vectors() -> None:
    found = padded([torch.ones(2, 3), np.zeros((1, 3))], pad=0.5)
    assert (found.dtype, found.shape, found[1].tolist()) == (torch.float32, (2, 2, 3), [[0] * 3, [0.5] * 3])


@pytest.mark.parametrize(
    ("sequences", "keys", "message"),
    [
        ([[1, 2], [3]], {"length": 1}, "sequence 0 has the length 2, but data.length is 1: shorten it"),
        ([np.ones((2, 2)), np.ones((2, 3))], {}, "sequence 1: sequences may differ only in their length, not as"),
        ([[1, 2], [3]], {"pad": 0.5}, "data.pad = 0.5: must be a whole number, because the samples are whole numbers"),
        ([[1, 2], 3], {}, "sequence 1 is a single number, not a sequence"),
        (
            [[1, 2], ["a"]],
            {},
            "sequence 1 is not an array of numbers: it is text; turn text into tokens, whole numbers",
        ),
        ([], {}, "there is no sequence"),
    ],
)
def test_mistakes_are_named(sequences: Any, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        padded(sequences, **keys)
    assert str(error.value).startswith(message)


def test_tokens_of_all_peers_and_splits_are_padded_to_the_longest() -> None:
    first = PeerData([[1, 2], [3]], [0, 1], test_x=[[1, 2, 3, 4]], test_y=[1])
    second = PeerData(np.array([[5, 6, 7]]), [1])
    (a, b), length = aligned([first, second], None, 9)
    assert length == 4
    assert [torch.as_tensor(x).tolist() for x in (a.x, a.test_x, b.x)] == [
        [[1, 2, 9, 9], [3, 9, 9, 9]], [[1, 2, 3, 4]], [[5, 6, 7, 9]],
    ]  # fmt: skip
    assert (a.y, b.y) == ([0, 1], [1])


def test_classes_of_positions_are_padded_with_the_class_that_is_ignored() -> None:
    (peer,), _ = aligned([PeerData([[1, 2], [3]], [[0, 1], [1]])], None, 0)
    assert torch.as_tensor(peer.y).tolist() == [[0, 1], [1, -100]]
    (peer,), length = aligned([PeerData(np.array([[1, 2]]), np.array([[0, 1]]))], 3, 0)
    assert (torch.as_tensor(peer.y).tolist(), length) == ([[0, 1, -100]], 3)


def test_rows_of_real_numbers_are_padded_only_to_a_given_length() -> None:
    peers = [PeerData([[1.0, 2.0], [3.0]], [0, 1])]
    assert aligned(peers, None, 0) == (peers, None)
    (peer,), length = aligned(peers, 3, 0)
    assert (torch.as_tensor(peer.x).tolist(), length) == ([[1, 2, 0], [3, 0, 0]], 3)
    with pytest.raises(
        UserError, match=r"peer 'lyon': x: sample 1 has the length 2, but data\.length is 1: shorten it"
    ):
        aligned([PeerData([[1], [2, 3]], [0, 1], name="lyon")], 1, 0)


@pytest.mark.parametrize(
    ("peer", "message"),
    [
        (PeerData([], []), "peer 1: x has no samples"),
        (PeerData([["a"], ["b", "c"]], [0, 1]), "peer 1: x: sample 0 is not an array of numbers: it is text"),
        (PeerData(["two words", "three"], [0, 1]), "peer 1: x: sample 0 is not an array of numbers: it is text"),
        (PeerData([[1, 2, 3], [4, 5]], [[0, 1], [1]]), "peer 1: y: sample 0 has 2 targets, but x has 3 positions"),
    ],
)
def test_mistakes_of_a_peer_beside_ragged_tokens_name_it(peer: PeerData, message: str) -> None:
    with pytest.raises(UserError, match=message):
        aligned([PeerData([[1], [2, 3]], [0, 1]), peer], None, 0)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.embedding(x).mean(1))
        return out


def sentences() -> list[PeerData]:
    rng = np.random.default_rng(0)
    x = [[rng.integers(1, 10, size=rng.integers(2, 7)).tolist() for _ in range(12)] for _ in range(4)]
    return [PeerData(one, [len(words) % 2 for words in one]) for one in x]


def test_new_lists_are_padded_as_in_training(here: Path) -> None:
    run = homophily.run({"rounds": 1, "method": "local", "data": {"pad": 9}}, model=Words(), data=sentences())
    assert run.prepared(0, [[1, 2], [3, 4, 5]]).tolist() == [[1, 2, 9, 9, 9, 9], [3, 4, 5, 9, 9, 9]]
    assert run.prepared(0, [[1], [2]]).tolist() == [[1, 9, 9, 9, 9, 9], [2, 9, 9, 9, 9, 9]], "of one length"
    with pytest.raises(UserError, match=r"sequence 1 has the length 7, but data\.length is 6"):
        run.prepared(0, [[1], [2] * 7])


def test_a_run_pads_and_its_config_has_the_length(here: Path) -> None:
    keys = {"rounds": 1, "method": "local"}
    run = homophily.run(keys, model=Words(), data=sentences(), out=here / "run")
    assert (run.about["inputs"], run.config.data.length) == ([6], 6)
    homophily.resume(here / "run", {"rounds": 2}, model=Words(), data=sentences())
    longer = homophily.run({**keys, "data": {"length": 8, "pad": 0}}, model=Words(), data=sentences())
    assert longer.about["inputs"] == [8]
    with pytest.raises(UserError, match=r"data\.length: only your own data is padded, and 'digits' is a data set"):
        homophily.run({"data": {"name": "digits", "length": 3}})
