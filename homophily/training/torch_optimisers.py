"""The optimizers of the one-by-one engine: torch's own, by their name in the config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim.sgd import sgd

from homophily.config.schema import Training
from homophily.errors import UserError
from homophily.plugins.parameters import checked
from homophily.plugins.registry import import_object
from homophily.training.task import Settings

EVERY_ENGINE = ("sgd", "adam", "adamw")
"""The optimizers that every engine has; any other name is a class, which trains peers one by one."""

_OPTIONS = "training.optimizer_options"
_PASSED = ("params", "lr")  # what the constructor of a class gets from the engine
_UNUSABLE = {"LBFGS": "it evaluates the loss several times per step", "SparseAdam": "it needs sparse gradients"}
_CLASSES: dict[str, type[torch.optim.Optimizer]] = {
    name: value
    for name, value in vars(torch.optim).items()
    if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer
}


def optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    """Return the class called "RMSprop", "torch.optim.RMSprop" or "package.module:Class"."""
    if ":" in name:
        own = import_object(name, "optimizer")
        if not (isinstance(own, type) and issubclass(own, torch.optim.Optimizer)):
            raise UserError(f"training.optimizer = {name!r}: must be a subclass of torch.optim.Optimizer")
        return own
    short = name.removeprefix("torch.optim.")
    if short in _UNUSABLE:
        raise UserError(f"training.optimizer = {name!r}: cannot be used, because {_UNUSABLE[short]}")
    if short not in _CLASSES:
        allowed = [*EVERY_ENGINE, *(known for known in sorted(_CLASSES) if known not in _UNUSABLE)]
        hint = [one for one in allowed if one.lower() == short.lower()] or get_close_matches(short, allowed, n=1)
        raise UserError(
            f"unknown optimizer {name!r}"
            + (f" (did you mean {hint[0]!r}?)" if hint else "")
            + f"; training.optimizer is {', '.join(allowed)}, or your own as package.module:name"
        )
    return _CLASSES[short]


def check_optimizer(training: Training) -> None:
    """Raise a UserError if the keys of [training] about the optimizer contradict each other."""
    name = training.optimizer
    if name in EVERY_ENGINE:
        if training.optimizer_options:
            raise UserError(f"{_OPTIONS}: {name!r} has none; they are for a class, such as optimizer = 'RMSprop'")
        if training.nesterov and name != "sgd":
            raise UserError(f"training.nesterov = true: needs optimizer = 'sgd', not {name!r}")
        if training.nesterov and not training.momentum:
            raise UserError("training.nesterov = true: needs training.momentum above 0")
        return
    _checked_options(name, training.optimizer_options)
    for key in ("nesterov", "weight_decay"):
        if getattr(training, key):
            raise UserError(f"training.{key}: {name!r} takes its settings from {_OPTIONS}; set it there")


def _checked_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    return checked(_OPTIONS, f"optimizer {name!r}", optimizer_class(name), options, _PASSED)


class Stepping(Protocol):
    """What the engine needs of an optimizer."""

    def step(self) -> object:
        """Change the parameters by their gradients."""


class _SGD:
    """torch.optim.SGD by the function that its ``step`` calls: for small networks the rest takes longer than that."""

    def __init__(self, parameters: Sequence[nn.Parameter], settings: Settings, lr: float, fused: bool) -> None:
        self.parameters, self.lr, self.settings, self.fused = parameters, lr, settings, fused
        # None: without momentum. The fused form fails if some get theirs in a later step than others.
        self.velocities = [torch.zeros_like(p, requires_grad=False) if settings.momentum else None for p in parameters]

    @torch.no_grad()
    def step(self) -> None:
        used = [(p, p.grad, v) for p, v in zip(self.parameters, self.velocities, strict=True) if p.grad is not None]
        if not used:
            return
        weights, gradients, velocities = ([*column] for column in zip(*used, strict=True))
        sgd(
            weights,
            gradients,
            velocities,
            fused=self.fused,
            foreach=not self.fused,
            weight_decay=self.settings.weight_decay,
            momentum=self.settings.momentum,
            lr=self.lr,
            dampening=0.0,
            nesterov=self.settings.nesterov,
            maximize=False,
        )


def torch_optimiser(parameters: Sequence[nn.Parameter], settings: Settings, lr: float) -> Stepping:
    """Return a new optimizer for the parameters of one peer."""
    decay, name = settings.weight_decay, settings.optimizer
    # The fused forms need gradients in the memory order of their parameters, and do not check it.
    fused = all(one.dtype in (torch.float32, torch.float64) and one.is_contiguous() for one in parameters)
    if name == "sgd":
        return _SGD(parameters, settings, lr, fused)
    if name in EVERY_ENGINE:
        make = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
        return make(parameters, lr=lr, weight_decay=decay, fused=fused)
    options = _checked_options(name, settings.optimizer_options)
    try:
        return optimizer_class(name)(parameters, lr=lr, **options)  # type: ignore[call-arg]
    except (TypeError, ValueError) as error:
        raise UserError(f"training.optimizer = {name!r}: {error}") from error
