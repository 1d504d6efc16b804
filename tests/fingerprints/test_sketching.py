"""Sketches: gradients sample by sample, whichever way they are computed, into the same buckets."""

import math

import pytest
import torch
from torch import Tensor, nn

from homophily.fingerprints import sketching
from homophily.fingerprints.fingerprint import BUCKETS, buckets
from homophily.fingerprints.sketching import OfAny, OfChain, Sketch, sketcher
from homophily.training.losses import Loss, cross_entropy, mse
from tests.training.nets import shares

CONVOLUTIONS = nn.Sequential(
    nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 3), nn.ReLU(), nn.Flatten(),
    nn.Linear(20, 6), nn.ReLU(), nn.Linear(6, 10),
)  # fmt: skip


def sketch_of(net: nn.Module) -> Sketch:
    return Sketch({name: p.shape for name, p in net.named_parameters() if p.requires_grad}, 3, torch.device("cpu"))


@pytest.mark.parametrize(
    ("net", "inputs", "loss"),
    [
        (nn.Sequential(nn.Linear(6, 10)), (6,), cross_entropy),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)), (1, 8, 8), cross_entropy),
        (CONVOLUTIONS, (2, 8, 8), cross_entropy),
        (nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 10)), (6,), mse),
    ],
)
def test_a_chain_of_layers_is_sketched_as_any_network_is(net: nn.Module, inputs: tuple[int, ...], loss: Loss) -> None:
    split = shares([9], inputs, regression=loss is mse, outputs=10).train
    found = sketcher(net.eval(), loss, inputs, sketch_of(net))
    assert isinstance(found, OfChain)
    expected = OfAny(net, loss, sketch_of(net))(split.x, split.y)
    assert torch.allclose(found(split.x, split.y), expected, rtol=1e-4, atol=1e-6 * float(expected.abs().max()))


def test_what_is_no_chain_of_layers_is_sketched_as_any_network() -> None:
    def another(outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets)

    frozen = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 10))
    frozen[0].requires_grad_(False)
    for net, loss in ((nn.Sequential(nn.Linear(6, 10), nn.Tanh()), cross_entropy), (frozen, cross_entropy)):
        assert isinstance(sketcher(net.eval(), loss, (6,), sketch_of(net)), OfAny)
    assert isinstance(sketcher(nn.Linear(6, 10), another, (6,), sketch_of(nn.Linear(6, 10))), OfAny)


def test_products_sketch_as_index_sums_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a matrix product, the way of a GPU."""
    monkeypatch.setattr(sketching, "_BLOCK", 300)
    values = torch.randn(5, 1000)
    bucket, sign = torch.randint(BUCKETS, (1000,)), torch.randint(2, (1000,)) * 2.0 - 1.0
    found = torch.zeros(2, 5, BUCKETS)
    sketching._add_by_index(found[0], values.clone(), bucket, sign)
    sketching._add_by_products(found[1], values, bucket, sign)
    assert torch.allclose(found[0], found[1], atol=1e-5)


def test_a_large_networks_sketch_has_twice_as_many_buckets_where_that_is_a_tenth_of_a_model_at_most() -> None:
    whole = 2 * sum(range(1024 - 62, 1025)) + 2 * 1024 + 16  # bytes: 63 rows of a triangle, and the mean
    least = math.ceil(10 * whole / 4)
    assert (buckets(least - 1), buckets(least)) == (512, 1024)
    seven = Sketch({"a.weight": torch.Size([7, least // 7 + 1])}, 0, torch.device("cpu"))
    assert seven.of({"a.weight": torch.ones(2, 7, least // 7 + 1)}).shape == (2, 1024)
