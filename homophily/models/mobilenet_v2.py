"""MobileNetV2 (Sandler and others, 2018), its tensors named as in torchvision."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from homophily.models.base import Weights, image_shape, models
from homophily.models.weights import load_weights

# Stages: expansion factor, output channels, number of blocks, stride of the first block.
_STAGES = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]


@models("mobilenet-v2")
def mobilenet_v2(inputs: tuple[int, ...], outputs: int, weights: Weights = None) -> nn.Module:
    """MobileNetV2 for images, from random weights or those of a .safetensors file (all but the classifier's)."""
    channels, _, _ = image_shape(inputs, "mobilenet-v2", 1)
    features: list[nn.Module] = [_convolution(channels, 32, 3, stride=2)]
    before = 32
    for expansion, after, blocks, stride in _STAGES:
        for block in range(blocks):
            features.append(_Block(before, after, expansion, stride if block == 0 else 1))
            before = after
    features.append(_convolution(before, 1280, 1))
    network = nn.Sequential(
        OrderedDict(
            features=nn.Sequential(*features),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            classifier=nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, outputs)),
        )
    )
    if weights is not None:
        load_weights(network, "mobilenet-v2", weights, replaced="classifier")
    return network


class _Block(nn.Module):
    """Inverted residual block: expansion, depthwise convolution, projection, and a shortcut if the shape is kept."""

    def __init__(self, before: int, after: int, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = before * expansion
        expand = [_convolution(before, hidden, 1)] if expansion > 1 else []
        self.conv = nn.Sequential(
            *expand,
            _convolution(hidden, hidden, 3, stride, groups=hidden),
            nn.Conv2d(hidden, after, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.has_shortcut = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.has_shortcut else self.conv(x)  # type: ignore[no-any-return]


def _convolution(before: int, after: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU6(),
    )
