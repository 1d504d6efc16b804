"""The promise of [privacy] for a run: what it refuses, the noise of every peer, and what is spent after some rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from homophily.config.privacy import Privacy
from homophily.config.schema import Config
from homophily.errors import UserError
from homophily.methods import Method
from homophily.methods.base import metric_cost
from homophily.methods.server import ServerMethod
from homophily.privacy.accountant import Budget, Noise, epsilon_of, solve
from homophily.training.private import OVERFLOW, Private, batch_room
from homophily.training.task import Task
from homophily.training.torch_optimisers import EVERY_ENGINE

_SEARCH = 12  # halvings in the search for an epsilon, or a number of samples, that would do


@dataclass(frozen=True)
class _Peers:
    """Peers with equal budgets."""

    budget: Budget  # of the whole run
    noise: Noise
    rounds: int

    def spent(self, rounds: int, fingerprints: int) -> float:
        budget = self.budget
        steps = budget.steps // self.rounds * rounds
        return epsilon_of(self.noise.releases(budget.rate, steps, fingerprints, budget.group), budget.delta)


@dataclass(frozen=True)
class PrivacyAccount:
    """What the peers of a run promise, and what they have spent."""

    promise: Privacy
    peers: tuple[_Peers, ...]  # one for each budget that some peer has
    fingerprints: Callable[[int], int]  # how many each peer has released after so many rounds

    def summary(self, rounds: int) -> dict[str, Any]:
        """What the summary of a run says after so many rounds; of several peers the one that has spent most."""
        spent = max(some.spent(rounds, self.fingerprints(rounds)) for some in self.peers)
        return {
            "epsilon_promised": self.promise.epsilon,
            "epsilon_spent": round(min(spent, self.promise.epsilon), 4),
            "delta": self.promise.delta,
            "unit": self.promise.unit,
            "noise": max(some.noise.training or 0.0 for some in self.peers),
        }


def check_private(config: Config, method: Method | ServerMethod, task: Task) -> None:
    """Raise a UserError if a run lets out something that its account does not cover."""
    if config.privacy is None:
        return
    for refused, why in _refusals(config, method, task):
        if refused:
            raise UserError(f"privacy: {why}")


def _refusals(config: Config, method: Method | ServerMethod, task: Task) -> list[tuple[bool, str]]:
    server = isinstance(method, ServerMethod)
    name = config.method.name
    buffers = bool(task.layout.kept) or not all(column.parameter for column in task.layout.columns)
    least = config.privacy.samples if config.privacy and config.privacy.samples else int(task.counts.min())
    delta = config.privacy.delta if config.privacy else 0.0
    return [
        (server, f"method = {name!r}: a server weights models by exact sample counts or by losses on private data"),
        (
            not isinstance(method, ServerMethod) and metric_cost(method).losses is not None,
            f"method = {name!r} compares losses on private data, and its choices show them; use a metric of models, "
            "such as method.metric = 'weights'",
        ),
        (
            not isinstance(method, ServerMethod) and method.uses_fingerprints,
            f"method = {name!r}: its fingerprints have no noise yet, so they are not covered by the promise",
        ),
        (config.merge == "fedavg", "merge = 'fedavg' weights by exact sample counts, which are not released"),
        (config.training.patience > 0, "training.patience stops by losses on private data, and others see the stop"),
        (task.coupled, "this network couples the samples of a batch (BatchNorm), or draws random numbers itself, so "
         "a sample has no gradient of its own; use GroupNorm or LayerNorm"),
        (buffers, "this network has buffers that change in training, and they hold statistics without noise"),
        (
            config.training.optimizer not in EVERY_ENGINE,
            f"training.optimizer must be one of {', '.join(EVERY_ENGINE)}",
        ),
        (
            task.data.missing is not None,
            "missing values are replaced by a peer's own means; give data.scale with `fill`, which all peers agree on",
        ),
        (
            delta >= 1 / least,
            f"delta = {delta:g} must be below 1 / {least}, the samples of a peer, since a release of one sample in "
            f"{least} would keep it",
        ),
    ]  # fmt: skip


def private_training(
    config: Config, promise: Privacy, fingerprints: Callable[[int], int], task: Task
) -> tuple[Private, PrivacyAccount]:
    """How the peers of a task train privately, and their account. Raises a UserError if that needs too much noise."""
    batch, rounds = config.training.batch, config.rounds
    covered = promise.model_copy(update={"delta": promise.delta * (1 - OVERFLOW)})
    counts = [promise.samples or count for count in task.counts.tolist()]
    epochs = [task.epochs_in_round(torch.tensor([peer])) for peer in range(len(counts))]
    peers = [
        _peers(covered, batch, samples, rounds * each, rounds, fingerprints(rounds))
        for samples, each in zip(counts, epochs, strict=True)
    ]
    for samples, each, some in zip(counts, epochs, peers, strict=True):
        if (some.noise.training or 0.0) > promise.max_noise:
            raise UserError(_too_much(covered, batch, samples, rounds, each, fingerprints(rounds), some.noise))
    budgets = [some.budget for some in peers]
    room = max(
        batch_room(max(count, own) + promise.group, budget.rate, budget.steps, promise.delta * OVERFLOW)
        for count, own, budget in zip(counts, task.counts.tolist(), budgets, strict=True)
    )
    private = Private(
        promise.clip,
        torch.tensor([some.noise.training for some in peers], dtype=torch.float64),
        torch.tensor([budget.rate for budget in budgets], dtype=torch.float64),
        torch.tensor([min(batch, count) for count in counts], dtype=torch.float64),
        torch.tensor([_steps(batch, count) for count in counts]),
        room,
    )
    return private, PrivacyAccount(covered.model_copy(update={"delta": promise.delta}), tuple(set(peers)), fingerprints)


def released_fingerprints(method: Method | ServerMethod) -> Callable[[int], int]:
    """How many fingerprints a peer has released after so many rounds."""
    if isinstance(method, ServerMethod) or not method.uses_fingerprints:
        return lambda rounds: 0
    renew = method.renew
    return lambda rounds: 1 + ((rounds - 1) // renew if renew else 0)


def _steps(batch: int, samples: int) -> int:
    """Steps per epoch, after which a sample was drawn once in the mean."""
    return max(1, round(samples / batch))


def _peers(promise: Privacy, batch: int, samples: int, epochs: int, rounds: int, fingerprints: int) -> _Peers:
    rate = min(1.0, batch / samples)
    budget = Budget.of(promise, rate, epochs * _steps(batch, samples), fingerprints)
    return _Peers(budget, solve(budget), rounds)


def _too_much(
    promise: Privacy, batch: int, samples: int, rounds: int, epochs: int, fingerprints: int, noise: Noise
) -> str:
    """The message that the noise is too large, with the epsilon and the number of samples that would do."""

    def enough(epsilon: float, samples: int) -> bool:
        asked = promise.model_copy(update={"epsilon": epsilon})
        found = _peers(asked, batch, samples, rounds * epochs, rounds, fingerprints).noise.training
        return found is not None and found <= promise.max_noise

    epsilon = _least(lambda factor: enough(promise.epsilon * factor, samples), 1e4)
    more = _least(lambda factor: enough(promise.epsilon, int(samples * factor)), 1e4)
    would = [
        *([f"epsilon = {promise.epsilon * epsilon:.3g}"] if epsilon else []),
        *([f"{int(samples * more) + 1} samples per peer"] if more else []),
        "fewer rounds",
    ]
    return (
        f"privacy.epsilon = {promise.epsilon:g}: {rounds} rounds of {epochs} epochs with {samples} samples per peer "
        f"and batches of {batch} need noise of {noise.training:.3g} times the clip, above privacy.max_noise = "
        f"{promise.max_noise:g}; what would do: {', '.join(would[:-1])} or {would[-1]}"
    )


def _least(enough: Callable[[float], bool], most: float) -> float | None:
    """The least factor, roughly and from above, at which something is enough; None if none up to ``most`` is."""
    if not enough(most):
        return None
    low, high = 1.0, most
    for _ in range(_SEARCH):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high * 1.01


def with_privacy(config: Config, method: Method | ServerMethod, task: Task) -> tuple[Task, PrivacyAccount | None]:
    """The task as it is trained under [privacy], and its account."""
    check_private(config, method, task)
    if config.privacy is None:
        return task, None
    private, account = private_training(config, config.privacy, released_fingerprints(method), task)
    return replace(task, private=private), account


def released_counts(config: Config, counts: Tensor) -> Tensor:
    """The sample counts [N] that peers send: under [privacy] all are 1, since exact ones are not released."""
    return counts if config.privacy is None else torch.ones_like(counts)
