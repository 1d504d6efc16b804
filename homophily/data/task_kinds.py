"""The kinds of learning tasks: the targets, the default loss and the default headline metric of each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from homophily.errors import UserError

IGNORED = -100  # in place of a class: the position counts neither in losses nor in scores nor in fingerprints
LAST_CLASS = 10**6


@dataclass(frozen=True)
class TaskKind:
    """What the targets of a task are, and by which names its loss and its headline metric are registered."""

    name: str
    targets: str  # what y must be, for error messages
    has_classes: bool
    loss: str
    headline: str


CLASSIFICATION = TaskKind(
    "classification", "whole numbers [n], one class per sample", True, "cross-entropy", "accuracy"
)
TOKENS = TaskKind(
    "tokens", f"whole numbers [n, length], one class per position or {IGNORED}", True, "cross-entropy", "accuracy"
)
MULTI_LABEL = TaskKind("multi-label", "0 or 1 for each label, [n, labels]", False, "binary-cross-entropy", "f1")
REGRESSION = TaskKind("regression", "numbers [n] or [n, outputs]", False, "mse", "mse")

TASK_KINDS = {kind.name: kind for kind in (CLASSIFICATION, TOKENS, MULTI_LABEL, REGRESSION)}


def kind_of(y: Tensor, asked: str | None = None) -> TaskKind:
    """Return the kind of task that targets y [n, ...] belong to. asked: its name, which overrides the inference.

    Floats are a regression, booleans [n, labels] are multi-label, and other whole numbers are classes: of a sample if y
    is [n], of its positions if y has more dimensions.
    """
    if asked is not None:
        return TASK_KINDS[asked]
    if y.is_floating_point():
        return REGRESSION
    if y.dtype == torch.bool and y.dim() == 2:
        return MULTI_LABEL
    return TOKENS if y.dim() > 1 else CLASSIFICATION


def as_targets(y: Tensor, kind: TaskKind, name: str) -> Tensor:
    """Return targets y [n, ...] as the network is trained on them: int64 classes, or float32 with at least two axes.

    name: what an error message calls y.
    """
    fits = {
        CLASSIFICATION: y.dim() == 1 and not y.is_floating_point(),
        TOKENS: y.dim() > 1 and not y.is_floating_point(),
        MULTI_LABEL: y.dim() == 2,
        REGRESSION: y.dim() > 0,
    }
    if not fits[kind]:
        dtype = str(y.dtype).removeprefix("torch.")
        raise UserError(f"{name} must be {kind.targets} (task {kind.name}), not {dtype} {list(y.shape)}")
    if not bool(y.isfinite().all()):
        raise UserError(f"{name} contains NaN or infinite values")
    if kind is MULTI_LABEL and not bool(((y == 0) | (y == 1)).all()):
        raise UserError(f"{name} must be {kind.targets} (task {kind.name}), and contains other numbers")
    if not kind.has_classes:
        y = y.to(torch.float32)
        return y[:, None] if y.dim() == 1 else y
    y = y.to(torch.int64)
    check_classes(y, LAST_CLASS + 1, name)
    return y


def counted(y: Tensor) -> Tensor:
    """Return which classes of y count: those that are not ``IGNORED``. Bool, in the shape of y."""
    return y != IGNORED


def check_classes(y: Tensor, classes: int, name: str) -> None:
    """Raise a UserError unless all targets are classes from 0 to ``classes`` - 1; of positions, some may be IGNORED.

    name: what the error message calls y.
    """
    some = y[counted(y)] if y.dim() > 1 else y
    if y.numel() and not some.numel():
        raise UserError(f"{name} has no class that counts: all are {IGNORED}")
    wrong = some[(some < 0) | (some >= classes)]
    if len(wrong):
        ignored = f", or {IGNORED} for a position that does not count" if y.dim() > 1 else ""
        raise UserError(f"{name} contains the class {int(wrong[0])}, but classes must be 0 to {classes - 1:,}{ignored}")
