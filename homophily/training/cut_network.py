"""A network cut before its first trained layer: frozen layers before the cut are replaced by placeholders.

It is for networks whose forward method calls several trained layers one after the other, such as the two last layers of
a DistilBERT. A cut is refused if anything but the input of the first trained layer reaches the outputs: the samples
themselves, such as a mask of padded positions, or what a frozen layer returns. Both are NaN after the cut.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from homophily.federation.layout import Layout
from homophily.models.copying import shallow
from homophily.models.keyed_dropout import KeyedDropout

_FORMS = ("__get__", "__len__", "dim", "element_size", "is_complex", "is_contiguous", "is_floating_point", "ndimension",
          "nelement", "numel", "size", "stride")  # fmt: skip
"""Functions of a tensor whose numbers do not follow from its values; "__get__" is of attributes, such as shape."""


class _Unread(Tensor):
    """A tensor that must not reach the outputs: everything computed from it is one, and reading a value fails."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        others = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor) and not isinstance(one, cls)]
        versions = [other._version for other in others]
        found = super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        if any(other._version != version for other, version in zip(others, versions, strict=True)):
            raise TypeError(f"{func.__name__} changes another tensor")
        if func.__name__ not in _FORMS and not all(one is None or isinstance(one, cls) for one in tree_leaves(found)):
            raise TypeError(f"{func.__name__} reads values")
        return found


class _Call:
    """The features of the present call."""

    def __init__(self, sample: Tensor) -> None:
        self.features: Tensor | None = None
        self.samples = 0
        self.sample = _unknown(sample)  # [1, ...]: the input of layers that are still called
        self.watched = False  # it is checked that the outputs follow from the features alone

    def begin(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor]:
        """Forward hook of the network: keep the features."""
        self.features, self.samples = inputs[0], len(inputs[0])
        return (self.repeated(self.sample),)

    def repeated(self, value: Any) -> Any:
        """The value for one sample as that for all; what is no tensor with a row for the sample stays as it is."""
        if not isinstance(value, Tensor):
            return value
        if value.dim() and len(value) == 1:
            value = value.expand(self.samples, *value.shape[1:])
        return value.as_subclass(_Unread) if self.watched else value

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
        return tree_map(self.call.repeated, self.output)


class _Trace:
    """Calls of layers in one forward pass, up to the first layer in ``trained``, and later ones."""

    def __init__(self, network: nn.Module, trained: set[str]) -> None:
        self.outputs: dict[str, Any] = {}  # of layers that ended before the first trained one began
        self.first: str | None = None
        self.features: list[Any] = []  # the inputs of the first trained layer
        self.again: set[str] = set()  # layers that were called twice or later
        self._trained = trained
        for name, layer in network.named_modules():
            layer.register_forward_pre_hook(
                lambda _, inputs, keywords, name=name: self._begin(name, [*inputs, *keywords.values()]),
                with_kwargs=True,
            )
            layer.register_forward_hook(lambda _, __, output, name=name: self._end(name, output))

    def _begin(self, name: str, inputs: list[Any]) -> None:
        if self.first is None and name in self._trained:
            self.first, self.features = name, inputs
        elif self.first is not None or name in self.outputs:
            self.again.add(name)

    def _end(self, name: str, output: Any) -> None:
        if self.first is None:
            self.outputs[name] = output


def cut_network(module: nn.Module, layout: Layout, x: Tensor) -> tuple[nn.Module, str] | None:
    """Return a copy of the network that takes features, and the layer whose input they are.

    None if no frozen parameters are used before that layer, or if the outputs depend on more than the features.
    x: samples [n, ...]. Whether its outputs are those of the network is to be checked.
    """
    owners = {column.name.rpartition(".")[0] for column in layout.columns}
    with torch.no_grad():
        trace = _Trace(traced := shallow(module).eval(), owners)
        traced(x[:1])
    if not trace.first:
        return None
    network, call = shallow(module).eval(), _Call(x[:1].clone())
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
    return (network, trace.first) if saves and _cut_off(network, call, trace.features) else None


def _cut_off(network: nn.Module, call: _Call, features: list[Any]) -> bool:
    """Whether the outputs follow from the features alone; an error is raised if values are read on the way."""
    call.watched = True
    with torch.no_grad():
        outputs = network(*features)
    call.watched = False
    return not any(isinstance(one, _Unread) for one in tree_leaves(outputs))


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
