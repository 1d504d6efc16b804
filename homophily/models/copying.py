"""Copying and moving users' networks with everything attached to them: gradient hooks, plain tensors in attributes.

copy.deepcopy does not copy gradient hooks, and nn.Module.to does not move tensors that are neither parameters nor
buffers. Copies of a run's network share the memory of its frozen parameters, which nothing changes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from homophily.errors import UserError

Module = TypeVar("Module", bound=nn.Module)
Hook = Callable[..., Any]
_REGISTERED = ("_parameters", "_buffers", "_modules")


def shallow(module: Module) -> Module:
    """Return a copy of a network, without gradient hooks, that shares the memory of the frozen parameters."""
    frozen = (p for p in module.parameters() if not p.requires_grad)
    # New parameter objects: moving the copy to a device or casting it must not change the original.
    return copy.deepcopy(module, {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in frozen})


def copied(module: Module, name: str = "model", share_frozen: bool = True) -> Module:
    """Return a copy of a network with the gradient hooks of its parameters; raise a UserError if this fails.

    name: what an error message calls the network; share_frozen: whether frozen parameters share their memory.
    """
    for path, tensor in constants(module):
        if tensor.requires_grad:
            raise UserError(
                f"{name}: the attribute {path!r} is a tensor that requires a gradient but is not a parameter, so it "
                "would not be trained; make it an nn.Parameter, detach it, or compute it in forward"
                + _hint(module, path)
            )
    try:
        clone = shallow(module) if share_frozen else copy.deepcopy(module)
    except Exception as error:  # a user's attributes may raise any exception
        raise UserError(f"{name}: the network cannot be copied for every peer: {error}") from error
    for (_, original), (_, parameter) in zip(_trained(module), _trained(clone), strict=True):
        for hook in _hooks(original, "_backward_hooks"):
            parameter.register_hook(hook)
        for hook in _hooks(original, "_post_accumulate_grad_hooks"):
            parameter.register_post_accumulate_grad_hook(hook)
    return clone


def hooked_parameter(module: nn.Module) -> str | None:
    """Return the name of the first trained parameter with a gradient hook (such as clipping); None if there is none."""
    names = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return next((name for name, p in _trained(module) if any(_hooks(p, attribute) for attribute in names)), None)


def _trained(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad)


def _hooks(parameter: nn.Parameter, attribute: str) -> list[Hook]:
    return list((getattr(parameter, attribute) or {}).values())


def _hint(module: nn.Module, path: str) -> str:
    """Return advice for a weight that a hook of torch.nn.utils recomputes in each forward pass, else ""."""
    names = {name for name, _ in module.named_parameters()}
    hooked = f"{path}_v" in names or f"{path}_orig" in names
    return " (or use torch.nn.utils.parametrizations in place of torch.nn.utils)" if hooked else ""


def constants(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield all plain tensors in attributes of a network with their paths, and buffers that require a gradient."""
    for layer, attribute, value in _attributes(module):
        yield from _tensors(f"{layer}.{attribute}" if layer else attribute, value)
    yield from ((name, buffer) for name, buffer in module.named_buffers() if buffer.requires_grad)


def on_device(module: nn.Module, device: torch.device) -> nn.Module:
    """Move all tensors of a network to the device, in place like ``nn.Module.to``, including plain tensors."""
    module.to(device)
    layers = dict(module.named_modules())
    for layer, attribute, value in list(_attributes(module)):
        moved = _mapped(value, lambda tensor: tensor.to(device))
        if moved is not value:
            setattr(layers[layer], attribute, moved)
    return module


def _attributes(module: nn.Module) -> Iterator[tuple[str, str, Any]]:
    for name, layer in module.named_modules():
        yield from ((name, key, value) for key, value in vars(layer).items() if key not in _REGISTERED)


def _plain(value: object) -> bool:
    return isinstance(value, Tensor) and not isinstance(value, nn.Parameter)


def _tensors(path: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if _plain(value):
        yield path, value
    elif type(value) in (list, tuple):
        for number, item in enumerate(value):
            yield from _tensors(f"{path}[{number}]", item)
    elif type(value) is dict:
        for key, item in value.items():
            yield from _tensors(f"{path}[{key!r}]", item)


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return the value with every plain tensor in it changed; the same object if there is none."""
    if not any(True for _ in _tensors("", value)):
        return value
    if _plain(value):
        return change(value)
    if type(value) is dict:
        return {key: _mapped(item, change) for key, item in value.items()}
    return type(value)(_mapped(item, change) for item in value)
