"""The forms of data= that Python functions accept."""

from __future__ import annotations

from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import homophily
from homophily.data.given import given_peers
from homophily.errors import UserError


def arrays(peer: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    x = np.random.default_rng(peer).normal(size=(20, 4)).astype(np.float32)
    return x, (x[:, peer % 2] > 0).astype(int)


def dataset(peer: int) -> TensorDataset:
    return TensorDataset(*map(torch.as_tensor, arrays(peer)))


NAMES = ["a", "b", "c", "d"]
FORMS = {
    "list of PeerData": [homophily.PeerData(*arrays(i), name=NAMES[i]) for i in range(4)],
    "dict of PeerData": {NAMES[i]: homophily.PeerData(*arrays(i), name="another") for i in range(4)},
    "dict of pairs": {NAMES[i]: arrays(i) for i in range(4)},
    "dict of datasets": {NAMES[i]: dataset(i) for i in range(4)},
}


@pytest.mark.usefixtures("here")
def test_every_form_gives_the_same_run() -> None:
    digests = set()
    for form, data in FORMS.items():
        run = homophily.run({"rounds": 1, "method": "local"}, model=nn.Linear(4, 2), data=data)
        assert run.scores["peer"] == NAMES, form
        digests.add(run.about["data"])
    assert len(digests) == 1


def test_lists_may_mix_forms_and_have_no_names() -> None:
    found = given_peers([homophily.PeerData(*arrays(0), name="a"), arrays(1), dataset(2)])
    assert found is not None
    assert [peer.name for peer in found] == ["a", None, None]
    assert given_peers(None) is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, ", not int"),
        ("digits", ", not 'digits'; a name goes into the config as data.name"),
        (homophily.PeerData(*arrays(0)), ", not a single PeerData"),
        (dataset(0), ", not a single Dataset; divide it with homophily.data.from_dataset(data, peer=...)"),
        (
            pd.DataFrame({"x": [1]}),
            ", not a single DataFrame; divide it with homophily.data.from_frame(data, peer=..., target=...)",
        ),
        (
            datasets.Dataset.from_dict({"x": [1.0]}),
            ", not a single Dataset; divide it with homophily.data.from_datasets(data, peer=..., target=...)",
        ),
        (
            datasets.DatasetDict({"train": datasets.Dataset.from_dict({"x": [1.0]})}),
            ", not a single DatasetDict; divide it with homophily.data.from_datasets(data, peer=..., target=...)",
        ),
        ([arrays(0), 3], ", and item 1 is int, not PeerData, (x, y) or a torch Dataset"),
        ({"a": arrays(0), "b": [1]}, ", and peer 'b' is list, not PeerData, (x, y) or a torch Dataset"),
    ],
)
def test_another_object_is_refused(data: Any, message: str) -> None:
    with pytest.raises(UserError) as error:
        given_peers(data)
    assert str(error.value) == "data=: must be a list with the data of each peer, or a dict by peer name" + message
