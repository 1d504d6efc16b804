"""Cached features: if only the last layers train, the frozen layers before them are computed once per sample.

The network then consists of the trained layers, the *head*, and its inputs are the features. This is done only if the
frozen layers compute the same in training as in evaluation (no active dropout, no BatchNorm in training mode), if one
tensor goes from them to the head, and if the head's outputs on a few samples equal those of the whole network.
The head is one module, the last layers of an nn.Sequential, or the rest of forward from the first trained layer on.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from homophily.data.types import FederatedData, Split
from homophily.federation.layout import Layout
from homophily.models.copying import hooked_parameter, shallow
from homophily.models.keyed_dropout import KeyedDropout, reset_uses_before_calls
from homophily.training.cut_network import container, cut_network
from homophily.training.task import Task

_SAMPLES = 4  # that are compared
_ON_GPU, _ON_CPU = 64, 16  # samples at a time


@dataclass(frozen=True)
class CachedFeatures:
    """A task whose network is the head and whose inputs are features."""

    task: Task
    bytes: int  # that the features take


def cached_features(task: Task, free: int) -> CachedFeatures | None:
    """Return the task of training the head on features; None if this is not possible, or not in ``free`` bytes."""
    module, layout, data = task.module, task.layout, task.data
    if not layout.frozen or task.draws or task.transform is not None or hooked_parameter(module) is not None:
        return None
    few = task.cast(data.train.x[:_SAMPLES])
    try:
        head, first = _head(module, layout, few)
        sample = _verified(module, head, first, layout, few)
        if sample is None:
            return None
        samples = sum(len(split.x) for split in (data.train, data.test, data.validation) if split is not None)
        size = samples * sample[0].numel() * sample.element_size()
        if size > free:
            return None
        features = _of_all(task, first)
    except Exception:  # whatever fails here, the whole network can still be trained
        return None
    return CachedFeatures(replace(task, module=head.eval(), layout=replace(layout, frozen=()), data=features), size)


def _head(module: nn.Module, layout: Layout, x: Tensor) -> tuple[nn.Module, str]:
    """Return the head, and the layer whose input the features are. x: some samples."""
    chain = _head_layers(module, layout)
    if chain is not None:
        return _Head(shallow(module), layout, chain), chain[0]
    found = cut_network(module, layout, x)
    if found is None:
        raise LookupError("the network calls no trained layer")
    return found


def _head_layers(module: nn.Module, layout: Layout) -> list[str] | None:
    """Return the names of the layers that are the head, in order; None: it would be the whole network.

    The head is the innermost module with everything that differs between peers, without the frozen layers at its
    beginning if it is an nn.Sequential.
    """
    changing = [column.name.split(".")[:-1] for column in layout.columns]
    path = changing[0]
    for other in changing:
        same = [a == b for a, b in zip(path, other, strict=False)]
        path = path[: same.index(False) if False in same else len(same)]
    name = ".".join(path)
    part = module.get_submodule(name)
    if type(part) is not nn.Sequential:
        return [name] if name else None
    children = [f"{name}.{child}" if name else child for child, _ in part.named_children()]
    trained = {".".join(other[: len(path) + 1]) for other in changing}
    first = min(children.index(child) for child in trained)
    return children[first:] if name or first else None


class _Head(nn.Module):
    """The layers of the head under their names in the whole network."""

    def __init__(self, whole: nn.Module, layout: Layout, chain: list[str]) -> None:
        super().__init__()
        self.chain = chain
        keyed = [name for name, layer in whole.named_modules() if isinstance(layer, KeyedDropout)]
        # Other dropout layers are not called; they are there because masks depend on the number of the layer.
        drops = any(_within(name, chain) for name in keyed)
        others = [name for name in keyed if drops and not _within(name, chain)]
        for name, layer in list(whole.named_modules()):
            if name in chain or name in others:
                container(self, name).add_module(name.rpartition(".")[2], layer)
        for name in layout.kept:
            if not _within(name, chain):  # never read, but every peer has its own
                container(self, name).register_buffer(name.rpartition(".")[2], whole.get_buffer(name))
        for hook in whole._forward_hooks.values():  # such as the one that puts classes before positions
            self.register_forward_hook(hook)
        if drops:
            reset_uses_before_calls(self)

    def forward(self, x: Tensor) -> Tensor:
        for name in self.chain:
            x = self.get_submodule(name)(x)
        return x


def _within(name: str, chain: list[str]) -> bool:
    return any(name == layer or name.startswith(f"{layer}.") for layer in chain)


class _Reached(Exception):
    """The head was reached."""


class _Backbone:
    """Calls a network up to a layer, and returns the input of that layer."""

    def __init__(self, module: nn.Module, layer: str, training: bool = False) -> None:
        self._module, self._found = shallow(module).train(training), list[Any]()
        self._module.get_submodule(layer).register_forward_pre_hook(self._stop, with_kwargs=True, prepend=True)

    def _stop(self, layer: nn.Module, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        self._found = [*inputs, *keywords.values()]
        raise _Reached

    def __call__(self, x: Tensor) -> Tensor | None:
        """Return the features of samples x [n, ...]; None unless they are one tensor with a row per sample."""
        self._found = []
        with torch.no_grad(), suppress(_Reached):
            self._module(x)
        one = self._found[0] if len(self._found) == 1 else None
        return one if isinstance(one, Tensor) and one.is_floating_point() and len(one) == len(x) else None


def _verified(module: nn.Module, head: nn.Module, first: str, layout: Layout, x: Tensor) -> Tensor | None:
    """Return the features of samples x, if the head's outputs on them equal the network's with any trained weights."""
    features, in_training = (_Backbone(module, first, training)(x) for training in (False, True))
    if features is None or in_training is None or not _same(features, in_training):
        return None
    whole, part = shallow(module).eval(), shallow(head).eval()
    own = {column.name: whole.get_parameter(column.name).detach() for column in layout.columns if column.parameter}
    for weights in (own, {name: 0.5 * value + 0.1 for name, value in own.items()}):
        with torch.no_grad():
            expected, found = functional_call(whole, weights, (x,)), functional_call(part, weights, (features,))
        if not _same(expected, found):
            return None
    return features


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(torch.allclose(a, b, rtol=1e-4, atol=1e-5 * float(a.abs().max())))


def _of_all(task: Task, layer: str) -> FederatedData:
    """Return the data with the features of all samples as inputs."""
    backbone, data = _Backbone(task.module, layer), task.data

    def of(split: Split) -> Split:
        with task.autocast():
            # Copies: matrix products on a CPU round by where in memory their inputs begin.
            found = [backbone(task.cast(split.x[piece].clone())) for piece in _pieces(split)]
        if any(one is None for one in found):
            raise ValueError("some samples have no features")
        return replace(split, x=torch.cat([task.cast(one) for one in found if one is not None]))

    validation = None if data.validation is None else of(data.validation)
    return replace(data, train=of(data.train), test=of(data.test), validation=validation, fields=None, missing=None)


def _pieces(split: Split) -> list[slice]:
    """Return slices that cover all samples, to be computed one after the other.

    On a CPU no slice has samples of two peers, so that a real peer computes the same slices and gets the same bits. If
    peers share some samples but not all, the slices are single samples.
    """
    total = len(split.x)
    if split.x.is_cuda:
        return [slice(first, first + _ON_GPU) for first in range(0, total, _ON_GPU)]
    ranges = sorted(
        {(start, start + count) for start, count in zip(split.start.tolist(), split.count.tolist(), strict=True)}
    )
    cuts = [0, *(stop for _, stop in ranges)]
    if cuts[-1] != total or any(start != before for (start, _), before in zip(ranges, cuts, strict=False)):
        return [slice(first, first + 1) for first in range(total)]
    return [slice(at, min(at + _ON_CPU, stop)) for start, stop in ranges for at in range(start, stop, _ON_CPU)]
