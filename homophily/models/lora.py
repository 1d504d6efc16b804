"""LoRA: trained low-rank factors beside the frozen weights of linear layers (Hu and others, 2021).

A layer with adapters computes y = base(x) + (alpha / rank) B A x. Its parameters keep their names; the factors are
``lora_A`` [rank, inputs] and ``lora_B`` [outputs, rank] beside them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from homophily.config.schema import Lora
from homophily.errors import UserError
from homophily.models.patterns import matches, selected

A, B = "lora_A", "lora_B"


def factor_pairs(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return the names of A and B of each adapter; those of peft are ``lora_A.default.weight`` and so on."""
    known = dict.fromkeys(names)
    pairs = [(name, _partner(name)) for name in known if A in name.split(".")]
    return [(a, b) for a, b in pairs if b in known]


def _partner(name: str) -> str:
    return ".".join(B if part == A else part for part in name.split("."))


def freeze_base(module: nn.Module, lora: Lora) -> None:
    """Freeze all parameters except those that ``lora.train`` matches."""
    if is_peft(module):
        _check_peft(module, lora)
        return
    parameters = dict(module.named_parameters())
    trained = selected(lora.train, parameters, "model.lora.train", "layer")
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in trained)


def add_adapters(module: nn.Module, lora: Lora) -> None:
    """Add adapters to the linear layers that ``lora.targets`` matches, A drawn from torch's generator, B zero.

    A is initialised as in peft. With ``merge = "freeze-a"`` it is frozen.
    """
    if is_peft(module):
        return
    layers = {name: layer for name, layer in module.named_modules() if _is_linear(layer)}
    if not lora.targets:
        raise UserError(f"model.lora.targets: name at least one layer; the linear layers are {', '.join(layers)}")
    for name in layers:
        if any(part in dict(layers[name].named_parameters(recurse=False)) for part in (A, B)):
            raise UserError(f"model.lora: layer {name!r} has parameters named {A} or {B} already")
    chosen = selected(lora.targets, layers, "model.lora.targets", "linear layer")
    adapted = [name for name in layers if name in chosen and not any(matches(name, pattern) for pattern in lora.train)]
    if not adapted:
        raise UserError(
            "model.lora.targets: no layer gets adapters, because model.lora.train trains all of them in full"
        )
    for name in adapted:
        _adapt(layers[name], lora)


def _adapt(layer: nn.Module, lora: Lora) -> None:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    outputs, inputs = weight.shape if isinstance(layer, nn.Linear) else reversed(weight.shape)
    a = nn.Parameter(weight.new_empty(lora.rank, inputs), requires_grad=lora.merge != "freeze-a")
    nn.init.kaiming_uniform_(a, a=math.sqrt(5))
    layer.register_parameter(A, a)
    layer.register_parameter(B, nn.Parameter(weight.new_zeros(outputs, lora.rank)))
    layer.register_forward_hook(_Adapter(lora.alpha / lora.rank))


@dataclass(frozen=True)
class _Adapter:
    """Forward hook: adds the product of the factors to the output of a linear layer."""

    scale: float

    def __call__(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output + self.scale * linear(linear(inputs[0], getattr(layer, A)), getattr(layer, B))


def _is_linear(layer: nn.Module) -> bool:
    """Whether a layer is linear and called: nn.MultiheadAttention uses the weights of its output layer directly."""
    transformers = sys.modules.get("transformers.pytorch_utils")
    kinds = (nn.Linear,) if transformers is None else (nn.Linear, transformers.Conv1D)
    return isinstance(layer, kinds) and not isinstance(layer, NonDynamicallyQuantizableLinear)


def is_peft(module: nn.Module | None) -> bool:
    """Whether a network has adapters of peft; peft is then imported already."""
    peft = sys.modules.get("peft")
    return peft is not None and isinstance(module, peft.PeftModel)


def _check_peft(module: nn.Module, lora: Lora) -> None:
    """Raise a UserError if ``model.lora`` asks for more than a way to merge the adapters of a peft model."""
    defaults = Lora()
    given = [key for key in ("rank", "targets", "alpha", "train") if getattr(lora, key) != getattr(defaults, key)]
    if given:
        raise UserError(f"model.lora.{given[0]}: the model is a peft model, whose own adapters are trained")
    pairs = factor_pairs(name for name, _ in module.named_parameters())
    if not pairs:
        raise UserError(f"model.lora.merge = {lora.merge!r}: the peft model has no LoRA adapters")
    for a, _ in pairs if lora.merge == "freeze-a" else ():
        module.get_parameter(a).requires_grad_(False)


def check_used(unused: Iterable[str]) -> None:
    """Raise a UserError if adapters are among the parameters that get no gradient."""
    for name in unused:
        layer, _, last = name.rpartition(".")
        if last in (A, B):
            raise UserError(f"model.lora.targets: the network does not call the layer {layer!r} on a batch")
