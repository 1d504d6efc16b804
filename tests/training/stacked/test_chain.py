"""A network is read as a chain of layers only if it is one."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from homophily.federation.layout import Layout
from homophily.models import models
from homophily.training.engines import read_chain
from homophily.training.losses import cross_entropy, mse
from homophily.training.stacked.chain import Chain, Convolution, Dense, UnsupportedLayer, chain_of
from tests.training.nets import shares


def read(net: nn.Module, *inputs: int) -> Chain:
    return chain_of(net, Layout.of(net), inputs)


class Written(nn.Module):
    """The same network with functional layers in forward()."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 3), nn.Linear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.flatten(F.max_pool2d(F.relu(self.conv(x)), 2), 1))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.layer(x)))


class Around(Twice):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.layer(x))


class Backwards(Twice):
    """Its layers are used in another order than they are registered."""

    def __init__(self) -> None:
        super().__init__()
        self.last = self.layer
        self.first = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.first(x)))


class Sliced(Twice):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x[:, :4]))


class NoisyInTraining(Twice):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(x)) if self.training else self.head(x)


def test_the_papers_networks_are_chains() -> None:
    shapes = {"cnn": (1, 28, 28), "dac-cnn": (3, 32, 32), "cifar-cnn": (3, 32, 32), "mlp": (1, 8, 8), "linear": (6,)}
    for name, shape in shapes.items():
        assert read(models.get(name)(inputs=shape, outputs=10), *shape).stages[-1].outputs == 10


def test_a_convolution_includes_the_relu_and_pooling_after_it() -> None:
    net = models.get("cnn")(inputs=(1, 28, 28), outputs=10)
    first, second, hidden, last = read(net, 1, 28, 28).stages
    assert isinstance(first, Convolution)
    assert (first.relu, first.pool, first.convolved, first.shape) == (True, True, (26, 26), (13, 13, 16))
    assert second.taken == first.shape
    assert isinstance(hidden, Dense)
    assert hidden.relu
    assert not last.relu


def test_a_forward_with_functions_is_the_same_chain() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))
    written, sequence = read(Written(), 1, 8, 8), read(net, 1, 8, 8)
    assert [(type(s), s.taken, s.shape, s.relu) for s in written.stages] == [
        (type(s), s.taken, s.shape, s.relu) for s in sequence.stages
    ]
    assert torch.equal(written.columns, sequence.columns)


def test_every_column_of_a_row_is_used_once() -> None:
    net = models.get("dac-cnn")(inputs=(3, 32, 32), outputs=10)
    chain = read(net, 3, 32, 32)
    assert torch.equal(chain.columns.sort().values, torch.arange(Layout.of(net).width))


@pytest.mark.parametrize(
    ("net", "inputs", "why"),
    [
        (Twice(), (4,), "do not form a sequence|once each"),
        (Around(), (4,), "do not form a sequence"),
        (Backwards(), (4,), "once each|follow"),
        (NoisyInTraining(), (4,), "is the first layer|training"),
        (Sliced(), (5,), "getitem"),
        (nn.Sequential(nn.Linear(4, 3), nn.ReLU()), (4,), "end with a linear"),
        (nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)), (4,), "Tanh"),
        (nn.Sequential(nn.Linear(4, 3, bias=False)), (4,), "no bias"),
        (nn.Sequential(nn.Linear(4, 3)), (5, 4), r"has shape \[5, 4\]"),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), (4,), "buffers"),
        (nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.Flatten(), nn.Linear(18, 3)), (1, 8, 8), "plain convolution"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(8, 3)), (1, 8, 8), "2x2"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.ReLU(), nn.Linear(72, 3)), (1, 8, 8), "after flattening"),
        (nn.Sequential(nn.ReLU(), nn.Linear(4, 3)), (4,), "is the first layer"),
        (nn.Sequential(nn.Linear(4, 3), nn.Flatten(0)), (4,), "Flatten"),
    ],
)
def test_an_unsupported_network_is_refused_with_the_reason(net: nn.Module, inputs: tuple[int, ...], why: str) -> None:
    with pytest.raises(UnsupportedLayer, match=why):
        read(net, *inputs)


def test_networks_with_hooks_or_frozen_layers_are_not_chains() -> None:
    hooked = nn.Sequential(nn.Linear(4, 3))
    hooked[0].register_forward_hook(lambda module, args, out: out * 2)
    outside = nn.Sequential(nn.Linear(4, 3))
    outside.register_forward_hook(lambda module, args, out: out * 2)
    for net in (hooked, outside):
        with pytest.raises(UnsupportedLayer, match="hooks"):
            read(net, 4)
    frozen = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    frozen[0].requires_grad_(False)
    with pytest.raises(UnsupportedLayer, match="frozen"):
        read(frozen, 4)


def test_reading_a_chain_does_not_change_the_network() -> None:
    net = nn.Sequential(nn.Linear(4, 3)).eval()
    read(net, 4)
    assert not net.training


def test_a_loss_without_a_hand_written_gradient_is_not_supported() -> None:
    net, data = nn.Sequential(nn.Linear(3, 10)), shares([4, 4], [3])
    layout = Layout.of(net)
    assert isinstance(read_chain(net, layout, cross_entropy, data), Chain)
    assert isinstance(read_chain(net, layout, mse, data), Chain)
    assert (
        read_chain(net, layout, lambda out, y: out.sum(1), data)
        == "its loss is not cross-entropy, binary cross-entropy or mse"
    )
