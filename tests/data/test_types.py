"""The data types that users create refuse fields of a wrong type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from homophily.data.types import ClusterSpec, PartitionPlan, Samples, Source
from homophily.errors import UserError

ALL = torch.arange(4)
WHOLE = Samples(torch.rand(4, 2), ALL % 2)
SOURCE = Source("mine", WHOLE, None, 2)

REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: Samples(np.zeros((4, 2)), ALL), "Samples: x must be Tensor, not ndarray"),
    (lambda: Samples(torch.rand(4, 2), ALL[:3]), "Samples: x has 4 samples but y has 3"),
    (lambda: Source("mine", None, None, 2), "Source: train must be Samples, not NoneType"),
    (lambda: Source("mine", WHOLE, None, "2"), "Source: classes must be int | None, not str"),
    (lambda: Source("mine", WHOLE, None, 2, defaults=["iid"]), "Source: defaults must be Mapping[str, Any], not list"),
    (
        lambda: Source("mine", Samples(torch.rand(4, 2), torch.rand(4)), None, None),
        "Source: without classes y must be floats [n, outputs], not torch.float32 [4]",
    ),
    (
        lambda: Source("mine", WHOLE, Samples(torch.rand(4, 2), torch.rand(4)), None),
        "Source: without classes y must be floats [n, outputs], not torch.int64 [4]",
    ),
    (
        lambda: Source("mine", Samples(torch.rand(4, 2), torch.rand(4, 3)), None, 3),
        "Source: with classes y must be whole numbers, torch.int64, not torch.float32",
    ),
    (
        lambda: Source("mine", WHOLE, Samples(torch.rand(4, 2), ALL.int()), 4),
        "Source: with classes y must be whole numbers, torch.int64, not torch.int32",
    ),
    (
        lambda: Source("mine", Samples(torch.rand(4, 2), ALL), None, 3),
        "data: y contains the class 3, but classes must be 0 to 2",
    ),
    (lambda: ClusterSpec(3, ALL, ALL), "ClusterSpec: name must be str, not int"),
    (lambda: ClusterSpec("a", [0, 1], ALL), "ClusterSpec: train must be Tensor, not list"),
    (lambda: ClusterSpec("a", ALL, ALL, 5), "ClusterSpec 'a': change must be a function of (x, y), not 5"),
    (lambda: ClusterSpec("a", ALL, ALL, lambda x: x), "ClusterSpec 'a': change must take (x, y), not (x)"),
    (lambda: PartitionPlan(["a"], SOURCE), "PartitionPlan: clusters must be list[ClusterSpec], but one is str"),
    (lambda: PartitionPlan([ClusterSpec("a", ALL, ALL)], None), "PartitionPlan: source must be Source, not NoneType"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_a_field_of_another_type_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        make()
    assert str(refused.value) == message
