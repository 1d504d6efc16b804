"""Peers' data from torch datasets and Hugging Face datasets."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from homophily.data import datasets as module
from homophily.data import from_dataset, from_datasets
from homophily.data.packing import packed
from homophily.errors import UserError


class Items(Dataset[Any]):
    """A dataset of a list's items."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Any:
        return self.items[i]


class Stream(IterableDataset[Any]):
    def __init__(self, length: int | None) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        for i in count() if self.length is None else range(self.length):
            yield torch.full((4,), float(i)), i % 2


PAIRS = TensorDataset(torch.arange(12.0).view(6, 2), torch.tensor([0, 1, 0, 1, 1, 1]))


def test_datasets_by_name_or_in_a_list_are_one_peer_each() -> None:
    (lyon,) = from_dataset({"lyon": PAIRS})
    (first,) = from_dataset([PAIRS])
    assert (lyon.name, first.name) == ("lyon", None)
    for peer in (lyon, first):
        assert torch.equal(torch.as_tensor(peer.x), PAIRS.tensors[0])
        assert torch.equal(torch.as_tensor(peer.y), PAIRS.tensors[1])


def test_one_dataset_is_divided_by_the_names_of_the_peers() -> None:
    a, b = from_dataset(PAIRS, peer=["b", "a", "b", "b", "a", "b"])
    assert (a.name, b.name) == ("a", "b")
    assert torch.equal(torch.as_tensor(a.x), PAIRS.tensors[0][[1, 4]])
    assert torch.equal(torch.as_tensor(b.y), PAIRS.tensors[1][[0, 2, 3, 5]])


def test_samples_may_be_arrays_numbers_lists_and_names_of_classes() -> None:
    (peer,) = from_dataset([Items((np.float32([1, 2]), "cat"), ([3.0, 4.0], "dog"))])
    assert torch.as_tensor(peer.x).tolist() == [[1, 2], [3, 4]]
    assert peer.y == ["cat", "dog"]


def test_samples_of_different_lengths_stay_a_list() -> None:
    (peer,) = from_dataset([Items((torch.tensor([1, 2, 3]), 0), (torch.tensor([4]), 1))])
    assert [one.tolist() for one in peer.x] == [[1, 2, 3], [4]]


def test_collate_makes_x_and_y_of_samples_of_any_form() -> None:
    def collate(samples: list[Any]) -> tuple[Any, Any]:
        return torch.stack([one["pixels"] for one in samples]), torch.tensor([one["label"] for one in samples])

    (peer,) = from_dataset([Items(*({"pixels": torch.ones(3), "label": i} for i in range(4)))], collate=collate)
    assert torch.as_tensor(peer.x).shape == (4, 3)
    with pytest.raises(UserError, match="dataset 0: collate must return x and y, not list"):
        from_dataset([Items(1, 2, 3)], collate=lambda samples: samples)  # type: ignore[arg-type, return-value]


def test_a_stream_is_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    (peer,) = from_dataset([Stream(5)])
    assert torch.as_tensor(peer.x)[:, 0].tolist() == [0, 1, 2, 3, 4]
    monkeypatch.setattr(module, "STREAM_BYTES", 1 << 20)
    with pytest.raises(UserError, match=r"dataset 'endless': its samples take more than .* GiB, the limit for an Iter"):
        from_dataset({"endless": Stream(None)})


@pytest.mark.parametrize(
    ("dataset", "keys", "message"),
    [
        (PAIRS, {}, "from_dataset: one dataset needs peer=, the name of each sample's peer"),
        (PAIRS, {"peer": ["a"]}, "from_dataset: peer= has 1 names, but the dataset has 6 samples"),
        ([Items()], {}, "dataset 0 has no samples"),
        ([Items({"x": 1})], {}, "dataset 0: sample 0 must be a pair (x, y), not dict; give collate="),
        ([Items((object(), 1))], {}, "dataset 0: sample 0: x must be a tensor, an array or numbers, not object"),
        ([Items(([[1], [1, 2]], 1))], {}, "dataset 0: sample 0: x is not an array of numbers"),
        ([3], {}, "dataset 0: must be a torch Dataset, not int"),
        ([Dataset()], {}, "dataset 0: it has no length"),
    ],
)
def test_mistakes_are_named(dataset: Any, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        from_dataset(dataset, **keys)
    assert str(error.value).startswith(message)


TEXT = {"input_ids": [[1, 2, 3], [4], [5, 6]], "who": ["b", "a", "b"], "label": [0, 1, 1], "raw": ["x", "y", "z"]}


def test_a_hugging_face_dataset_of_tokens() -> None:
    a, b = from_datasets(datasets.Dataset.from_dict(TEXT), peer="who", target="label", features="input_ids")
    assert (a.name, b.name) == ("a", "b")
    assert [one.tolist() for one in b.x] == [[1, 2, 3], [5, 6]]
    assert np.asarray(b.y).tolist() == [0, 1]


def test_several_columns_of_tokens_are_named_inputs_and_padded_with_their_masks() -> None:
    masks = [[1] * len(tokens) for tokens in TEXT["input_ids"]]
    whole = datasets.Dataset.from_dict({**TEXT, "attention_mask": masks})
    peers = from_datasets(whole, peer="who", target="label", features=["input_ids", "attention_mask"])
    assert [{name: [one.tolist() for one in x] for name, x in peer.x.items()} for peer in peers[1:]] == [
        {"input_ids": [[1, 2, 3], [5, 6]], "attention_mask": [[1, 1, 1], [1, 1]]}
    ]
    _, fields = packed(peers, None, 7)
    assert fields is not None
    found = fields.unpack(packed(peers, None, 7)[0][1].x)
    assert found["input_ids"][1].tolist() == [5, 6, 7]
    assert found["attention_mask"][1].tolist() == [1, 1, 0]


def test_a_column_that_is_missing_is_named_with_all_that_are_there() -> None:
    whole = datasets.Dataset.from_dict(TEXT)
    with pytest.raises(UserError, match="peer: the frame has no column 'wo'; did you mean 'who'"):
        from_datasets(whole, peer="wo", target="label", features="input_ids")
    with pytest.raises(UserError, match="its columns are input_ids, who, label, raw"):
        from_datasets(whole, peer="author", target="label", features="input_ids")


def test_the_splits_of_a_hugging_face_dataset() -> None:
    whole = datasets.DatasetDict(
        {
            part: datasets.Dataset.from_dict({"x": [1.0, n], "who": ["a", "b"], "y": [0, 1]})
            for n, part in ((2.0, "train"), (3.0, "test"))
        }
    )
    a, b = from_datasets(whole, peer="who", target="y")
    assert [np.asarray(part).tolist() for part in (a.x, a.test_x, b.x, b.test_x)] == [[[1]], [[1]], [[2]], [[3]]]
    assert a.validation_x is None


def test_the_split_and_the_person_of_each_row_of_a_hugging_face_dataset() -> None:
    rows = {
        "x": [1.0, 2.0, 3.0, 4.0], "who": ["a", "a", "a", "a"], "y": [0, 1, 0, 1],
        "part": ["train", "validation", "test", "train"], "patient": [7, 8, 9, 7],
    }  # fmt: skip
    whole = datasets.Dataset.from_dict(rows)
    for features in (None, "x"):
        (a,) = from_datasets(whole, peer="who", target="y", features=features, split="part", person="patient")
        assert [np.asarray(part).tolist() for part in (a.x, a.validation_x, a.test_x)] == [[[1], [4]], [[2]], [[3]]]
        assert np.asarray(a.person).tolist() == ["7", "7"]


def test_a_dataset_dict_has_persons_and_no_column_for_the_split() -> None:
    rows = {"x": [1.0, 2.0], "y": [0, 1], "patient": ["ann", "bob"], "part": ["train", "test"]}
    whole = datasets.DatasetDict({part: datasets.Dataset.from_dict(rows) for part in ("train", "test")})
    (peer,) = from_datasets(whole, target="y", features="x", person="patient")
    assert np.asarray(peer.person).tolist() == ["ann", "bob"]
    with pytest.raises(UserError, match="from_datasets: split = 'part' is for one Dataset; the parts of a DatasetDict"):
        from_datasets(whole, target="y", split="part")


def test_images_of_a_hugging_face_dataset_are_channels_first() -> None:
    pytest.importorskip("PIL", reason="Pillow is not installed")
    pixels = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    features = datasets.Features({"image": datasets.Image(), "y": datasets.Value("int64")})
    rows = {"image": list(pixels), "y": [0, 1]}
    (peer,) = from_datasets(datasets.Dataset.from_dict(rows, features=features), target="y")
    np.testing.assert_array_equal(peer.x, pixels.transpose(0, 3, 1, 2))


def test_another_object_and_a_missing_package_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"from_datasets: must be given a datasets\.Dataset or DatasetDict, not dict"):
        from_datasets(TEXT, target="label")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"from_datasets needs datasets: pip install 'homophily\[huggingface\]'"):
        from_datasets(None, target="label")
