"""Calls users' networks as engines need it: with one batch tensor in, and one tensor of outputs back.

Hooks translate. They unpack named fields to keyword arguments, and take the logits out of the output object of a
Hugging Face model. So the names of all tensors stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from homophily.data.fields import MASK, TOKENS, Fields
from homophily.errors import UserError
from homophily.models.hugging_face import base_of, use_batchable_attention


def call_with_batches(module: nn.Module, fields: Fields | None, x: Tensor) -> None:
    """Add the hooks that a network needs, in place. fields: of the inputs; x: a sample [1, ...]."""
    base = base_of(module)
    if base is not None:
        module.register_forward_pre_hook(_HuggingFaceInputs.of(base, fields), with_kwargs=True)
        module.register_forward_hook(_logits)
        use_batchable_attention(module, base, x)
    elif fields is not None:
        module.register_forward_pre_hook(_NamedInputs(fields), with_kwargs=True)


@dataclass(frozen=True)
class _NamedInputs:
    """Forward hook: passes the fields of a batch as keyword arguments."""

    fields: Fields

    def __call__(
        self, module: nn.Module, inputs: tuple[Tensor, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        return (), self.fields.unpack(inputs[0])


@dataclass(frozen=True)
class _HuggingFaceInputs:
    """Forward hook: passes a batch as a Hugging Face model takes it, with a mask for its padding tokens."""

    fields: Fields | None
    name: str  # of the main argument
    pad: int | None  # the padding token

    @classmethod
    def of(cls, base: Any, fields: Fields | None) -> _HuggingFaceInputs:
        return cls(fields, base.main_input_name, getattr(base.config, "pad_token_id", None))

    def __call__(
        self, module: nn.Module, inputs: tuple[Tensor, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        named = {self.name: inputs[0]} if self.fields is None else self.fields.unpack(inputs[0])
        if TOKENS in named and MASK not in named and self.pad is not None:
            named[MASK] = (named[TOKENS] != self.pad).long()
        return (), named


def _logits(module: nn.Module, inputs: object, output: Any) -> Tensor:
    """Forward hook: the logits of an output object, with the classes of positions before the positions."""
    found = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if found is None and isinstance(output, tuple):
        found = output[0]
    if not isinstance(found, Tensor):
        raise UserError(
            f"model: {type(module).__name__} returns {type(output).__name__} without logits; use a model with a head "
            "(...ForSequenceClassification, ...ForTokenClassification, ...ForCausalLM), or wrap it in an nn.Module"
        )
    return found.transpose(1, 2) if found.dim() == 3 else found
