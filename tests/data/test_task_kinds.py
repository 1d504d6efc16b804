"""The kind of a task follows from its targets, or is declared; targets that do not fit it are refused."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from homophily.data import PeerData, Samples, Source, prepared_data
from homophily.data.task_kinds import (
    CLASSIFICATION,
    IGNORED,
    MULTI_LABEL,
    REGRESSION,
    TASK_KINDS,
    TOKENS,
    TaskKind,
    as_targets,
    kind_of,
)
from homophily.data.types import FederatedData
from homophily.errors import UserError
from homophily.training.losses import losses
from homophily.training.score_metrics import metrics_of

X = np.ones((4, 3), np.float32)
WORDS = [[0, 1, 5], [2, 2, IGNORED], [1, IGNORED, IGNORED], [0, 0, 0]]
LABELS = [[True, False], [False, False], [True, True], [False, True]]


def given(y: Any, task: str | None = None, peers: int = 2, **settings: Any) -> FederatedData:
    data = [PeerData(X, y) for _ in range(peers)]
    return prepared_data("", {}, {"test": 1, "task": task, **settings}, None, 0, data).shares


@pytest.mark.parametrize(
    ("y", "kind", "classes", "outputs"),
    [
        ([0, 1, 2, 1], CLASSIFICATION, 3, 3),
        ([True, False, True, True], CLASSIFICATION, 2, 2),
        (WORDS, TOKENS, 6, 6),
        (np.arange(32).reshape(4, 2, 4), TOKENS, 32, 32),
        (LABELS, MULTI_LABEL, None, 2),
        ([0.5, 1.0, 2.0, 0.0], REGRESSION, None, 1),
        (np.ones((4, 2, 5)), REGRESSION, None, 10),
    ],
)
def test_the_kind_is_inferred_from_the_targets(y: Any, kind: TaskKind, classes: int | None, outputs: int) -> None:
    found = given(y)
    assert (found.kind, found.classes, found.outputs) == (kind, classes, outputs)
    assert found.train.y.dtype == (torch.int64 if kind.has_classes else torch.float32)
    assert found.train.y.dim() == max(np.asarray(y).ndim, 1 if kind.has_classes else 2)


@pytest.mark.parametrize(
    ("y", "task", "kind"),
    [
        (np.array(LABELS).astype(int), "multi-label", MULTI_LABEL),
        (np.array(LABELS).astype(float), "multi-label", MULTI_LABEL),
        ([3, 1, 2, 8], "regression", REGRESSION),
        ([[1], [0], [2], [1]], "tokens", TOKENS),
    ],
)
def test_a_declared_kind_overrides_the_inference(y: Any, task: str, kind: TaskKind) -> None:
    found = given(y, task)
    assert found.kind is kind
    assert given(y, task).train.y.is_floating_point() != kind.has_classes


MISTAKES = [
    ([0.0, 1.0, 0.0, 1.0], "classification", "y must be whole numbers [n], one class per sample (task classification)"),
    ([0, 1, 0, 1], "tokens", "y must be whole numbers [n, length], one class per position or -100 (task tokens)"),
    (WORDS, "multi-label", "y must be 0 or 1 for each label, [n, labels] (task multi-label), and contains other"),
    ([0, 1, 0, 1], "multi-label", "y must be 0 or 1 for each label, [n, labels] (task multi-label), not int64 [4]"),
    ([[0, -1]] * 4, None, "y contains the class -1, but classes must be 0 to 1,000,000, or -100 for a position"),
    ([[IGNORED] * 2] * 4, None, "y has no class that counts: all are -100"),
    ([0, IGNORED, 0, 1], None, "y contains the class -100, but classes must be 0 to 1,000,000"),
    ([[0], [1], [0], [1]], None, "y must have the shape [n] if it holds classes, not [4, 1]; if they are classes of"),
]


@pytest.mark.parametrize(("y", "task", "message"), MISTAKES)
def test_targets_that_do_not_fit_are_refused(y: Any, task: str | None, message: str) -> None:
    with pytest.raises(UserError) as refused:
        given(y, task)
    assert str(refused.value).startswith(f"peer 0: {message}")


def test_peers_with_different_kinds_are_refused() -> None:
    data = [PeerData(X, np.array(LABELS)), PeerData(X, np.array(LABELS).astype(float))]
    with pytest.raises(
        UserError, match=r"peer 1: y holds regression targets, but peer 0 has multi-label; set data\.task"
    ):
        prepared_data("", {}, {"test": 1}, None, 0, data)


def source(y: Tensor, classes: int | None, task: str | None = None) -> Source:
    x = torch.rand(len(y), 3)
    return Source("mine", Samples(x, y), None, classes, defaults={"shift": "iid", "peers": 2}, task=task)


def test_a_source_has_a_kind_too() -> None:
    assert source(torch.tensor(WORDS), 6).kind is TOKENS
    assert source(torch.tensor(LABELS), None).kind is MULTI_LABEL
    assert source(torch.tensor(LABELS).float(), None, "multi-label").kind is MULTI_LABEL
    assert source(torch.rand(4, 2), None).kind is REGRESSION
    with pytest.raises(UserError, match="Source: task = 'multi-label', but classes = 2"):
        source(torch.tensor(LABELS).long(), 2, "multi-label")
    with pytest.raises(UserError, match="data: y contains the class 5, but classes must be 0 to 4, or -100"):
        source(torch.tensor(WORDS), 5)


@pytest.mark.parametrize("shift", ["label-swap", "label-groups", "dirichlet"])
def test_a_shift_of_labels_needs_one_class_per_sample(shift: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = source(torch.tensor(WORDS), 6)
    monkeypatch.setitem(
        __import__("sys").modules, "my_words", type("Module", (), {"words": staticmethod(lambda: made)})
    )
    with pytest.raises(UserError, match=f"data.shift = '{shift}' needs data with classes, one per sample, but mine is"):
        prepared_data("my_words:words", {}, {"shift": shift, "train": 1, "test": 1}, 2, 0)


def test_every_kind_has_a_loss_and_a_headline_metric_that_can_score_it() -> None:
    for kind in TASK_KINDS.values():
        assert kind.loss in losses
        assert kind.headline in metrics_of(kind)


def test_targets_are_kept_as_they_are_counted() -> None:
    y = torch.tensor(WORDS)
    assert torch.equal(as_targets(y, kind_of(y), "y"), y)
