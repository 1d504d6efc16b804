"""A simulation that runs step by step, and the public functions run and resume."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from torch import nn

from homophily.atomic_io import locked
from homophily.cluster.joining import joined
from homophily.config.overlay import flat
from homophily.config.schema import Config
from homophily.data.given import Peers, given_peers
from homophily.data.transforms import Transform
from homophily.errors import UserError
from homophily.experiments.callbacks import Callback, Callbacks
from homophily.experiments.runner import (
    ActiveRun,
    RoundPlayer,
    again,
    as_config,
    begin,
    chosen_device,
    plan_of,
    torch_settings,
    warn_of_diverged,
    with_start,
)
from homophily.methods import Method
from homophily.privacy.ledger import LEDGER
from homophily.runs.reader import Run
from homophily.runs.writer import RunWriter
from homophily.simulation.configuration import over
from homophily.simulation.setup import prepare
from homophily.simulation.user_objects import UserObjects
from homophily.training.losses import Loss
from homophily.training.resources import ExecutionPlan
from homophily.training.score_metrics import PeerMetric

_RESUMABLE = ("rounds", "evaluate", "checkpoint")


class _SteppedRun:
    """What a new and a resumed simulation have in common: a run with a folder that is simulated step by step."""

    def __init__(self, active: ActiveRun, plan: ExecutionPlan, result: Run | None = None) -> None:
        """result: the finished run, if no round is left."""
        self._active, self._plan, self._result = active, plan, result
        self._player: RoundPlayer | None = None
        self._length = active.writer.length

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self._active.path

    @property
    def config(self) -> Config:
        """The config with every default filled in."""
        return self._active.config

    @property
    def round(self) -> int:
        """Rounds that are over."""
        return self._active.round

    @property
    def finished(self) -> bool:
        """Whether all rounds are over, all peers have stopped early, or a callback has stopped the run."""
        return self._active.state.finished

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while not self.finished:
            yield self.step()

    def step(self) -> dict[str, Any]:
        """Simulate one round; returns its metrics, as they stand in ``metrics.jsonl``."""
        if self.finished:
            raise UserError(f"the run in {self.path} has finished: resume it with more rounds")
        with self._held(), torch_settings(self.config, self._plan, self._active.state.federation.rows.device):
            self._player = self._player or RoundPlayer([self._active])
            return self._player.step()[0]

    def save(self) -> None:
        """Write a checkpoint now; others are written every ``checkpoint`` rounds and at the end."""
        with self._held():
            self._active.save()

    def result(self) -> Run:
        """Simulate the rounds that are left, write final scores and models, and return the finished run."""
        if self._result is None:
            device = self._active.state.federation.rows.device
            with self._held(), torch_settings(self.config, self._plan, device):
                self._player = self._player or RoundPlayer([self._active])
                (self._result,) = self._player.play()
        return self._result

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the lock on the folder; raise a UserError if another process has played this run in between.

        Rank 0 looks for all ranks: it alone writes, and the others may see the file before or after.
        """
        with self._active.held():
            writer = self._active.writer
            if self._active.shards.rank == 0 and writer.length != self._length:
                raise UserError(f"another process has continued the run in {self.path}: resume it to go on from there")
            try:
                yield
            finally:
                self._length = writer.length


class Simulation(_SteppedRun):
    """A federation that is simulated step by step.

    ``for metrics in simulation`` simulates round after round; ``step()`` simulates one; ``save()`` writes a checkpoint;
    ``result()`` simulates the rounds that are left and returns the finished run.
    """

    def __init__(
        self,
        config: Config | Mapping[str, Any] | str | Path | None = None,
        *,
        model: nn.Module | None = None,
        data: Peers | None = None,
        loss: Loss | None = None,
        transform: Transform | Sequence[Transform] | None = None,
        method: Method | None = None,
        extra_metrics: Mapping[str, PeerMetric] | None = None,
        callbacks: Sequence[Callback] = (),
        out: str | Path | None = None,
        device: str = "auto",
    ) -> None:
        """Prepare a run and its folder.

        config, model, data, loss, transform, method, extra_metrics, callbacks, out, device: as for ``homophily.run``.
        Raises UserError for bad input.
        """
        objects = UserObjects(model, given_peers(data), loss, method, extra_metrics or {}, transform)
        chosen, called = chosen_device(device), Callbacks(callbacks)
        shards = joined(chosen)
        objects = objects.agreed(shards)
        experiment, complete, plan = prepare(as_config(config), objects, chosen, shards=shards)
        super().__init__(begin(experiment, complete, plan, objects, Path(out) if out else None, called), plan)

    @staticmethod
    def resume(
        path: str | Path,
        overrides: Mapping[str, Any] | None = None,
        *,
        model: nn.Module | None = None,
        data: Peers | None = None,
        loss: Loss | None = None,
        transform: Transform | Sequence[Transform] | None = None,
        method: Method | None = None,
        extra_metrics: Mapping[str, PeerMetric] | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> Simulation:
        """The simulation of a stopped or finished run, after the last round in its checkpoint.

        path, overrides, model, data, loss, transform, method, extra_metrics, callbacks: as for ``homophily.resume``.
        Raises UserError for bad input.
        """
        found, objects = Run(path), UserObjects(model, given_peers(data), loss, method, extra_metrics or {}, transform)
        return _ResumedSimulation(found, _extended(found, overrides or {}), objects, Callbacks(callbacks))


class _ResumedSimulation(Simulation):
    """A simulation whose run folder exists: the run in it is restored."""

    def __init__(self, found: Run, config: Config, objects: UserObjects, callbacks: Callbacks) -> None:
        writer, plan, device = RunWriter(found.path), plan_of(found), chosen_device(found.device)
        shards = joined(device)
        begun_with = with_start(writer, objects).agreed(shards)
        experiment, config, _ = prepare(config, begun_with, device, plan, shards=shards)
        with locked(found.path) if shards.rank == 0 else nullcontext():
            active = again(experiment, config, begun_with, writer, callbacks)
            done = active.state.finished and found.finished and found.summary["rounds"] == active.state.round
            if not done and shards.rank == 0:
                writer.write_config(config)
        _SteppedRun.__init__(self, active, plan, Run(found.path, objects.model) if done else None)


def _extended(found: Run, overrides: Mapping[str, Any]) -> Config:
    """The config of a stored run with the overrides, if a resumed run may change those keys."""
    if (found.path / LEDGER).exists():  # a simulation would train with noise that others can compute
        raise UserError(f"{found.path} is the state of a real peer with [privacy]: continue it with `homophily peer`")
    for key in overrides:
        if key not in _RESUMABLE:
            named = next(iter(flat({key: overrides[key]})), key)
            raise UserError(f"{named}: a resumed run can change rounds, evaluate and checkpoint only")
    stored = found.config
    config, played = over(stored, overrides), RunWriter(found.path).last_round
    if stored.privacy is not None and config.rounds != stored.rounds:
        raise UserError(
            f"rounds = {config.rounds}: the noise of this run keeps its promise (privacy.epsilon = "
            f"{stored.privacy.epsilon:g}) for {stored.rounds} rounds; another number of rounds needs a new run"
        )
    if config.rounds < played:
        raise UserError(f"rounds = {config.rounds}: {found.path} has played {played} rounds, and cannot have fewer")
    if config.score == "after-training" and config.rounds == played < stored.rounds and not found.finished:
        why = f"the models that it scores, those before the merge of round {played}, are not stored"
        raise UserError(f"rounds = {played}: {why}; end the run with rounds = {played + 1}")
    return config


def run(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    *,
    model: nn.Module | None = None,
    data: Peers | None = None,
    loss: Loss | None = None,
    transform: Transform | Sequence[Transform] | None = None,
    method: Method | None = None,
    extra_metrics: Mapping[str, PeerMetric] | None = None,
    callbacks: Sequence[Callback] = (),
    out: str | Path | None = None,
    device: str = "auto",
) -> Run:
    """Simulate a federation from its first round to its last and return the finished run.

    config: nested keys, a TOML file, or None for the defaults.
    model: your ``nn.Module``, in place of ``model.name``; every peer starts from its weights.
    data: the data of every peer, in a list or by name, in place of ``data.name``: a ``PeerData``, a pair ``(x, y)`` or
    a torch ``Dataset`` each. ``homophily.data`` reads tables and other formats.
    loss: a function ``(outputs, targets) -> [samples]``, in place of ``training.loss``.
    transform: a function ``(x, draws) -> x`` of training inputs, or a list of them, in place of ``data.transform``.
    method: a ``Method`` object, in place of ``method.name``.
    extra_metrics: scores by name, each a function ``(outputs, targets) -> float`` that is computed for every peer.
    callbacks: ``Callback`` objects that see every round.
    out: the folder of the run, new or empty; None: a new folder under runs/.
    device: "auto", "cpu" or "cuda"; "auto" uses CUDA if torch finds a CUDA device.
    Raises UserError for bad input and UnsuitableError if the method cannot work with the data; warns with
    DivergedWarning if models have diverged.
    """
    simulation = Simulation(
        config,
        model=model,
        data=data,
        loss=loss,
        transform=transform,
        method=method,
        extra_metrics=extra_metrics,
        callbacks=callbacks,
        out=out,
        device=device,
    )
    finished = simulation.result()
    warn_of_diverged([finished])
    return finished


def resume(
    path: str | Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    model: nn.Module | None = None,
    data: Peers | None = None,
    loss: Loss | None = None,
    transform: Transform | Sequence[Transform] | None = None,
    method: Method | None = None,
    extra_metrics: Mapping[str, PeerMetric] | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Resume a run that was stopped, or extend a finished one: ``resume(path, {"rounds": 100})``.

    path: the folder of the run.
    overrides: new values of ``rounds``, ``evaluate`` or ``checkpoint``.
    model, data, loss, transform, method, extra_metrics: the objects that were passed to ``run``, again; a model with
    any weights.
    callbacks: as for ``run``; the state of each is restored if the same number is passed again.
    Returns the finished run. Raises UserError for bad input; warns with DivergedWarning if models have diverged.
    """
    found = Run(path)
    config = _extended(found, overrides or {})
    if found.finished and found.summary["rounds"] == config.rounds:
        finished = Run(path, model)
    else:
        objects = UserObjects(model, given_peers(data), loss, method, extra_metrics or {}, transform)
        finished = _ResumedSimulation(found, config, objects, Callbacks(callbacks)).result()
    warn_of_diverged([finished])
    return finished
