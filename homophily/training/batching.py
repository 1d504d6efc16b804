"""torch.vmap over peers, with attention and convolutions in forms that it can batch, or batches well."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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


class PatchConvolutions(TorchFunctionMode):
    """Within this context a 2-d convolution is the product of the patches of its input and its weight.

    torch.vmap over weights makes one convolution with a group for every peer, which GPUs compute slowly; products are
    batched well. Patches take as many times the memory of the input as the kernel has entries.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(zip(_CONVOLUTION, args, strict=False)) | (kwargs or {}) if func is F.conv2d else {}
        if named.get("padding") == "valid":
            named["padding"] = 0
        if (
            not named
            or named.get("groups", 1) != 1
            or named["input"].dim() != 4
            or isinstance(named.get("padding"), str)
        ):
            return func(*args, **(kwargs or {}))
        return _convolution(**named)


_CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


def _convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """Return F.conv2d of images [b, C, H, W] with kernels [O, C, h, w], for one group."""
    (down, right), (high, wide), (tall, broad) = (_pair(value) for value in (stride, padding, dilation))
    x = F.pad(input, (wide, wide, high, high))
    outputs, _, h, w = weight.shape
    rows = (x.shape[2] - tall * (h - 1) - 1) // down + 1
    columns = (x.shape[3] - broad * (w - 1) - 1) // right + 1
    tops, lefts = range(0, tall * h, tall), range(0, broad * w, broad)
    bands = torch.stack([x[:, :, top : top + down * (rows - 1) + 1 : down] for top in tops], dim=2)
    patches = torch.stack([bands[..., left : left + right * (columns - 1) + 1 : right] for left in lefts], dim=3)
    patches = patches.flatten(4).flatten(1, 3)  # [b, C * h * w, rows * columns]
    found = torch.bmm(weight.flatten(1).expand(len(x), -1, -1), patches)
    if bias is not None:
        found = found + bias.to(found.dtype)[:, None]
    return found.view(len(x), outputs, rows, columns)


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else tuple(value)
    return pair[0], pair[-1]
