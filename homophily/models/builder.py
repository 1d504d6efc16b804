"""Builds the network of a run and initialises its weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from homophily.config.schema import Config
from homophily.errors import UserError
from homophily.models import models
from homophily.models.copying import copied, on_device
from homophily.models.freezing import freeze
from homophily.models.lora import add_adapters, freeze_base
from homophily.plugins.parameters import checked, taken
from homophily.plugins.registry import GIVEN
from homophily.randomness import Purpose, word


class Network:
    """Builds the network that a config names, or copies the ``pattern`` that a caller passed."""

    def __init__(self, config: Config, pattern: nn.Module | None, inputs: tuple[int, ...], outputs: int) -> None:
        self.name = config.model.name
        self._frozen, self._lora = config.model.frozen, config.model.lora
        self.pattern = None if pattern is None else on_device(copied(pattern, share_frozen=False), torch.device("cpu"))
        self.keys: dict[str, Any] = {}  # the values of all config keys of the network
        self._passed: dict[str, Any] = {}
        if pattern is None:
            if self.name == GIVEN:
                raise UserError("model.name: this run's model was given in Python; hand it over again as model=...")
            self._make = models.get(self.name)
            self.keys = checked("model", f"model {self.name!r}", self._make, config.model.keys, models.passed)
            self._passed = taken(self._make, {"inputs": inputs, "outputs": outputs})
        elif any(map(is_lazy, pattern.parameters())):
            raise UserError("model: the network has lazy layers of unknown size; call it on a sample first")
        if self.pattern is not None:
            self._freeze(self.pattern)

    def common(self, seed: int) -> nn.Module:
        """Return the network that all peers start from: with the weights of the pattern, or drawn from the seed."""
        if self.pattern is None:
            return self.fresh(seed)
        with _drawing(seed):
            return self._adapted(copied(self.pattern))

    def fresh(self, *keys: int) -> nn.Module:
        """Return a network with weights drawn from the keys (the seed first)."""
        with _drawing(*keys):
            return self._adapted(_reset(copied(self.pattern)) if self.pattern is not None else self._built())

    def _freeze(self, module: nn.Module) -> None:
        if self._lora is not None:
            freeze_base(module, self._lora)
        freeze(module, self._frozen)

    def _adapted(self, module: nn.Module) -> nn.Module:
        if self._lora is not None:
            add_adapters(module, self._lora)
        return module

    def _built(self) -> nn.Module:
        try:
            module = self._make(**self._passed, **self.keys)
        except UserError:
            raise
        except Exception as error:  # a user's constructor may raise anything; the message shows its arguments
            got = ", ".join(f"{name} = {value!r}" for name, value in {**self._passed, **self.keys}.items())
            raise UserError(f"model.name = {self.name!r}: fails with {got}: {error}") from error
        if not isinstance(module, nn.Module):
            raise UserError(f"model.name = {self.name!r}: must return an nn.Module, not {type(module).__name__}")
        if any(map(is_lazy, module.parameters())):
            raise UserError(f"model.name = {self.name!r}: has lazy layers of unknown size; give their sizes")
        module = copied(module, f"model.name = {self.name!r}")
        self._freeze(module)
        return module


@contextmanager
def _drawing(*keys: int) -> Iterator[None]:
    """Draw weights from the keys (the seed first) within this context."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(word(keys[0], Purpose.INIT, *keys[1:]) >> 1)  # not CUDA's
        yield


def _reset(module: nn.Module) -> nn.Module:
    """Draw new weights for every trained layer; raise a UserError if a layer has no reset_parameters()."""
    for name, layer in module.named_modules():
        own = list(layer.parameters(recurse=False))
        if own and not any(parameter.requires_grad for parameter in own):
            continue  # frozen: the weights are the same for all peers
        reset = getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
        if callable(reset):
            reset()
        elif own:
            raise UserError(
                f"init = 'independent': layer {name or type(layer).__name__!r} has no reset_parameters(); "
                "give it one, or name the model as package.module:name so that it can be built anew for each peer"
            )
    return module
