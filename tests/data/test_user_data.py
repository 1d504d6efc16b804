"""Users' own data: accepted arrays, the partition, and error messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from homophily.data.peer_data import PeerData
from homophily.data.types import FederatedData
from homophily.data.user_data import partition_user_data
from homophily.errors import UserError


def numbered(n: int, start: int = 0, **more: Any) -> PeerData:
    """A peer whose samples are start, start + 1, ...; classes 0 and 1."""
    values = np.arange(start, start + n, dtype=np.float32)[:, None]
    return PeerData(x=values, y=np.arange(n) % 2, **more)


def share(*peers: PeerData, **keys: Any) -> FederatedData:
    return partition_user_data(list(peers), **{"train": None, "validation": None, "test": None, "seed": 0, **keys})


def held(shares: FederatedData, i: int) -> dict[str, list[float]]:
    """Peer i's samples of ``numbered`` in each split."""
    splits = {"train": shares.train, "validation": shares.validation, "test": shares.test}
    return {name: split.peer(i)[0].flatten().tolist() for name, split in splits.items() if split is not None}


# conversion of x and y


@pytest.mark.parametrize("make", [np.array, torch.tensor, lambda values: values], ids=["numpy", "torch", "lists"])
def test_arrays_tensors_and_lists_are_the_same(make: Callable[[Any], Any]) -> None:
    shares = share(PeerData(make([[0.5, 1.0], [2.0, 3.0]]), make([0, 1]), test_x=make([[4.0, 5.0]]), test_y=make([1])))
    assert shares.train.x.tolist() == [[0.5, 1.0], [2.0, 3.0]]
    assert shares.train.x.dtype == torch.float32
    assert shares.train.y.tolist() == [0, 1]
    assert shares.train.y.dtype == torch.int64


def test_masked_values_are_missing_values() -> None:
    x = np.ma.masked_equal([[1, 2], [3, 777], [5, 6]], 777)
    found = share(PeerData(x, [0, 1, 0], test_x=x, test_y=[0, 1, 0]))
    plain = np.array([[1.0, 2.0], [3.0, np.nan], [5.0, 6.0]])
    same = share(PeerData(plain, [0, 1, 0], test_x=plain, test_y=[0, 1, 0]))
    assert found.train.x.tolist() == same.train.x.tolist()


@pytest.mark.parametrize(
    ("dtype", "becomes", "value"),
    [
        (np.uint8, torch.float32, 0.2),  # pixels: 51 / 255
        (np.float16, torch.float32, 51.0),
        (np.float64, torch.float32, 51.0),
        (">f4", torch.float32, 51.0),
        (np.int8, torch.int64, 51),  # tokens
        (np.uint16, torch.int64, 51),
        (np.bool_, torch.float32, 1.0),
    ],
)
def test_x_is_pixels_floats_or_tokens_by_its_dtype(dtype: Any, becomes: torch.dtype, value: float) -> None:
    x = np.full((5, 1, 2, 2), 51).astype(dtype)
    shares = share(PeerData(x, [0, 1, 0, 1, 0]))
    assert shares.train.x.dtype == becomes
    assert shares.train.x[0, 0, 0, 0].item() == pytest.approx(value)
    assert shares.inputs == (1, 2, 2)


def test_half_precision_tensors_are_accepted() -> None:
    shares = share(
        PeerData(torch.ones(5, 2, dtype=torch.bfloat16, requires_grad=True), torch.zeros(5, dtype=torch.bool))
    )
    assert (shares.train.x.dtype, shares.train.y.dtype) == (torch.float32, torch.int64)
    assert not shares.train.x.requires_grad


def test_classes_are_counted_over_everything() -> None:
    one = PeerData([[0.0], [1.0]], [0, 1], test_x=[[0.0]], test_y=[6])
    two = PeerData([[0.0], [1.0]], [3, 1], test_x=[[0.0]], test_y=[0])
    shares = share(one, two)
    assert (shares.classes, shares.outputs) == (7, 7)


def test_float_targets_are_a_regression() -> None:
    shares = share(PeerData(np.ones((5, 3)), np.arange(5.0)))
    assert (shares.classes, shares.outputs, shares.train.y.shape) == (None, 1, (4, 1))
    shares = share(PeerData(np.ones((5, 3)), np.ones((5, 2))))
    assert (shares.classes, shares.outputs, shares.train.y.dtype) == (None, 2, torch.float32)


def test_the_users_arrays_are_not_modified() -> None:
    x = np.array([[np.nan], [1.0], [3.0]], dtype=np.float32)
    given_test = torch.tensor([[torch.nan]])
    share(PeerData(x, [0, 1, 0], test_x=given_test, test_y=[0]), normalise="standard")
    assert np.isnan(x[0, 0])
    assert x[2, 0] == 3.0
    assert given_test.isnan().all()


# the partition into training, validation and test samples


def test_without_test_samples_a_fifth_of_x_is_used() -> None:
    shares = share(numbered(10), numbered(4, start=100))
    first, second = held(shares, 0), held(shares, 1)
    assert (len(first["train"]), len(first["test"])) == (8, 2)
    assert (len(second["train"]), len(second["test"])) == (3, 1)  # at least one
    assert sorted(first["train"] + first["test"]) == list(range(10))
    assert sorted(second["train"] + second["test"]) == list(range(100, 104))
    assert shares.validation is None


@given(
    n=st.integers(1, 30), train=st.integers(1, 12) | st.none(), validation=st.integers(0, 12), test=st.integers(1, 12)
)
def test_the_parts_have_the_requested_sizes_and_never_overlap(
    n: int, train: int | None, validation: int, test: int
) -> None:
    keys = {"train": train, "validation": validation, "test": test}
    if (train or 1) + validation + test > n:
        with pytest.raises(UserError, match=rf"peer 0 has {n} samples in x, too few for data\.train = \d+.*data\.test"):
            share(numbered(n), **keys)
        return
    parts = held(share(numbered(n), **keys), 0)
    assert len(parts["train"]) == (train or n - validation - test)
    assert len(parts.get("validation", [])) == validation
    assert len(parts["test"]) == test
    together = [value for part in parts.values() for value in part]
    assert len(set(together)) == len(together)
    assert set(together) <= set(range(n))


def test_x_and_y_stay_together() -> None:
    shares = share(numbered(20), train=7, validation=3, test=5)
    for split in (shares.train, shares.validation, shares.test):
        assert split is not None
        assert torch.equal(split.x[:, 0].long() % 2, split.y)


def test_the_split_depends_on_the_seed_and_the_peer() -> None:
    def cut(seed: int) -> list[list[float]]:
        shares = share(numbered(40), numbered(40), test=10, seed=seed)
        return [held(shares, i)["test"] for i in range(2)]

    assert cut(1) == cut(1)
    assert cut(1) != cut(2)
    assert cut(1)[0] != cut(1)[1]


def test_all_test_and_validation_samples_of_a_peer_are_used() -> None:
    brought: dict[str, Any] = {
        "test_x": [[50.0], [51.0]],
        "test_y": [0, 1],
        "validation_x": [[60.0]],
        "validation_y": [0],
    }
    for everything in (None, "all"):
        shares = share(numbered(5, **brought), train=everything, test=everything)
        assert held(shares, 0) == {"train": [0, 1, 2, 3, 4], "validation": [60], "test": [50, 51]}


def test_a_number_of_the_peers_test_and_validation_samples_can_be_drawn() -> None:
    more = np.arange(100.0, 140.0)[:, None]
    brought: dict[str, Any] = {
        "test_x": more,
        "test_y": np.zeros(40, int),
        "validation_x": more + 100,
        "validation_y": np.zeros(40, int),
    }
    parts = held(share(numbered(5, **brought), validation=20, test=20), 0)
    assert len(parts["test"]) == 20
    assert set(parts["test"]) <= set(range(100, 140))
    assert len(parts["validation"]) == 20
    assert set(parts["validation"]) <= set(range(200, 240))
    assert [value - 100 for value in parts["validation"]] != parts["test"]  # independent draws
    assert len(parts["train"]) == 5
    assert "validation" not in held(share(numbered(5, **brought), validation=0), 0)


def test_peers_with_and_without_test_samples_can_be_mixed() -> None:
    shares = share(numbered(5, test_x=[[9.0]], test_y=[0]), numbered(5, start=20), test=1)
    assert held(shares, 0)["test"] == [9.0]
    assert len(held(shares, 0)["train"]) == 5
    assert len(held(shares, 1)["train"]) == 4


# missing values and scales


def test_missing_values_are_imputed_from_the_peers_own_training_samples() -> None:
    nan = np.nan
    one = PeerData([[1.0, nan], [3.0, nan]], [0, 1], test_x=[[nan, nan]], test_y=[0])
    two = PeerData([[10.0, 1.0], [20.0, 1.0]], [0, 1], test_x=[[nan, 7.0]], test_y=[0])
    shares = share(one, two)
    assert shares.train.x.tolist() == [[1.0, 0.0], [3.0, 0.0], [10.0, 1.0], [20.0, 1.0]]
    assert shares.test.x.tolist() == [[2.0, 0.0], [15.0, 7.0]]


def test_standard_scales_by_the_training_samples_of_all_peers() -> None:
    one = PeerData([[0.0], [0.0]], [0, 1], test_x=[[9.0]], test_y=[0])
    two = PeerData([[4.0], [4.0]], [0, 1], test_x=[[2.0]], test_y=[0])
    shares = share(one, two, normalise="standard")
    assert shares.train.x.tolist() == [[-1.0], [-1.0], [1.0], [1.0]]
    assert shares.test.x.tolist() == [[3.5], [0.0]]


def test_a_feature_never_observed_is_zero_on_the_common_scale() -> None:
    one = PeerData([[np.nan], [np.nan]], [0, 1], test_x=[[np.nan]], test_y=[0])
    two = PeerData([[100.0], [200.0]], [0, 1], test_x=[[np.nan]], test_y=[0])
    shares = share(one, two, normalise="standard")
    assert shares.train.x.tolist() == [[0.0], [0.0], [-1.0], [1.0]]


def test_pixels_are_scaled_after_they_became_floats() -> None:
    shares = share(PeerData(np.full((5, 1, 2, 2), 255, np.uint8), [0, 1, 0, 1, 0]), normalise="half")
    assert shares.train.x.unique().tolist() == [1.0]


# clusters


def test_clusters_are_numbered_as_they_first_appear() -> None:
    shares = share(*(numbered(5, cluster=name) for name in ("sea", 3, "land", "sea", 3)))
    assert shares.cluster is not None
    assert shares.cluster.tolist() == [0, 1, 2, 0, 1]
    assert shares.cluster_names == ("sea", "3", "land")


def test_clusters_are_unknown_if_one_peer_has_none() -> None:
    shares = share(numbered(5, cluster="sea"), numbered(5))
    assert (shares.cluster, shares.cluster_names) == (None, ())


# mistakes

GOOD = np.ones((3, 2))


@pytest.mark.parametrize(
    ("peer", "complaint"),
    [
        (PeerData(np.ones((0, 2)), []), "x has no samples"),
        (PeerData(GOOD, [0, 1]), "x has 3 samples but y has 2"),
        (PeerData(GOOD, [0, 1, 0], test_x=GOOD, test_y=[1]), "test_x has 3 samples but test_y has 1"),
        (PeerData(GOOD, [0, 1, 0], test_x=GOOD), "test_x and test_y must be given together"),
        (PeerData(GOOD, [0, 1, 0], validation_y=[1]), "validation_x and validation_y must be given together"),
        (PeerData(np.ones(3), [0, 1, 0]), r"x must have one row per sample, not the shape \[3\]"),
        (PeerData(np.array([["a"], ["b"]]), [0, 1]), "x must contain real numbers, not <U1"),
        (PeerData(np.array([[{}], [{}]]), [0, 1]), "x must contain real numbers, not object"),
        (PeerData(GOOD, [["cat"], [1], ["cat"]]), "y must contain real numbers"),
        (PeerData(torch.ones(2, 2, dtype=torch.complex64), [0, 1]), "x must contain real numbers, not torch.complex64"),
        (PeerData([[1.0, 2.0], [3.0]], [0, 1]), "x is not an array: its rows differ in length"),
        (PeerData(GOOD, [[1.0], [2.0, 3.0], [4.0]]), "y is not an array: its rows differ in length"),
        (PeerData(GOOD, [torch.ones(2, requires_grad=True)] * 3), "y is not an array: Can't call numpy"),
        (PeerData(GOOD, torch.ones(3, 2).to_sparse()), "y must be a dense tensor"),
        (PeerData(torch.ones(3, 2, device="meta"), [0, 1, 0]), "x must be a dense tensor"),
        (PeerData(GOOD, [0, -1, 0]), "y contains the class -1, but classes must be 0"),
        (PeerData(GOOD, [0, 2**40, 0]), "y contains the class 1099511627776, but classes must be 0 to 1,000,000"),
        (PeerData(GOOD, [0.0, np.nan, 1.0]), "y contains NaN or infinite values"),
        (PeerData([[np.inf]], [0]), "x contains infinite values"),
        (PeerData(GOOD, [[0], [1], [0]]), r"y must have the shape \[n\] if it holds classes, not \[3, 1\]"),
        (PeerData(GOOD, 3.0), r"y must have one row per sample, not the shape \[\]"),  # type: ignore[arg-type]
        (PeerData(GOOD[:1], [0]), r"has 1 samples in x, too few for data\.train = 1, data\.test = 1"),
    ],
)
def test_a_mistake_is_reported_with_the_peers_number(peer: PeerData, complaint: str) -> None:
    with pytest.raises(UserError, match=rf"^peer 1:? {complaint}"):
        share(PeerData(np.ones((9, 2)), np.arange(9) % 2), peer)


def test_error_messages_use_the_peers_name() -> None:
    with pytest.raises(UserError, match=r"^peer 'basel': x has 3 samples but y has 2"):
        share(PeerData(GOOD, [0, 1], name="basel"))


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        (PeerData(np.ones((5, 3)), [0] * 5), r"x is float32 \[3\] per sample, but peer 'a' has float32 \[2\]"),
        (PeerData(np.ones((5, 2), np.uint8), [0] * 5), r"x is uint8 \[2\] per sample, but peer 'a' has float32 \[2\]"),
        (PeerData(np.ones((5, 2)), [0.5] * 5), r"y is float32 \[1\] per sample, but peer 'a' has int64 \[\]"),
        (
            PeerData(np.ones((5, 2)), [0] * 5, test_x=np.ones((1, 4)), test_y=[0]),
            r"test_x is float32 \[4\] per sample, but peer 'a' has float32 \[2\]",
        ),
    ],
)
def test_peers_must_have_samples_of_the_same_dtype_and_shape(other: PeerData, complaint: str) -> None:
    with pytest.raises(UserError, match=f"^peer 1: {complaint}"):
        share(PeerData(np.ones((5, 2)), [0] * 5, name="a"), other)


@pytest.mark.parametrize("first_has_it", [True, False])
def test_validation_samples_of_only_some_peers_are_refused(first_has_it: bool) -> None:
    brought: dict[str, Any] = {"validation_x": [[1.0]], "validation_y": [0]}
    peers = [numbered(9, **brought, name="with"), numbered(9, name="without")]
    peers = peers if first_has_it else peers[::-1]
    with pytest.raises(UserError, match=r"peer 'without' has no validation_x, but others have; set data\.validation"):
        share(*peers)
    assert share(*peers, validation=1).validation is not None


def test_too_few_samples_of_a_peer_are_reported_with_the_key() -> None:
    with pytest.raises(UserError, match=r"peer 0 has 1 samples in test_x, too few for data\.test = 5"):
        share(numbered(9, test_x=[[1.0]], test_y=[0]), test=5)


@pytest.mark.parametrize(("key", "value"), [("train", 0), ("train", "most"), ("test", 0), ("validation", -1)])
def test_an_invalid_amount_is_refused(key: str, value: object) -> None:
    with pytest.raises(UserError, match=rf"data\.{key} must be a whole number of at least \d.*, not {value!r}"):
        share(numbered(9), **{key: value})


def test_an_empty_list_of_peers_is_refused() -> None:
    with pytest.raises(UserError, match="the list of peers is empty"):
        share()


@pytest.mark.parametrize("person", [["a", 7, "a"], [7, 8, 7], np.array(["a", "b", "a"]), np.array([1, 2, 1], object)])
def test_the_samples_of_each_person_are_counted(person: Any) -> None:
    found = share(PeerData([[1.0]] * 3, [0, 1, 0], test_x=[[1.0]], test_y=[0], person=person)).most_of_one_person
    assert found is not None
    assert found.tolist() == [2]


@pytest.mark.parametrize(
    "person", [["a", "b"], [1.0, 2.0, 1.0], np.array(["a", None, "a"]), np.array([1, np.nan, 1], object)]
)
def test_rows_of_unknown_persons_are_refused(person: Any) -> None:
    """Else a person could have more samples than were counted."""
    with pytest.raises(UserError, match="peer 0: person must be a whole number or a string for each of the 3 rows"):
        share(PeerData([[1.0]] * 3, [0, 1, 0], person=person))
