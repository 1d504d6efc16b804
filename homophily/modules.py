"""Copies of a network that keep everything a user attached to it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from torch import nn

Module = TypeVar("Module", bound=nn.Module)
Hook = Callable[..., Any]


def copied(module: Module) -> Module:
    """A deep copy with the gradient hooks of its parameters, which ``copy.deepcopy`` drops."""
    clone = copy.deepcopy(module)
    for (_, original), (_, parameter) in zip(_trained(module), _trained(clone), strict=True):
        for hook in _hooks(original, "_backward_hooks"):
            parameter.register_hook(hook)
        for hook in _hooks(original, "_post_accumulate_grad_hooks"):
            parameter.register_post_accumulate_grad_hook(hook)
    return clone


def hooked_parameter(module: nn.Module) -> str | None:
    """The name of the first trained parameter with a gradient hook (for clipping or pruning, say); None: none has."""
    names = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return next((name for name, p in _trained(module) if any(_hooks(p, attribute) for attribute in names)), None)


def _trained(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad)


def _hooks(parameter: nn.Parameter, attribute: str) -> list[Hook]:
    return list((getattr(parameter, attribute) or {}).values())
