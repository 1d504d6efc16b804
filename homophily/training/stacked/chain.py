"""Reads a network as a chain of supported layers (linear, convolution, ReLU, pooling), as the papers' networks are."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from homophily.federation.layout import Layout

_LAYERS: dict[type, str] = {
    nn.Linear: "linear",
    nn.Conv2d: "conv",
    nn.ReLU: "relu",
    nn.MaxPool2d: "pool",
    nn.Flatten: "flatten",
}
_FUNCTIONS: dict[Any, str] = {
    (F.relu, ()): "relu", (torch.relu, ()): "relu", ("relu", ()): "relu",
    (F.max_pool2d, (2,)): "pool", (F.max_pool2d, (2, 2)): "pool",
    (torch.flatten, (1,)): "flatten", ("flatten", (1,)): "flatten",
}  # fmt: skip
_KEYS: dict[str, tuple[Any, ...]] = {
    "inplace": (True, False), "stride": (None, 2), "padding": (0,), "dilation": (1,), "ceil_mode": (False,),
    "return_indices": (False,),
}  # fmt: skip


@dataclass(frozen=True)
class Dense:
    """A linear layer, with the ReLU after it if there is one."""

    weight: str
    bias: str
    inputs: int
    outputs: int
    relu: bool = False

    pool: ClassVar[bool] = False
    pixels: ClassVar[int] = 1

    @property
    def taken(self) -> tuple[int, ...]:
        """Shape of an input sample."""
        return (self.inputs,)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an output sample."""
        return (self.outputs,)

    @property
    def held(self) -> int:
        """Values per sample in memory during a training step."""
        return self.inputs + 2 * self.outputs


@dataclass(frozen=True)
class Convolution:
    """A convolution of stride 1 on [height, width, channels], with the ReLU and the 2x2 max-pooling after it."""

    weight: str
    bias: str
    height: int
    width: int
    channels: int
    outputs: int
    kernel: tuple[int, int]
    padding: tuple[int, int]
    relu: bool = False
    pool: bool = False

    @property
    def convolved(self) -> tuple[int, int]:
        """Height and width before pooling."""
        (kh, kw), (ph, pw) = self.kernel, self.padding
        return self.height + 2 * ph - kh + 1, self.width + 2 * pw - kw + 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an output sample."""
        high, wide = self.convolved
        return (high // 2, wide // 2, self.outputs) if self.pool else (high, wide, self.outputs)

    @property
    def taken(self) -> tuple[int, ...]:
        """Shape of an input sample."""
        return (self.height, self.width, self.channels)

    @property
    def pixels(self) -> int:
        """Output pixels that are used; with pooling, only those in complete windows."""
        return 4 * prod(self.shape[:2]) if self.pool else prod(self.convolved)

    @property
    def inputs(self) -> int:
        """Input values of one output pixel: kernel size times channels."""
        return prod(self.kernel) * self.channels

    @property
    def held(self) -> int:
        """Values per sample in memory during a training step: input, patches, and outputs with their gradients."""
        pixels = prod(self.convolved)
        return prod(self.taken) + pixels * (2 * self.inputs + 3 * self.outputs)


Stage = Dense | Convolution


@dataclass(frozen=True)
class Chain:
    """A network as a sequence of stages; images are [height, width, channels] throughout."""

    stages: tuple[Stage, ...]
    flat: bool  # inputs are flattened first
    columns: Tensor  # [D]: the layout's columns in the order in which the stages use them

    @property
    def images(self) -> bool:
        """Whether inputs are images [channels, height, width]."""
        return isinstance(self.stages[0], Convolution)

    @property
    def held(self) -> int:
        """Values per sample in memory during a training step of all stages, patches included."""
        return sum(stage.held for stage in self.stages)

    @property
    def values(self) -> int:
        """Values of a sample's input and of all stages' outputs."""
        return prod(self.stages[0].taken) + sum(prod(stage.shape) for stage in self.stages)


class UnsupportedLayer(Exception):
    """The network is not a chain of supported layers; the message says why."""


def chain_of(module: nn.Module, layout: Layout, inputs: tuple[int, ...]) -> Chain:
    """Return ``module`` as a chain for samples of shape ``inputs``; raise UnsupportedLayer if it is not one."""
    if layout.kept or layout.frozen or not all(column.trainable for column in layout.columns):
        raise UnsupportedLayer("it has buffers or frozen parameters")
    if _hooked(module):
        raise UnsupportedLayer("it has hooks")
    # Tracing runs forward, which may store traced values in the module's attributes, so a copy is traced.
    made = [_read(copy.deepcopy(module).train(mode), inputs) for mode in (True, False)]
    if made[0] != made[1]:
        raise UnsupportedLayer("it differs between training and evaluation")
    stages, flat = made[0]
    if [name for stage in stages for name in (stage.weight, stage.bias)] != [c.name for c in layout.columns]:
        raise UnsupportedLayer("its layers are not used exactly once each, in the order of registration")
    return Chain(tuple(stages), flat, _columns(stages, layout))


def _read(module: nn.Module, inputs: tuple[int, ...]) -> tuple[list[Stage], bool]:
    """Return the stages, and whether inputs are flattened before the first."""
    try:
        graph = fx.Tracer().trace(module)
    except Exception as error:  # a user's module may raise any exception while it is traced
        raise UnsupportedLayer(f"it cannot be traced ({type(error).__name__})") from error
    modules = dict(module.named_modules())
    stages: list[Stage] = []
    shape, flat, before = inputs, False, None
    for node in graph.nodes:
        if before is not None and (node.args[:1] != (before,) or list(before.users) != [node]):
            raise UnsupportedLayer("its layers do not form a sequence")
        before = node
        if node.op in ("placeholder", "output"):
            continue
        kind, layer = _kind(node, modules)
        if kind == "flatten":
            flat = flat or not stages
            shape = (prod(shape),)
            continue
        if kind == "linear":
            stages.append(_dense(str(node.target), layer, shape))
        elif kind == "conv":
            stages.append(_convolution(str(node.target), layer, shape if stages else (*shape[1:], *shape[:1])))
        elif stages and shape == stages[-1].shape:
            stages[-1] = _followed(stages[-1], kind)
        else:
            raise UnsupportedLayer(f"{kind} is the first layer, or comes after flattening")
        shape = stages[-1].shape
    if not stages or not isinstance(stages[-1], Dense) or stages[-1].relu:
        raise UnsupportedLayer("it does not end with a linear layer")
    return stages, flat


def _kind(node: fx.Node, modules: dict[str, nn.Module]) -> tuple[str, Any]:
    """Return what a node of the graph is (linear, conv, relu, pool or flatten) and its layer, if it is a module."""
    if node.op == "call_module":
        layer = modules[str(node.target)]
        if _hooked(layer):
            raise UnsupportedLayer(f"layer {node.target!r} has hooks")
        kind = _LAYERS.get(type(layer))
        if kind is None or (isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) != (1, -1)):
            raise UnsupportedLayer(f"layer {node.target!r} is {type(layer).__name__}")
        if isinstance(layer, nn.MaxPool2d) and not _is_two_by_two(layer):
            raise UnsupportedLayer(f"layer {node.target!r} is not a plain 2x2 max-pooling")
        return kind, layer
    try:
        kind = _FUNCTIONS.get((node.target, node.args[1:]))
    except TypeError:  # slices and lists are not hashable
        kind = None
    if kind is None or any(value not in _KEYS.get(key, ()) for key, value in node.kwargs.items()):
        raise UnsupportedLayer(f"it uses {getattr(node.target, '__name__', node.target)}")
    return kind, None


def _hooked(module: nn.Module) -> bool:
    return any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks))


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _is_two_by_two(layer: nn.MaxPool2d) -> bool:
    plain = _pair(layer.padding) == (0, 0) and _pair(layer.dilation) == (1, 1)
    twos = _pair(layer.kernel_size) == _pair(layer.stride) == (2, 2)
    return twos and plain and not layer.ceil_mode and not layer.return_indices


def _dense(name: str, layer: nn.Linear, shape: tuple[int, ...]) -> Dense:
    if layer.bias is None or shape != (layer.in_features,):
        raise UnsupportedLayer(f"layer {name!r} has no bias, or its input has shape {list(shape)}")
    return Dense(f"{name}.weight", f"{name}.bias", layer.in_features, layer.out_features)


def _convolution(name: str, layer: nn.Conv2d, shape: tuple[int, ...]) -> Convolution:
    plain = layer.groups == 1 and _pair(layer.stride) == _pair(layer.dilation) == (1, 1)
    if layer.bias is None or not plain or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        raise UnsupportedLayer(
            f"layer {name!r} is not a plain convolution (stride, dilation, groups, padding mode or no bias)"
        )
    if len(shape) != 3:
        raise UnsupportedLayer(f"layer {name!r} has inputs of shape {list(shape)}")
    height, width, channels = shape
    return Convolution(
        f"{name}.weight", f"{name}.bias", height, width, channels, layer.out_channels,
        _pair(layer.kernel_size), _pair(layer.padding),
    )  # fmt: skip


def _followed(stage: Stage, kind: str) -> Stage:
    """Return the stage with a ReLU or max-pooling after it."""
    pooled = isinstance(stage, Convolution) and stage.pool
    if kind == "relu" and not pooled:
        return replace(stage, relu=True)
    if kind == "pool" and isinstance(stage, Convolution) and not pooled:
        return replace(stage, pool=True)
    raise UnsupportedLayer(f"{kind} is not supported after the layer before it")


def _columns(stages: list[Stage], layout: Layout) -> Tensor:
    """Return the layout's columns [D] in the order of the stages, which put channels last instead of first."""
    places = {c.name: torch.arange(c.start, c.stop) for c in layout.columns}
    parts, before = [], None
    for stage in stages:
        weight = places[stage.weight]
        if isinstance(stage, Convolution):
            weight = weight.view(stage.outputs, stage.channels, -1).mT
        elif isinstance(before, Convolution):
            weight = weight.view(stage.outputs, before.shape[2], -1).mT
        parts += [weight.reshape(-1), places[stage.bias]]
        before = stage
    return torch.cat(parts)
