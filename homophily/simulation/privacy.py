"""The promise of [privacy] for a run: what it refuses, the noise of every peer, and what is spent after some rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from homophily.config.privacy import Privacy
from homophily.config.schema import Config
from homophily.data import FederatedData
from homophily.data.sources import sources
from homophily.errors import UnsuitableError, UserError
from homophily.methods import Method
from homophily.methods.base import metric_cost
from homophily.methods.server import ServerMethod
from homophily.privacy.accountant import NOTHING, Budget, Noise, epsilon_of, solve
from homophily.privacy.draws import Draws
from homophily.privacy.ledger import Ledger
from homophily.privacy.loss_distribution import Release
from homophily.runs.fields import RoundMetrics
from homophily.simulation.shards import ONE_PROCESS, Shards
from homophily.training.private import OVERFLOW, Private, batch_room
from homophily.training.task import Task
from homophily.training.torch_optimisers import EVERY_ENGINE

_SEARCH = 12  # halvings in the search for an epsilon, or a number of samples, that would do
_TRIED = 8  # samples on which a transform is tried
_FOLLOWED = 8  # budgets whose epsilon is computed after every round, which takes some 20 ms each


@dataclass(frozen=True)
class NoiseSource:
    """Where noise and batches come from, and the noise of what a real peer released before it was restarted."""

    draws: Draws
    earlier: Noise = NOTHING


@dataclass(frozen=True)
class PeerBudget:
    """Peers with equal budgets."""

    budget: Budget  # of the whole run
    noise: Noise
    rounds: int

    @property
    def of_round(self) -> Release:
        """What the models of one round release."""
        budget, noise = self.budget, self.noise.training
        assert noise is not None
        return Release(noise, budget.rate, budget.steps // self.rounds, budget.group)

    @property
    def of_fingerprint(self) -> Release | None:
        """What one fingerprint releases; None: there are none."""
        noise = self.noise.fingerprint
        return None if noise is None else Release(noise, group=self.budget.group)

    def spent(self, rounds: int, fingerprints: int) -> float:
        released = [self.of_round] * rounds + (
            [] if self.of_fingerprint is None else [self.of_fingerprint] * fingerprints
        )
        return epsilon_of(released, self.budget.delta)


@dataclass(frozen=True)
class PrivacyAccount:
    """What the peers of a run promise, and what they have spent."""

    promise: Privacy
    peers: tuple[PeerBudget, ...]  # one for each budget that some peer has
    fingerprints: Callable[[int], int]  # how many each peer has released after so many rounds
    ledger: Ledger | None = None  # of a real peer, which has written down what it has released

    @property
    def fingerprint_noise(self) -> float:
        """Of every fingerprint, over its sensitivity. It follows from the promise, so it is the same for all peers."""
        noise = self.peers[0].noise.fingerprint
        assert noise is not None
        return noise

    def summary(self, rounds: int) -> dict[str, Any]:
        """What the summary of a run says after so many rounds; of several peers the one that has spent most."""
        return {
            "epsilon_promised": self.promise.epsilon,
            "epsilon_spent": self._spent(rounds),
            "delta": self.promise.delta,
            "unit": self.promise.unit,
            "noise": max(some.noise.training or 0.0 for some in self.peers),
            "fingerprint_noise": self.peers[0].noise.fingerprint,
        }

    def metrics(self, rounds: int) -> RoundMetrics:
        """What the metrics of a round say; nothing if there are so many budgets that it would slow the rounds down."""
        known = self.ledger is not None or len(self.peers) <= _FOLLOWED
        return {"epsilon_spent": self._spent(rounds)} if known else {}

    def _spent(self, rounds: int) -> float:
        if self.ledger is not None:
            return self.ledger.spent
        return max(some.spent(rounds, self.fingerprints(rounds)) for some in self.peers)


def check_private(config: Config, method: Method | ServerMethod, task: Task) -> None:
    """Raise a UserError if a run lets out something that its account does not cover."""
    for refused, why in _method_refusals(config.method.name, method):
        if refused:
            raise UnsuitableError(f"privacy: {why}")
    for refused, why in _refusals(config, task):
        if refused:
            raise UserError(f"privacy: {why}")


def _method_refusals(name: str, method: Method | ServerMethod) -> list[tuple[bool, str]]:
    """What the method lets out; another method may not."""
    server = isinstance(method, ServerMethod)
    return [
        (server, f"method = {name!r}: a server weights models by exact sample counts or by losses on private data"),
        (
            not isinstance(method, ServerMethod) and metric_cost(method).losses is not None,
            f"method = {name!r} compares losses on private data, and its choices show them; use a metric of models, "
            "such as method.metric = 'weights'",
        ),
        (
            not isinstance(method, ServerMethod)
            and method.uses_fingerprints
            and type(method).on_released is Method.on_released,
            f"method = {name!r} uses fingerprints without noise; it must define on_released, which gets private ones",
        ),
    ]


def _refusals(config: Config, task: Task) -> list[tuple[bool, str]]:
    buffers = bool(task.layout.kept) or not all(column.parameter for column in task.layout.columns)
    return [
        (config.merge == "fedavg", "merge = 'fedavg' weights by exact sample counts, which are not released"),
        (config.merge_guard is not None, "merge_guard chooses by losses on private data, and later models show it"),
        (config.training.patience > 0, "training.patience stops by losses on private data, and others see the stop"),
        (task.coupled, "this network couples the samples of a batch (BatchNorm), or draws random numbers itself, so "
         "a sample has no gradient of its own; use GroupNorm or LayerNorm"),
        (buffers, "this network has buffers that change in training, and they hold statistics without noise"),
        (
            config.training.optimizer not in EVERY_ENGINE,
            f"training.optimizer must be one of {', '.join(EVERY_ENGINE)}",
        ),
        (_mixes(task), "data.transform mixes the samples of a batch, so a sample has no gradient of its own"),
        (
            task.data.missing is not None,
            "missing values are replaced by a peer's own means; give data.scale with `fill`, which all peers agree on",
        ),
    ]  # fmt: skip


def _mixes(task: Task) -> bool:
    """Whether a sample is transformed differently in the company of others."""
    if task.transform is None:
        return False
    x = task.data.train.x[:_TRIED]
    keys = torch.arange(len(x), device=x.device)
    together = task.transform(x, keys)
    alone = torch.cat([task.transform(x[i : i + 1], keys[i : i + 1]) for i in range(len(x))])
    return not torch.allclose(together, alone, rtol=1e-4, atol=1e-6)


def private_training(
    config: Config,
    promise: Privacy,
    fingerprints: Callable[[int], int],
    task: Task,
    source: NoiseSource,
    shards: Shards,
) -> tuple[Private, PrivacyAccount]:
    """How the peers of a task train privately, and the account of the peers of all processes.

    Raises a UserError if that needs too much noise.
    """
    batch, rounds = config.training.batch, config.rounds
    covered = promise.model_copy(update={"delta": promise.delta * (1 - OVERFLOW)})
    owned = task.counts
    epochs = torch.tensor([task.epochs_in_round(torch.tensor([peer])) for peer in range(len(owned))])
    counts = torch.full_like(owned, promise.samples) if promise.samples else owned
    found: dict[tuple[int, int], PeerBudget] = {}
    room = 0
    # Peers with equal samples and epochs have equal budgets; those of other processes count too.
    different = shards.gathered(torch.stack([counts, epochs, owned], 1)).unique(dim=0)
    check_delta(promise.delta, int(different[:, [0, 2]].max()))
    for samples, each, own in different.tolist():
        if (samples, each) not in found:
            some = peers_with(covered, batch, samples, rounds * each, rounds, fingerprints(rounds), source.earlier)
            found[samples, each] = some
        budget = found[samples, each].budget
        room = max(
            room,
            batch_room(
                max(samples, own) + promise.group, budget.rate, budget.steps, promise.epsilon, promise.delta * OVERFLOW
            ),
        )
    _check_fingerprints(covered, fingerprints(rounds), next(iter(found.values())).noise.fingerprint)
    for (samples, each), some in found.items():
        if (some.noise.training or 0.0) > promise.max_noise:
            raise UserError(_too_much(covered, batch, samples, rounds, each, fingerprints(rounds), some.noise))
    peers = [found[pair] for pair in zip(counts.tolist(), epochs.tolist(), strict=True)]
    budgets = [some.budget for some in peers]
    private = Private(
        promise.clip,
        torch.tensor([some.noise.training for some in peers], dtype=torch.float64),
        torch.tensor([budget.rate for budget in budgets], dtype=torch.float64),
        torch.tensor([min(batch, count) for count in counts.tolist()], dtype=torch.float64),
        torch.tensor([_steps(batch, count) for count in counts.tolist()]),
        room,
        source.draws,
    )
    stated = covered.model_copy(update={"delta": promise.delta})
    return private, PrivacyAccount(stated, tuple(set(found.values())), fingerprints)


def check_delta(delta: float, most: int) -> None:
    """Refuse a delta with which a peer could release samples as they are. most: the samples of the largest peer."""
    if delta >= 1 / most:
        raise UserError(
            f"privacy: delta = {delta:g} must be below 1 / {most}, the samples of a peer, since a release of one "
            f"sample in {most} would keep it"
        )


def released_fingerprints(method: Method | ServerMethod) -> Callable[[int], int]:
    """How many fingerprints a peer has released after so many rounds."""
    if isinstance(method, ServerMethod) or not method.uses_fingerprints:
        return lambda rounds: 0
    renew = method.renew
    return lambda rounds: min(rounds, 1 + ((rounds - 1) // renew if renew else 0))


def _steps(batch: int, samples: int) -> int:
    """Steps per epoch, after which a sample was drawn once in the mean."""
    return max(1, round(samples / batch))


def peers_with(
    promise: Privacy,
    batch: int,
    samples: int,
    epochs: int,
    rounds: int,
    fingerprints: int,
    earlier: Noise = NOTHING,
) -> PeerBudget:
    """The budget and the noise of peers with so many samples. epochs, fingerprints: in all rounds; earlier: see
    ``solve``."""
    rate = min(1.0, batch / samples)
    budget = Budget.of(promise, rate, epochs * _steps(batch, samples), fingerprints)
    return PeerBudget(budget, solve(budget, earlier), rounds)


def _check_fingerprints(promise: Privacy, fingerprints: int, noise: float | None) -> None:
    """Refuse fingerprints with too much noise, and say what would do."""
    if noise is None or noise <= promise.max_noise:
        return

    def enough(factor: float, times: int) -> bool:
        found = solve(Budget(promise.share * promise.epsilon * factor, promise.delta, fingerprints=times,
                             group=promise.group)).fingerprint  # fmt: skip
        return found is not None and found <= promise.max_noise

    epsilon = _least(lambda factor: enough(factor, fingerprints), 1e4)
    would = [
        *([f"epsilon = {promise.epsilon * epsilon:.3g}"] if epsilon else []),
        *(["method.renew = 0"] if fingerprints > 1 and enough(1.0, 1) else []),
        "a larger privacy.share",
    ]
    raise UserError(
        f"privacy.epsilon = {promise.epsilon:g}: {fingerprints} fingerprints per peer, which may cost "
        f"{promise.share:g} of it (privacy.share), need noise of {noise:.3g} times what a sample contributes, above "
        f"privacy.max_noise = {promise.max_noise:g}; what would do: {' or '.join(would)}"
    )


def _too_much(
    promise: Privacy, batch: int, samples: int, rounds: int, epochs: int, fingerprints: int, noise: Noise
) -> str:
    """The message that the noise is too large, with the epsilon and the number of samples that would do."""

    def enough(epsilon: float, samples: int) -> bool:
        asked = promise.model_copy(update={"epsilon": epsilon})
        found = peers_with(asked, batch, samples, rounds * epochs, rounds, fingerprints).noise.training
        return found is not None and found <= promise.max_noise

    epsilon = _least(lambda factor: enough(promise.epsilon * factor, samples), 1e4)
    more = _least(lambda factor: enough(promise.epsilon, int(samples * factor)), 1e4)
    would = [
        *([f"epsilon = {promise.epsilon * epsilon:.3g}"] if epsilon else []),
        *([f"{int(samples * more) + 1:,} samples per peer"] if more else []),
        "fewer rounds",
    ]
    return (
        f"privacy.epsilon = {promise.epsilon:g}: {rounds * epochs:,} epochs in all with {samples:,} samples per peer "
        f"and batches of {batch:,} need noise of {noise.training:.3g} times the clip, above privacy.max_noise = "
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


def check_own_data(config: Config, promise: Privacy, given_data: bool, data: FederatedData) -> None:
    """Refuse data whose constants or division into training and test samples would depend on single samples, and
    persons that are not known, or have too many samples. given_data: it was given in Python."""
    if not given_data and config.data.name in sources:
        return
    persons = promise.samples_per_person
    most = [0] if data.most_of_one_person is None else data.most_of_one_person.tolist()
    lacking = _own_data_lacks(config, data, unknown=persons is not None and 0 in most)
    if lacking:
        raise UserError(f"privacy: your own data needs {'; and '.join(lacking)}")
    worst = max(range(len(most)), key=most.__getitem__)
    if persons is not None and most[worst] > persons:
        raise UserError(
            f"{data.label(worst)} has {most[worst]} training samples of one person, above privacy.samples_per_person = "
            f"{persons}; leave some of them out, or promise less with a larger number"
        )


def _own_data_lacks(config: Config, data: FederatedData, unknown: bool) -> list[str]:
    """The keys that own data must have under [privacy] and lacks, with the reasons. unknown: so are its persons."""
    out = []
    unscaled = config.data.scale is None
    if unscaled or data.own_constants:
        keys = [*data.own_constants, *(["fill"] if unscaled and data.preparation.fill is not None else [])]
        named = f" with {' and '.join(keys)}" if keys else ""
        instead = "" if config.data.normalise is None else " instead of data.normalise"
        out.append(
            f"data.scale{named}{instead}, since constants would be computed from the peers' samples (homophily scale "
            "computes them from a public sample)"
        )
    if data.drawn:
        out.append(
            "test and validation samples (data.split, or test_x) and no data.train, since training samples would be "
            "drawn from the peers' samples, and one sample more would change which others are drawn"
        )
    if unknown:
        out.append(
            "data.person, or person in the .npz file or in PeerData, since privacy.unit = 'person' and it is not known "
            "whose the samples are"
        )
    return out


def with_privacy(
    config: Config,
    method: Method | ServerMethod,
    task: Task,
    given_data: bool,
    source: NoiseSource,
    shards: Shards = ONE_PROCESS,
) -> tuple[Task, PrivacyAccount | None]:
    """The task as it is trained under [privacy], and its account.

    given_data: the data was given in Python; shards: the processes that have the peers.
    """
    if config.privacy is None:
        return task, None
    check_own_data(config, config.privacy, given_data, task.data)
    check_private(config, method, task)
    private, account = private_training(config, config.privacy, released_fingerprints(method), task, source, shards)
    return replace(task, private=private), account


def released_counts(config: Config, counts: Tensor) -> Tensor:
    """The sample counts [N] that peers send: under [privacy] all are 1, since exact ones are not released."""
    return counts if config.privacy is None else torch.ones_like(counts)
