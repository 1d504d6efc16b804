"""Frozen layers: parameters that are the same for all peers and do not change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from homophily.models.patterns import selected


def freeze(module: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze the parameters that the patterns of ``model.frozen`` match, and keep frozen layers in evaluation mode.

    A module whose parameters are all matched runs in evaluation mode, with everything in it, also in training: no
    dropout, and normalisation by the stored statistics. Every normalisation layer with frozen parameters does the
    same, also if they were frozen by ``requires_grad=False``.
    """
    parameters = dict(module.named_parameters())
    buffers = [name for name, _ in module.named_buffers()]
    chosen = selected(patterns, [*parameters, *buffers], "model.frozen")
    for name in chosen & parameters.keys():
        parameters[name].requires_grad_(False)
    matched = {parameters[name] for name in chosen & parameters.keys()}
    for layer in [*_inside(module, matched), *_frozen_norms(module)]:
        if not any(hook is _stay_in_evaluation for hook in layer._forward_pre_hooks.values()):
            layer.register_forward_pre_hook(_stay_in_evaluation)


def _inside(module: nn.Module, matched: set[nn.Parameter]) -> Iterator[nn.Module]:
    """Yield all modules with only matched parameters, and those in them; not dropout, which its parent switches off."""
    for layer in module.modules():
        own = list(layer.parameters())
        if own and matched.issuperset(own):
            yield from (inner for inner in layer.modules() if not isinstance(inner, nn.modules.dropout._DropoutNd))


def _frozen_norms(module: nn.Module) -> Iterator[nn.Module]:
    """Yield normalisation layers with running statistics whose module has only frozen parameters."""
    for name, layer in module.named_modules():
        if isinstance(layer, _NormBase) and in_frozen_module(module, name):
            yield layer


def in_frozen_module(module: nn.Module, path: str) -> bool:
    """Whether the innermost module along the path that has parameters has only frozen ones."""
    parts = path.split(".") if path else []
    for depth in range(len(parts), -1, -1):
        parameters = list(module.get_submodule(".".join(parts[:depth])).parameters())
        if parameters:
            return not any(parameter.requires_grad for parameter in parameters)
    return False


def _stay_in_evaluation(layer: nn.Module, inputs: object) -> None:
    """Forward hook: undo ``train()`` for this layer and those in it."""
    if layer.training:
        layer.eval()
