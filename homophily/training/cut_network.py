"""A network cut before its first trained layer: frozen layers before the cut are replaced by placeholders.

It is for networks whose forward method calls several trained layers one after the other, such as the two last layers of
a DistilBERT. Placeholders return NaN. So if anything but the input of the first trained layer reached the outputs, they
would be NaN, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from homophily.federation.layout import Layout
from homophily.models.copying import shallow
from homophily.models.keyed_dropout import KeyedDropout


class _Call:
    """The features of the present call."""

    def __init__(self, sample: Tensor) -> None:
        self.features: Tensor | None = None
        self.samples = 0
        self.sample = _unknown(sample)  # [1, ...]: the input of layers that are still called

    def begin(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor]:
        """Forward hook of the network: keep the features."""
        self.features, self.samples = inputs[0], len(inputs[0])
        return (self.sample.expand(self.samples, *self.sample.shape[1:]),)

    def enter(
        self, layer: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Forward hook of the first trained layer: it gets the features."""
        features, self.features = self.features, None
        return ((features,), {}) if inputs else ((), dict.fromkeys(keywords, features))


class _Placeholder(nn.Module):
    """Returns NaN in the form of a frozen layer's output for one sample."""

    def __init__(self, output: Any, call: _Call) -> None:
        super().__init__()
        self.output, self.call = tree_map(_unknown, output), call

    def forward(self, *_: Any, **__: Any) -> Any:
        return tree_map(self._repeated, self.output)

    def _repeated(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() == 0 or len(value) != 1:
            return value
        return value.expand(self.call.samples, *value.shape[1:])


class _Trace:
    """Calls of layers in one forward pass, up to the first layer in ``trained``, and later ones."""

    def __init__(self, network: nn.Module, trained: set[str]) -> None:
        self.outputs: dict[str, Any] = {}  # of layers that ended before the first trained one began
        self.first: str | None = None
        self.again: set[str] = set()  # layers that were called twice or later
        self._trained = trained
        for name, layer in network.named_modules():
            layer.register_forward_pre_hook(lambda *_, name=name: self._begin(name))
            layer.register_forward_hook(lambda _, __, output, name=name: self._end(name, output))

    def _begin(self, name: str) -> None:
        if self.first is None and name in self._trained:
            self.first = name
        elif self.first is not None or name in self.outputs:
            self.again.add(name)

    def _end(self, name: str, output: Any) -> None:
        if self.first is None:
            self.outputs[name] = output


def cut_network(module: nn.Module, layout: Layout, x: Tensor) -> tuple[nn.Module, str] | None:
    """Return a copy of the network that takes features, and the layer whose input they are.

    None if no frozen parameters are used before that layer.
    x: samples [n, ...]. Whether its outputs are those of the network is to be checked.
    """
    if not x.is_floating_point() and bool((x == x[:1]).all()):
        return None  # placeholders for whole numbers cannot be told from their values
    owners = {column.name.rpartition(".")[0] for column in layout.columns}
    with torch.no_grad():
        trace = _Trace(traced := shallow(module).eval(), owners)
        traced(x[:1])
    if not trace.first:
        return None
    network, call = shallow(module), _Call(x[:1].clone())
    network.register_forward_pre_hook(call.begin, prepend=True)
    network.get_submodule(trace.first).register_forward_pre_hook(call.enter, with_kwargs=True, prepend=True)
    replaced: list[str] = []
    for name, layer in list(network.named_modules()):
        inside = any(name == owner or owner.startswith(f"{name}.") for owner in owners)
        done = name not in trace.outputs or name in trace.again
        if not name or inside or done or isinstance(layer, KeyedDropout) or _within(name, replaced):
            continue
        _replace(network, name, _emptied(layer, name, layout, _Placeholder(trace.outputs[name], call)))
        replaced.append(name)
    saves = any(True for name in replaced for _ in module.get_submodule(name).parameters())
    return (network, trace.first) if saves else None


def _emptied(layer: nn.Module, name: str, layout: Layout, place: nn.Module) -> nn.Module:
    """Return the placeholder with what every peer has of the layer: dropout layers, whose masks depend on their
    number, and buffers that are kept."""
    for own, inner in layer.named_modules():
        if isinstance(inner, KeyedDropout):
            container(place, own).add_module(own.rpartition(".")[2], inner)
    for kept in layout.kept:
        if kept.startswith(f"{name}."):
            own = kept.removeprefix(f"{name}.")
            container(place, own).register_buffer(own.rpartition(".")[2], layer.get_buffer(own))
    return place


def container(root: nn.Module, name: str) -> nn.Module:
    """Return the module that contains the tensor or layer of this name; missing ones are made."""
    for part in name.split(".")[:-1]:
        if part not in dict(root.named_children()):
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    return root


def _replace(root: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    root.get_submodule(parent)._modules[own] = layer


def _within(name: str, layers: list[str]) -> bool:
    return any(name.startswith(f"{layer}.") for layer in layers)


def _unknown(value: Any) -> Any:
    """Return NaN in the place of floats."""
    if isinstance(value, Tensor):
        return torch.full_like(value, torch.nan) if value.is_floating_point() else value
    if value is None or isinstance(value, int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} may hold tensors")
