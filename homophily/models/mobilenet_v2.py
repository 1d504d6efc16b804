"""MobileNetV2 (Sandler and others, 2018), its tensors named as in torchvision."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from homophily.models.base import Weights, image_shape, models
from homophily.models.weights import load_weights

# Blocks of each stage: how much wider they are inside, their channels, how many there are, the stride of the first.
_STAGES = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]


@models("mobilenet-v2")
def mobilenet_v2(inputs: tuple[int, ...], outputs: int, weights: Weights = None) -> nn.Module:
    """MobileNetV2 for images, from random weights or those of a .safetensors file (all but the classifier's)."""
    channels, _, _ = image_shape(inputs, "mobilenet-v2", 1)
    features: list[nn.Module] = [_convolution(channels, 32, 3, stride=2)]
    before = 32
    for wider, after, blocks, stride in _STAGES:
        for block in range(blocks):
            features.append(_Block(before, after, wider, stride if block == 0 else 1))
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
    """Widens each pixel's channels, convolves every channel alone, narrows again, and adds its input if it can."""

    def __init__(self, before: int, after: int, wider: int, stride: int) -> None:
        super().__init__()
        inside = before * wider
        widening = [_convolution(before, inside, 1)] if wider > 1 else []
        self.conv = nn.Sequential(
            *widening,
            _convolution(inside, inside, 3, stride, groups=inside),
            nn.Conv2d(inside, after, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.adds = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.adds else self.conv(x)  # type: ignore[no-any-return]


def _convolution(before: int, after: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU6(),
    )
