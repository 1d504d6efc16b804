"""The state folder of a real peer: a run folder that fits only the config with which it began."""

from __future__ import annotations

from pathlib import Path

from homophily.config.overlay import differing
from homophily.config.schema import Config
from homophily.errors import UserError
from homophily.experiments.runner import description, form
from homophily.peer.setup import PeerSetup
from homophily.runs.reader import Run
from homophily.runs.writer import RunWriter
from homophily.simulation.training_setup import digest_of


def open_state(setup: PeerSetup) -> RunWriter:
    """A new state folder, or the existing one if it fits the peer's file."""
    path, config, task = setup.settings.state, setup.config, setup.training.task
    writer = RunWriter(path)
    if writer.begun:
        check_state_config(path, Run(path).config, config, setup.settings.config)
        writer.check(form(task), config, digest=None)  # a peer's data may grow
        return writer
    writer = RunWriter.create(path, setup.settings.peer.name)
    writer.keep_start(None, task.layout.frozen_values(task.module))
    headline, digest = setup.training.metrics.headline.headline, digest_of(config, task.data)
    writer.describe(config, description(config, setup.training.plan, task, headline, digest))
    return writer


def check_state_config(path: Path, stored: Config, now: Config, asked: Config) -> None:
    """Only rounds (more of them), peers, the path of the data and trackers may differ from the stored config."""
    changes = differing(stored, now)
    if any(key == "data.scale" or key.startswith("data.scale.") for key in changes):
        raise UserError(f"data.scale: {path} holds a state with other constants: set peer.state to a new folder")
    for key, (before, after) in changes.items():
        open_then = key.startswith("method.") and before is None  # the state is of a version that did not store t1
        derived = open_then and key.removeprefix("method.") not in asked.method.keys
        if key not in ("rounds", "peers", "evaluate", "data.name", "tracker", "merge_guard") and not derived:
            raise UserError(
                f"{key} = {after!r}, but {path} holds a state with {before!r}: set peer.state to a new folder"
            )
    if stored.privacy is not None and now.rounds != stored.rounds:
        raise UserError(
            f"rounds = {now.rounds}, but the noise of {path} keeps its promise (privacy.epsilon = "
            f"{stored.privacy.epsilon:g}) for {stored.rounds} rounds: set peer.state to a new folder, "
            "whose promise adds to the one before"
        )
    if now.rounds < stored.rounds:
        raise UserError(
            f"rounds = {now.rounds}, but {path} holds a state with {stored.rounds}: rounds can only be increased"
        )
