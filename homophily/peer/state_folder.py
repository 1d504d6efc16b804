"""The state folder of a real peer: a run folder that fits only the config with which it began."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from homophily.config.overlay import as_tables, differing, flat
from homophily.config.schema import Config
from homophily.errors import UserError
from homophily.experiments.runner import description, form
from homophily.peer.settings import PeerSettings
from homophily.peer.setup import PeerSetup
from homophily.runs.reader import Run
from homophily.runs.writer import RunWriter
from homophily.simulation.training_setup import digest_of

_MAY_CHANGE = ("rounds", "peers", "evaluate", "data.name", "tracker", "merge_guard")


def open_state(setup: PeerSetup) -> RunWriter:
    """A new state folder, or the existing one if it fits the peer's file."""
    path, config, task = setup.settings.state, setup.config, setup.training.task
    writer = RunWriter(path)
    if writer.begun:
        check_state_config(path, Run(path).config, config, setup.settings)
        writer.check(form(task), config, digest=None)  # a peer's data may grow
        return writer
    writer = RunWriter.create(path, setup.settings.peer.name)
    writer.keep_start(None, task.layout.frozen_values(task.module))
    headline, digest = setup.training.metrics.headline.headline, digest_of(config, task.data)
    writer.describe(config, description(config, setup.training.plan, task, headline, digest))
    return writer


def check_state_config(path: Path, stored: Config, now: Config, settings: PeerSettings) -> None:
    """Only rounds (more of them), peers, the path of the data and trackers may differ from the stored config."""
    found = refused_change(stored, now, settings.config)
    if found is None:
        return
    key, before, after = found
    by = _by_whom(settings, key)
    anew = f"set peer.state to a new folder{by}"
    if key == "data.scale":
        raise UserError(f"data.scale: {path} holds a state with other constants: {anew}")
    if key == "rounds" and stored.privacy is not None:
        raise UserError(
            f"rounds = {after}, but the noise of {path} keeps its promise (privacy.epsilon = "
            f"{stored.privacy.epsilon:g}) for {before} rounds: set peer.state to a new folder, "
            f"whose promise adds to the one before{by}"
        )
    remedy = f"rounds can only be increased{by}" if key == "rounds" else anew
    raise UserError(f"{key} = {after!r}, but {path} holds a state with {before!r}: {remedy}")


def _by_whom(settings: PeerSettings, key: str) -> str:
    """Who sets a key, if it is not the peer's own file, as the end of a message."""
    document = settings.document
    shared = {} if document is None else flat(as_tables(document.settings))
    if document is None or not any(one == key or one.startswith(f"{key}.") for one in shared):
        return ""
    return (
        f"; the value is that of the membership document version {document.version}: ask the authority for the old one"
    )


def refused_change(stored: Config, now: Config, asked: Config | None = None) -> tuple[str, Any, Any] | None:
    """The first key with which a state folder of ``stored`` refuses the config ``now``, and both values.

    asked: the config before keys were derived from others; None: none were.
    """
    changes, wanted = differing(stored, now), now if asked is None else asked
    if any(key == "data.scale" or key.startswith("data.scale.") for key in changes):
        return "data.scale", stored.data.scale, now.data.scale
    for key, (before, after) in changes.items():
        open_then = key.startswith("method.") and before is None  # the state is of a version that did not store t1
        derived = open_then and key.removeprefix("method.") not in wanted.method.keys
        if key not in _MAY_CHANGE and not derived:
            return key, before, after
    if now.rounds < stored.rounds or (stored.privacy is not None and now.rounds != stored.rounds):
        return "rounds", stored.rounds, now.rounds
    return None
