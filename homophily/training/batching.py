"""torch.vmap over peers, with attention in a form that it can batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode


@contextmanager
def _batchable_attention() -> Iterator[None]:
    """Within this context attention uses PyTorch's plain math kernel.

    torch.vmap has no batching rule for the fused kernels and for the fast path of nn.MultiheadAttention.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def over_peers(function: Callable[..., Tensor], *arguments: object) -> Tensor:
    """Call ``function`` for all peers at once: torch.vmap over the first axis of each argument that is not None."""
    in_dims = tuple(None if argument is None else 0 for argument in arguments)
    with _batchable_attention():
        return torch.vmap(function, in_dims=in_dims)(*arguments)


class WrittenOutAttention(TorchFunctionMode):
    """Within this context attention is computed by its formula, with the softmax in float32.

    With torch.autocast under torch.vmap, the gradient of the softmax in F.scaled_dot_product_attention fails on a GPU.
    nn.MultiheadAttention calls it out of this context's sight, unless it returns its weights.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **(kwargs or {}))
        if func is F.multi_head_attention_forward and not kwargs["need_weights"]:
            return func(*args, **{**kwargs, "need_weights": True, "average_attn_weights": False})[0], None
        return func(*args, **(kwargs or {}))


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return what F.scaled_dot_product_attention computes; networks that drop attention weights do not come here."""
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    scores = (query @ key.mT).float() * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    return scores.softmax(-1).to(value.dtype) @ value
