"""Classes given as strings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from homophily.data.class_names import numbered
from homophily.data.constants import AgreedConstants, AgreedScale
from homophily.data.peer_data import PeerData
from homophily.data.user_data import partition_user_data
from homophily.errors import UserError

X = np.zeros((3, 2))


def test_names_become_numbers_in_sorted_order_over_all_peers() -> None:
    peers = [
        PeerData(X, ["dog", "cat", "dog"]),
        PeerData(X, np.array(["ant", "cat", "cat"]), test_x=X, test_y=list("zzz")),
    ]
    (a, b), names = numbered(peers, None, "")
    assert names == ("ant", "cat", "dog", "z")
    assert [np.asarray(y).tolist() for y in (a.y, b.y, b.test_y)] == [[2, 1, 2], [0, 1, 1], [3, 3, 3]]


def test_numbers_stay_as_they_are() -> None:
    peers = [PeerData(X, [0, 1, 2]), PeerData(X, torch.tensor([0, 1, 1]))]
    assert numbered(peers, None, "") == (peers, None)


def test_the_agreed_order_counts_and_other_names_are_refused() -> None:
    (peer,), names = numbered([PeerData(X, ["cat", "dog", "cat"], name="zoo")], ["dog", "cat"], "class_names")
    assert (np.asarray(peer.y).tolist(), names) == ([1, 0, 1], ("dog", "cat"))
    with pytest.raises(UserError, match="peer 'zoo': y contains the class 'cat', which class_names does not have"):
        numbered([PeerData(X, ["cat", "dog", "cat"], name="zoo")], ["dog", "fox"], "class_names")


def test_strings_and_numbers_together_are_refused() -> None:
    with pytest.raises(UserError, match="peer 1: y contains numbers, but the classes of other targets are strings"):
        numbered([PeerData(X, list("aba")), PeerData(X, [0, 1, 0])], None, "")


def test_the_partition_keeps_the_names_and_counts_agreed_classes() -> None:
    peers = [PeerData(X, list("aba"), test_x=X, test_y=list("bbb"))] * 2
    found = partition_user_data(peers, None, None, None, seed=0)
    assert (found.class_names, found.classes, found.outputs) == (("a", "b"), 2, 2)
    agreed = AgreedScale(AgreedConstants(class_names=["c", "b", "a"]))
    found = partition_user_data(peers, None, None, None, 0, agreed)
    assert (found.class_names, found.classes, found.test.y.tolist()) == (("c", "b", "a"), 3, [1] * 6)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"class_names": ["a", "a"]}, "data.scale.class_names must be at least two names, each once"),
        ({"class_names": ["a"]}, "data.scale.class_names must be at least two names, each once"),
        ({"class_names": ["a", "b"], "classes": 3}, "data.scale.classes = 3, but data.scale.class_names has 2 names"),
    ],
)
def test_agreed_names_that_contradict_one_another_are_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        AgreedScale.read(table)
    assert str(error.value) == message


def test_a_class_beyond_the_agreed_names_and_a_regression_are_refused() -> None:
    agreed = AgreedScale(AgreedConstants(class_names=["b", "a"]))
    with pytest.raises(UserError, match="classes = 2, but the data has 3 classes"):
        partition_user_data([PeerData(X, [0, 1, 2], test_x=X, test_y=[0, 1, 2])], None, None, None, 0, agreed)
    with pytest.raises(UserError, match="classes = 2, but the data is a regression"):
        partition_user_data([PeerData(X, [0.5, 1, 2])], None, None, None, 0, agreed)


def test_tags_of_positions_are_a_list_per_sample() -> None:
    tags = [["verb", "noun"], ["noun", "noun"], ["noun", "verb"]]
    (peer,), names = numbered([PeerData(X, tags)], None, "", "tokens")
    assert (np.asarray(peer.y).tolist(), names) == ([[1, 0], [0, 0], [0, 1]], ("noun", "verb"))
    with pytest.raises(UserError, match=r"peer 'zoo': y must be a list of classes for each sample.*'verb noun'"):
        numbered([PeerData(X, ["verb noun"] * 3, name="zoo")], None, "", "tokens")
