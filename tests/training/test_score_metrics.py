"""Score metrics equal those of torchmetrics on each peer's samples; undefined scores are NaN."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from homophily.data.task_kinds import CLASSIFICATION, IGNORED, MULTI_LABEL, REGRESSION, TOKENS, TaskKind
from homophily.training.losses import losses
from homophily.training.score_metrics import Predictions, score_metrics

COUNTS = [7, 30, 12]  # samples of each peer


def predictions(outputs: Tensor, targets: Tensor, kind: TaskKind, counts: list[int]) -> Predictions:
    mask = (torch.arange(outputs.shape[1]) < torch.tensor(counts)[:, None]).double()
    loss = losses.get(kind.loss)(outputs.flatten(0, 1), targets.flatten(0, 1)).view(mask.shape)
    return Predictions(outputs, targets, mask, loss, kind)


def drawn(kind: TaskKind, classes: int = 4) -> Predictions:
    chance = torch.Generator().manual_seed(classes)
    shape, most = (len(COUNTS), max(COUNTS)), torch.rand(len(COUNTS), max(COUNTS), 6, generator=chance)
    if kind is CLASSIFICATION:
        outputs, y = torch.randn(*shape, classes, generator=chance), (most[..., 0] * classes).long()
    elif kind is TOKENS:
        outputs, y = torch.randn(*shape, classes, 6, generator=chance), (most * classes).long()
        y[torch.rand(*shape, 6, generator=chance) < 0.3] = IGNORED
    else:
        outputs = torch.randn(*shape, 6, generator=chance)
        y = (most > 0.6).float() if kind is MULTI_LABEL else most
    outputs = outputs.mul(8).round().div(8)  # ties
    return predictions(outputs, y, kind, COUNTS)


def of(peer: int, made: Predictions) -> tuple[Tensor, Tensor]:
    """A peer's outputs and targets, as torchmetrics takes them."""
    outputs, y = made.outputs[peer, : COUNTS[peer]], made.targets[peer, : COUNTS[peer]]
    return outputs, y.long() if made.kind is MULTI_LABEL else y


def reference(name: str, made: Predictions, peer: int) -> float:
    from torchmetrics.functional import classification as known
    from torchmetrics.functional import mean_absolute_error, mean_squared_error
    from torchmetrics.functional.text import perplexity

    outputs, y = of(peer, made)
    width: dict[str, Any] = {"num_classes": outputs.shape[1], "ignore_index": IGNORED}
    many = {"num_labels": outputs.shape[1]}
    by_kind: dict[tuple[str, str], Callable[[], Any]] = {
        ("accuracy", "any"): lambda: 100 * known.multiclass_accuracy(outputs, y, average="micro", **width),
        ("f1", "any"): lambda: 100 * known.multiclass_f1_score(outputs, y, average="macro", **width),
        ("auroc", "any"): lambda: (
            100 * known.multiclass_auroc(outputs.double().softmax(1), y, average="macro", **width)
        ),
        ("f1", "multi-label"): lambda: 100 * known.multilabel_f1_score(outputs.sigmoid(), y, average="micro", **many),
        ("auroc", "multi-label"): lambda: (
            100 * known.multilabel_auroc(outputs.double().sigmoid(), y, average="macro", **many)
        ),
        ("perplexity", "tokens"): lambda: perplexity(outputs.mT, y, ignore_index=IGNORED),
        ("mse", "regression"): lambda: mean_squared_error(outputs, y),
        ("mae", "regression"): lambda: mean_absolute_error(outputs, y),
    }
    return float(by_kind[(name, made.kind.name) if (name, made.kind.name) in by_kind else (name, "any")]())


@pytest.mark.parametrize(
    ("name", "kind", "classes"),
    [
        *[(name, kind, c) for name in ("accuracy", "f1", "auroc") for kind in (CLASSIFICATION, TOKENS) for c in (2, 3)],
        ("perplexity", TOKENS, 4),
        ("f1", MULTI_LABEL, 6),
        ("auroc", MULTI_LABEL, 6),
        ("mse", REGRESSION, 6),
        ("mae", REGRESSION, 6),
    ],
)
def test_it_equals_torchmetrics(name: str, kind: TaskKind, classes: int) -> None:
    made = drawn(kind, classes)
    found = score_metrics.get(name)(made)
    assert found.dtype == torch.float64
    expected = [reference(name, made, peer) for peer in range(len(COUNTS))]
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


def test_perplexity_is_the_exponential_of_the_loss_of_all_tokens_that_count() -> None:
    made = drawn(CLASSIFICATION)
    mean = (made.losses.double() * made.mask).sum(1) / made.mask.sum(1)
    assert torch.allclose(score_metrics.get("perplexity")(made), mean.exp())


def test_the_loss_is_a_mean_over_samples_and_the_accuracy_one_over_tokens() -> None:
    outputs = torch.zeros(1, 2, 2, 4)
    outputs[:, :, 1] = 1.0  # class 1 is predicted everywhere
    y = torch.tensor([[[1, IGNORED, IGNORED, IGNORED], [0, 0, 0, 0]]])
    made = predictions(outputs, y, TOKENS, [2])
    assert score_metrics.get("accuracy")(made).tolist() == [20.0]  # 1 of 5 tokens
    right, wrong = (float(x) for x in torch.nn.functional.softplus(torch.tensor([-1.0, 1.0])))
    assert score_metrics.get("loss")(made).tolist() == pytest.approx([(right + wrong) / 2])
    assert score_metrics.get("perplexity")(made).log().tolist() == pytest.approx([(right + 4 * wrong) / 5])


def test_what_is_undefined_is_nan_for_that_peer_only() -> None:
    outputs = torch.randn(2, 3, 2)
    one_class = predictions(outputs, torch.tensor([[1, 1, 1], [0, 1, 0]]), CLASSIFICATION, [3, 3])
    assert score_metrics.get("auroc")(one_class).isnan().tolist() == [True, False]
    assert not score_metrics.get("f1")(one_class).isnan().any()
    labels = torch.zeros(2, 3, 2)
    labels[1, 0, 0] = 1
    no_label = predictions(outputs, labels, MULTI_LABEL, [3, 3])
    for name in ("f1", "auroc"):
        assert score_metrics.get(name)(no_label).isnan().tolist() == [True, False]
    words = torch.full((2, 3, 4), IGNORED)
    words[1, 0, 0] = 1
    nothing = predictions(torch.randn(2, 3, 2, 4), words, TOKENS, [3, 3])
    for name in ("accuracy", "perplexity", "f1"):
        assert score_metrics.get(name)(nothing).isnan().tolist() == [True, False]
