"""Metrics that score models on test samples: from the outputs and targets of many peers, one number per peer.

The headline metric of a run is one of these or a user's function. It leads tables, comparisons and early stopping.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from homophily.data.task_kinds import CLASSIFICATION, MULTI_LABEL, REGRESSION, TASK_KINDS, TOKENS, TaskKind, counted
from homophily.errors import UserError
from homophily.plugins.registry import Registry
from homophily.runs.headline import ACCURACY, MSE, Headline
from homophily.training.losses import masked_mean, squared_error


@dataclass(frozen=True)
class Predictions:
    """The outputs of P models for n samples each, and what they should be."""

    outputs: Tensor  # [P, n, ...]
    targets: Tensor  # [P, n, ...]
    mask: Tensor  # [P, n] float64: 1 for a peer's samples, 0 for the padding of peers that have fewer
    losses: Tensor  # [P, n]
    kind: TaskKind

    @property
    def counted(self) -> Tensor:
        """Which targets count: [P, n] or, for classes of positions, [P, n, ...]."""
        inside = self.mask > 0
        if self.kind is not TOKENS:
            return inside
        return inside.view(*inside.shape, *[1] * (self.targets.dim() - 2)) & counted(self.targets)


ScoreMetric = Callable[[Predictions], Tensor]
"""Predictions -> [P] float64; NaN: undefined for these samples."""

score_metrics: Registry[ScoreMetric] = Registry("headline metric", passed=("predictions",))


@dataclass(frozen=True)
class _Declaration:
    headline: Headline
    kinds: tuple[TaskKind, ...]  # that the metric can score


def scores(headline: Headline, *kinds: TaskKind) -> Callable[[ScoreMetric], ScoreMetric]:
    """Decorator: register a metric under its name, and declare how it is read and which kinds of tasks it can score."""

    def declare(metric: ScoreMetric) -> ScoreMetric:
        metric.declared = _Declaration(headline, kinds)  # type: ignore[attr-defined]
        return score_metrics(headline.name)(metric)

    return declare


@dataclass(frozen=True)
class HeadlineMetric:
    """The metric that leads a run's results, with how it is read and computed."""

    headline: Headline
    compute: ScoreMetric
    shaped: bool = True  # outputs must have the shape that the kind of task asks for


def registered_metric(name: str, kind: TaskKind, key: str = "headline.name") -> HeadlineMetric:
    """The registered metric ``name``, to score a kind of task. key: the config key that names it."""
    metric = score_metrics.get(name)
    declared = _declared(metric)
    if kind not in declared.kinds:
        allowed = ", ".join(metrics_of(kind))
        raise UserError(f"{key} = {name!r}: cannot score {kind.name} targets; these can: {allowed}")
    return HeadlineMetric(declared.headline, metric, shaped=metric is not loss)


def metrics_of(kind: TaskKind) -> list[str]:
    """The names of the registered metrics that can score a kind of task."""
    return [name for name in score_metrics if kind in _declared(score_metrics.get(name)).kinds]


def _declared(metric: ScoreMetric) -> _Declaration:
    return metric.declared  # type: ignore[attr-defined, no-any-return]


PeerMetric = Callable[[Tensor, Tensor], float | Tensor]
"""A user's metric: (outputs [n, ...], targets [n, ...]) of one peer -> a number."""


def peer_by_peer(name: str, metric: PeerMetric) -> ScoreMetric:
    """A user's metric as one of all peers; a peer whose outputs are not finite gets NaN. Labels are int64.

    name: what an error message calls it.
    """

    def compute(predictions: Predictions) -> Tensor:
        targets = predictions.targets.long() if predictions.kind is MULTI_LABEL else predictions.targets
        numbers = []
        for outputs, mine, count in zip(predictions.outputs, targets, predictions.mask.sum(1).tolist(), strict=True):
            finite = bool(outputs.isfinite().all())
            numbers.append(_number(name, metric, outputs[: int(count)], mine[: int(count)]) if finite else math.nan)
        return torch.tensor(numbers, dtype=torch.float64, device=targets.device)

    return compute


def _number(name: str, metric: PeerMetric, outputs: Tensor, targets: Tensor) -> float:
    got = f"outputs {list(outputs.shape)} and targets {list(targets.shape)}"
    try:
        found = metric(outputs, targets)
    except Exception as error:  # a user's metric may raise anything; the message shows its inputs
        raise UserError(f"{name} fails for {got}: {type(error).__name__}: {error}") from error
    try:
        return float(found)
    except (TypeError, ValueError, RuntimeError) as error:
        form = f"a tensor {list(found.shape)}" if isinstance(found, Tensor) else repr(found)
        raise UserError(f"{name} gives {form}, not a number, for {got}") from error


@scores(Headline("loss", "loss", "lower"), *TASK_KINDS.values())
def loss(predictions: Predictions) -> Tensor:
    """The training loss, mean over samples."""
    return masked_mean(predictions.losses, predictions.mask)


@scores(ACCURACY, CLASSIFICATION, TOKENS)
def accuracy(predictions: Predictions) -> Tensor:
    """Percent of the classes that are predicted correctly: of samples, or of all positions that count."""
    right = 100.0 * (predictions.outputs.argmax(2) == predictions.targets).to(torch.float64)
    return _mean_of_counted(right, predictions)


@scores(Headline("perplexity", "perplexity", "lower"), CLASSIFICATION, TOKENS)
def perplexity(predictions: Predictions) -> Tensor:
    """Exponential of the mean cross-entropy over samples, or over all positions that count."""
    outputs, targets = predictions.outputs.flatten(0, 1), predictions.targets.flatten(0, 1)
    each = F.cross_entropy(outputs, targets, reduction="none").view(predictions.targets.shape)
    return _mean_of_counted(each, predictions).exp()


@scores(Headline("f1", "F1, %", "higher", percent=True), CLASSIFICATION, TOKENS, MULTI_LABEL)
def f1(predictions: Predictions) -> Tensor:
    """F1 in percent: of all labels together (micro) if multi-label, else the mean over classes (macro)."""
    if predictions.kind is MULTI_LABEL:
        inside = predictions.counted[..., None]
        predicted, true = (predictions.outputs > 0) & inside, (predictions.targets > 0) & inside
        right, either = (part.sum((1, 2)).double() for part in (predicted & true, predicted.int() + true.int()))
        # Without a true label F1 is undefined, whatever is predicted: it does not depend on the round.
        return torch.where(true.any(2).any(1), 200.0 * right / either, torch.nan)
    classes = predictions.outputs.shape[2]
    weight = predictions.counted.flatten(1).double()
    predicted, true = predictions.outputs.argmax(2).flatten(1), predictions.targets.flatten(1).clamp(min=0)

    def count(label: Tensor, weight: Tensor) -> Tensor:
        """[P, classes]"""
        return weight.new_zeros(len(label), classes).scatter_add(1, label, weight)

    right, either = count(true, weight * (predicted == true)), count(predicted, weight) + count(true, weight)
    return masked_mean(200.0 * right / either.clamp(min=1), (either > 0).double())


@scores(Headline("auroc", "AUROC, %", "higher", percent=True), CLASSIFICATION, TOKENS, MULTI_LABEL)
def auroc(predictions: Predictions) -> Tensor:
    """Area under the ROC curve in percent: the mean over labels, or over classes against the rest.

    A label that all of a peer's samples have, or none, is left out; if no label is left, it is undefined.
    """
    outputs, targets = predictions.outputs, predictions.targets
    if predictions.kind is MULTI_LABEL:
        areas = [_area(outputs[..., k], targets[..., k] > 0, predictions.counted) for k in range(targets.shape[2])]
    else:
        inside = predictions.counted.flatten(1)
        probability = outputs.double().softmax(2) if outputs.shape[2] > 2 else outputs - outputs.flip(2)
        columns = range(outputs.shape[2]) if outputs.shape[2] != 2 else (1,)  # of two classes, both areas are equal
        areas = [_area(probability[:, :, k].flatten(1), (targets == k).flatten(1), inside) for k in columns]
    table = torch.stack(areas, 1)
    return 100.0 * masked_mean(table, table.isfinite().double())


def _area(scores: Tensor, positive: Tensor, inside: Tensor) -> Tensor:
    """[P]: the share of pairs in which the positive sample has the higher score (ties: half); NaN: there is no pair.

    scores, positive, inside: [P, m]; inside: which entries count.
    """
    ordered = torch.where(inside, scores, math.inf).sort(1).values
    ranks = sum(torch.searchsorted(ordered, scores.contiguous(), right=right) for right in (False, True)) + 1
    positive = positive & inside
    positives, negatives = positive.sum(1).double(), (inside & ~positive).sum(1).double()
    above = (0.5 * ranks * positive).sum(1, dtype=torch.float64) - positives * (positives + 1) / 2
    return above / (positives * negatives)


@scores(MSE, REGRESSION)
def mse(predictions: Predictions) -> Tensor:
    """The mean squared error."""
    errors = squared_error(predictions.outputs, predictions.targets)
    return masked_mean(errors.flatten(2).mean(2), predictions.mask)


@scores(Headline("mae", "mean absolute error", "lower"), REGRESSION)
def mae(predictions: Predictions) -> Tensor:
    """The mean absolute error."""
    errors = (predictions.outputs.reshape(predictions.targets.shape) - predictions.targets).abs()
    return masked_mean(errors.flatten(2).mean(2), predictions.mask)


def _mean_of_counted(values: Tensor, predictions: Predictions) -> Tensor:
    """[P]: the mean over all targets of a peer that count. values: in the shape of the targets."""
    return masked_mean(values.flatten(1), predictions.counted.flatten(1).to(torch.float64))
