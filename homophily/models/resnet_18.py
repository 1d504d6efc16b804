"""ResNet-18 (He and others, 2015), its tensors named as in torchvision."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn.functional import relu

from homophily.models.base import Weights, image_shape, models
from homophily.models.weights import load_weights


@models("resnet-18")
def resnet_18(inputs: tuple[int, ...], outputs: int, weights: Weights = None) -> nn.Module:
    """ResNet-18 for images, from random weights or those of a .safetensors file (all but the last layer's)."""
    channels, _, _ = image_shape(inputs, "resnet-18", 1)
    network = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False),
            bn1=nn.BatchNorm2d(64),
            relu=nn.ReLU(),
            maxpool=nn.MaxPool2d(3, stride=2, padding=1),
            layer1=nn.Sequential(_Block(64, 64), _Block(64, 64)),
            layer2=nn.Sequential(_Block(64, 128, stride=2), _Block(128, 128)),
            layer3=nn.Sequential(_Block(128, 256, stride=2), _Block(256, 256)),
            layer4=nn.Sequential(_Block(256, 512, stride=2), _Block(512, 512)),
            avgpool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            fc=nn.Linear(512, outputs),
        )
    )
    if weights is not None:
        load_weights(network, "resnet-18", weights, replaced="fc")
    return network


class _Block(nn.Module):
    """Residual block: two 3x3 convolutions and a shortcut, which is a 1x1 convolution if the shape changes."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.downsample = (
            nn.Identity()
            if stride == 1
            else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        )

    def forward(self, x: Tensor) -> Tensor:
        hidden = relu(self.bn1(self.conv1(x)))
        return relu(self.bn2(self.conv2(hidden)) + self.downsample(x))
