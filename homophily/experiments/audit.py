"""The audit of a run: its mechanisms are run again with canaries, and an attacker tries to find them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from homophily.atomic_io import write_json
from homophily.config.privacy import Privacy
from homophily.data.given import Peers, given_peers
from homophily.data.transforms import Transform
from homophily.errors import UserError
from homophily.experiments.canaries import (
    Copies,
    MakeEngine,
    Scores,
    copies,
    in_fingerprints,
    in_models,
    in_private_fingerprints,
    in_private_models,
    joined,
)
from homophily.experiments.runner import chosen_device, torch_settings, with_start
from homophily.methods import Method
from homophily.privacy.accountant import epsilon_of
from homophily.privacy.guesses import CONFIDENCE, Guesses
from homophily.privacy.loss_distribution import Release
from homophily.randomness import Purpose, word
from homophily.runs.reader import Run
from homophily.runs.writer import RunWriter
from homophily.simulation.configuration import over
from homophily.simulation.privacy import released_fingerprints
from homophily.simulation.rounds import Experiment
from homophily.simulation.setup import method_of, prepare
from homophily.simulation.user_objects import UserObjects
from homophily.training.losses import Loss
from homophily.training.one_by_one import OneByOne
from homophily.training.task import Engine, Task
from homophily.training.vectorised import Vectorised

FEWEST = 50  # canaries
_VALUES = 1 << 26  # of gradients of single samples that are computed at once, unless the run computes more
_DELTA = 1e-5  # at which the epsilon of a run without [privacy] is reported


@dataclass(frozen=True)
class Attack:
    """How well an attacker found canaries in one kind of release."""

    what: str  # "fingerprints" or "models"
    releases: int  # fingerprints, steps of private training, or rounds of training without privacy, of each peer
    guesses: int
    correct: int
    epsilon_account: float | None  # of these releases alone; None: no noise was added
    epsilon_lower: float  # what epsilon is at least, with the stated confidence
    seconds: float

    @property
    def passed(self) -> bool | None:
        """Whether the attack contradicts the account; None: there is no account."""
        return None if self.epsilon_account is None else self.epsilon_lower <= self.epsilon_account


@dataclass(frozen=True)
class Audit:
    """The attacks on what the peers of a run release."""

    run: str
    epsilon_promised: float | None  # None: the run has no [privacy]
    delta: float
    unit: str
    confidence: float
    canaries: int
    attacks: list[Attack]

    @property
    def passed(self) -> bool | None:
        """Whether no attack contradicts the account; None: the run promises nothing."""
        return None if self.epsilon_promised is None else all(attack.passed for attack in self.attacks)

    def as_dict(self) -> dict[str, Any]:
        """What ``homophily audit --json`` prints."""
        attacks = [{**asdict(attack), "passed": attack.passed} for attack in self.attacks]
        return {**asdict(self), "attacks": attacks, "passed": self.passed}


def audit(
    path: str | Path,
    *,
    canaries: int = 1000,
    steps: int | None = None,
    model: nn.Module | None = None,
    data: Peers | None = None,
    loss: Loss | None = None,
    transform: Transform | Sequence[Transform] | None = None,
    method: Method | None = None,
    device: str = "auto",
) -> Audit:
    """Attack what the peers of a run release, with canaries, and bound epsilon from below.

    path: the folder of the run, which need not be finished; ``audit.json`` is written into it.
    canaries: the number of canaries, each in a copy of a peer; more give a sharper bound.
    steps: steps of private training that are attacked; None: those of the whole run.
    model, data, loss, transform, method: the objects that were passed to ``run``, again.
    device: as for ``run``.
    Raises UserError for bad input.
    """
    if canaries < FEWEST:
        raise UserError(f"canaries = {canaries}: must be at least {FEWEST}, since fewer guesses show nothing")
    if steps is not None and steps < 1:
        raise UserError(f"steps = {steps}: must be at least 1")
    found = Run(path)
    objects = UserObjects(model, given_peers(data), loss, method, {}, transform)
    given, chosen = with_start(RunWriter(found.path), objects), chosen_device(device)
    experiment, config, plan = prepare(found.config, given, chosen)
    if plan.engine == "stacked":
        experiment, config, plan = prepare(over(found.config, {"engine": "vectorised"}), given, chosen)

    def make(task: Task) -> Engine:
        if plan.engine == "one-by-one":
            return OneByOne(task)
        samples = task.private.room if task.private else task.settings.batch
        return Vectorised(task, max(plan.chunk, min(256, _VALUES // (task.layout.width * samples))))

    used, _ = method_of(config, given, experiment.task.data.peers)
    attacker = _Attacker(experiment, config.seed, released_fingerprints(used)(config.rounds), make, canaries)
    promise = config.privacy
    with torch_settings(config, plan, chosen):
        attacks = attacker.without_noise() if promise is None else attacker.with_noise(promise, steps)
    epsilon, delta, unit = (promise.epsilon, promise.delta, promise.unit) if promise else (None, _DELTA, "sample")
    result = Audit(str(found.path), epsilon, delta, unit, CONFIDENCE, canaries, attacks)
    write_json(found.path / "audit.json", result.as_dict())
    return result


@dataclass(frozen=True)
class _Attacker:
    """Attacks the releases of an experiment."""

    experiment: Experiment
    seed: int
    fingerprints: int  # that each peer releases
    make: MakeEngine
    canaries: int

    def without_noise(self) -> list[Attack]:
        task, rounds = self.experiment.task, self.experiment.rounds
        some = self._copies(torch.arange(task.data.peers), 1)
        attacks = []
        if self.fingerprints:
            attack = partial(in_fingerprints, seed=self.seed)
            attacks.append(self._attack("fingerprints", self.fingerprints, some, attack))
        attack = partial(in_models, start=self.experiment.start, make=self.make, rounds=rounds)
        return [*attacks, self._attack("models", rounds, some, attack)]

    def with_noise(self, promise: Privacy, steps: int | None) -> list[Attack]:
        """Attack copies of the peers with the most common number of samples, for whom one account holds."""
        task, account = self.experiment.task, self.experiment.account
        assert task.private is not None
        assert account is not None
        peers = (task.counts == task.counts.mode().values).nonzero()[:, 0]
        some, group, one = self._copies(peers, promise.group), promise.group, int(peers[0])
        taken = int(task.private.steps[one]) * task.epochs_in_round(peers[:1]) * self.experiment.rounds
        taken = min(taken, steps or taken)
        noise, attacks = account.peers[0].noise.fingerprint, []
        if noise is not None:
            attack = partial(in_private_fingerprints, seed=self.seed, noise=noise, releases=self.fingerprints)
            release = Release(noise, 1.0, self.fingerprints, group)
            attacks.append(self._attack("fingerprints", self.fingerprints, some, attack, release, promise.delta))
        release = Release(float(task.private.noise[one]), float(task.private.rate[one]), taken, group)
        attack = partial(in_private_models, start=self.experiment.start, make=self.make, steps=taken)
        return [*attacks, self._attack("models", taken, some, attack, release, promise.delta)]

    def _copies(self, peers: Tensor, group: int) -> list[Copies]:
        return list(copies(self.experiment.task, peers, self.canaries, word(self.seed, Purpose.AUDIT) >> 1, group))

    @staticmethod
    def _attack(
        what: str,
        number: int,
        some: list[Copies],
        attack: Callable[[Copies], Scores],
        release: Release | None = None,
        delta: float = _DELTA,
    ) -> Attack:
        began = time.perf_counter()
        scores = joined([attack(part) for part in some])
        if release is None:
            guesses = Guesses.of(scores.score, scores.inside, None)
            account, lower = None, guesses.epsilon_of_any_mechanism(delta)
        else:
            guesses = Guesses.of(scores.score, scores.inside, 0.5)
            account, chance = (
                epsilon_of([release], delta),
                1 - (1 - CONFIDENCE) / 2,
            )  # two bounds, of which one is taken
            lower = max(
                guesses.epsilon_of_any_mechanism(delta, chance), guesses.epsilon_of_gaussian([release], delta, chance)
            )
        took = round(time.perf_counter() - began, 3)
        return Attack(what, number, guesses.number, guesses.correct, account, lower, took)
