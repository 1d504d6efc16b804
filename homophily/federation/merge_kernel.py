"""A weighted merge on a GPU in one pass over the models (Triton), without copies of the rows."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


def weighted_rows(rows: Tensor, ids: Tensor, share: Tensor) -> Tensor:
    """Return sums over k of share[p, k] * rows[ids[p, k]], [P, D]; rows of share 0 are not read. ids, share: [P, K]."""
    out = rows.new_empty(len(ids), rows.shape[1])
    blocks = triton.cdiv(rows.shape[1], _BLOCK)
    _add_rows[(len(ids) * blocks,)](rows, ids, share, out, rows.shape[1], blocks, K=ids.shape[1], BLOCK=_BLOCK)
    return out


@triton.jit
def _add_rows(rows, ids, share, out, width, blocks, K: tl.constexpr, BLOCK: tl.constexpr):
    p = (tl.program_id(0) // blocks).to(tl.int64)
    at = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=rows.dtype.element_ty)
    for k in range(K):
        weight = tl.load(share + p * K + k)
        row = tl.load(ids + p * K + k)
        total += weight * tl.load(rows + row * width + at, mask=(at < width) & (weight != 0), other=0.0)
    tl.store(out + p * width + at, total, mask=at < width)
