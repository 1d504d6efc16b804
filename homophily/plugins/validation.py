"""Validation of the tensors that methods, metrics, merges and shifts return."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from homophily.errors import UserError


def answer(found: object, shape: Sequence[int], wanted: str) -> Tensor:
    """Return ``found`` if it is a real tensor of this shape; else raise a UserError.

    wanted: the beginning of the error message, such as "merge: must return a weight for every model".
    """
    if not isinstance(found, Tensor):
        raise UserError(f"{wanted}, a tensor {list(shape)}, not {type(found).__name__}")
    if tuple(found.shape) != tuple(shape):
        raise UserError(f"{wanted}, {list(shape)}, not {list(found.shape)}")
    if found.is_complex():
        raise UserError(f"{wanted}, of real numbers, not {found.dtype}")
    return found
