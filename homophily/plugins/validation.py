"""What a method, a metric, a merge or a shift answered, if it can be used."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from homophily.errors import UserError


def answer(found: object, shape: Sequence[int], wanted: str) -> Tensor:
    """A tensor of this shape; else a sentence that says what was ``wanted``, as "merge: must return ..."."""
    if not isinstance(found, Tensor):
        raise UserError(f"{wanted}, a tensor {list(shape)}, not {type(found).__name__}")
    if tuple(found.shape) != tuple(shape):
        raise UserError(f"{wanted}, {list(shape)}, not {list(found.shape)}")
    if found.is_complex():
        raise UserError(f"{wanted}, of real numbers, not {found.dtype}")
    return found
