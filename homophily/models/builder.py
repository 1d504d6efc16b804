"""The network of a run: how it is built, and with which weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from homophily.config.schema import Config
from homophily.errors import UserError
from homophily.models import models
from homophily.models.copying import copied, on_device
from homophily.plugins.parameters import checked, taken
from homophily.plugins.registry import GIVEN
from homophily.randomness import Purpose, word


class Network:
    """Makes the network that a config names, or copies of the one a caller gave."""

    def __init__(self, config: Config, pattern: nn.Module | None, inputs: tuple[int, ...], outputs: int) -> None:
        self.name = config.model.name
        self.pattern = None if pattern is None else on_device(copied(pattern), torch.device("cpu"))
        self.keys: dict[str, Any] = {}  # all keys of its builder
        self._passed: dict[str, Any] = {}
        if pattern is None:
            if self.name == GIVEN:
                raise UserError("model.name: this run's model was given in Python; hand it over again as model=...")
            self._make = models.get(self.name)
            self.keys = checked("model", f"model {self.name!r}", self._make, config.model.keys, models.passed)
            self._passed = taken(self._make, {"inputs": inputs, "outputs": outputs})
        elif any(map(is_lazy, pattern.parameters())):
            raise UserError("model: it has lazy layers, whose sizes are not known yet; call it on a sample first")

    def common(self, seed: int) -> nn.Module:
        """The one everybody may start from: with the given weights, or those that the seed draws."""
        return copied(self.pattern) if self.pattern is not None else self.fresh(seed)

    def fresh(self, *keys: int) -> nn.Module:
        """With weights of its own, drawn from the keys (the seed first)."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(word(keys[0], Purpose.INIT, *keys[1:]) >> 1)  # leaves CUDA's alone
            return _reset(copied(self.pattern)) if self.pattern is not None else self._built()

    def _built(self) -> nn.Module:
        try:
            module = self._make(**self._passed, **self.keys)
        except UserError:
            raise
        except Exception as error:  # anyone's constructor may raise anything; the user needs to know what it got
            got = ", ".join(f"{name} = {value!r}" for name, value in {**self._passed, **self.keys}.items())
            raise UserError(f"model.name = {self.name!r}: fails with {got}: {error}") from error
        if not isinstance(module, nn.Module):
            raise UserError(f"model.name = {self.name!r}: must make an nn.Module, not {type(module).__name__}")
        if any(map(is_lazy, module.parameters())):
            raise UserError(f"model.name = {self.name!r}: has lazy layers, whose sizes are not known; name them")
        return copied(module, f"model.name = {self.name!r}")


def _reset(module: nn.Module) -> nn.Module:
    """Fresh weights for every layer that is trained; a layer that cannot draw its own is named."""
    for name, layer in module.named_modules():
        own = list(layer.parameters(recurse=False))
        if own and not any(parameter.requires_grad for parameter in own):
            continue  # frozen: everyone has the common weights
        reset = getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
        if callable(reset):
            reset()
        elif own:
            raise UserError(
                f"init = 'independent': layer {name or type(layer).__name__!r} has no reset_parameters(); "
                "give it one, or name the model as package.module:name so that it can be built afresh"
            )
    return module
