"""torch.vmap with the attention kernels that have batching rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel


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
