"""Hugging Face transformers under torch.vmap: attention without control flow that depends on values.

Nothing is imported here unless the user's model is from transformers, which is then imported already.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout as random_dropout

from homophily.models.keyed_dropout import KeyedDropout

_NAME = "homophily"  # of our attention in the registry of transformers


def base_of(module: nn.Module) -> Any:
    """Return the Hugging Face model that a network is, or that peft has wrapped; None if it is none."""
    transformers, peft = sys.modules.get("transformers"), sys.modules.get("peft")
    if transformers is None:
        return None
    if peft is not None and isinstance(module, peft.PeftModel):
        module = module.get_base_model()
    return module if isinstance(module, transformers.PreTrainedModel) else None


def use_batchable_attention(module: nn.Module, base: Any, x: Tensor) -> None:
    """Let a copy of a model compute attention by a function that torch.vmap can run, if the results are the same.

    x: a sample [1, ...]. Attention of transformers looks at the values of the mask, and draws its own dropout. A model
    that does more than plain attention keeps its own, in the variant "eager".
    """
    base.config.use_cache = False
    _register()
    found = {name: _outputs(module, base, name, x) for name in ("eager", _NAME)}
    same = all(isinstance(one, Tensor) for one in found.values()) and bool(
        torch.allclose(found["eager"], found[_NAME], rtol=1e-4, atol=1e-5)  # type: ignore[arg-type]
    )
    base.set_attn_implementation(_NAME if same else "eager")


def _outputs(module: nn.Module, base: Any, attention: str, x: Tensor) -> Tensor | None:
    """Return the outputs in evaluation mode with this attention; None if the model does not support it."""
    try:
        base.set_attn_implementation(attention)
        with torch.no_grad():
            return module(x.to(base.dtype) if x.is_floating_point() else x)  # type: ignore[no-any-return]
    except Exception:  # whatever the reason, the probe reports it with the attention that is then used
        return None


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(_NAME, _attention)
    AttentionMaskInterface.register(_NAME, _mask)


def _mask(**arguments: Any) -> Tensor | None:
    """Return the additive mask of eager attention, which is formed even if no position is masked."""
    from transformers.masking_utils import eager_mask

    found: Tensor | None = eager_mask(**{**arguments, "allow_is_bidirectional_skip": False})
    return found


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Return eager attention [b, length, heads, d] and its weights, with keyed dropout if the layer has it.

    query: [b, heads, length, d]; key, value: the same, with fewer heads if several queries share one.
    """
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    weights = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if attention_mask is not None:
        weights = weights + attention_mask
    weights = weights.softmax(-1, dtype=torch.float32).to(query.dtype)
    if dropout:
        keyed = next((m for m in module.children() if isinstance(m, KeyedDropout) and m.p == dropout), None)
        weights = keyed(weights) if keyed is not None else random_dropout(weights, dropout)
    return (weights @ value).transpose(1, 2).contiguous(), weights
