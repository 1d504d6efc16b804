"""The versions of the wire protocol that this peer speaks, and the settings on which all peers must agree."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from homophily.config.overlay import flat
from homophily.config.schema import Config

# The oldest version that can read what this peer sends, and the version of this peer. A new version may only add
# fields that the last one ignores. Version 1 sent no versions and no settings.
SPOKEN = (1, 2)
MAX_SETTINGS = 128
MAX_SETTING_CHARS = 80
_AGREED = ("seed", "rounds", "merge", "init", "method", "model", "training", "privacy")
_MAY_DIFFER = ("training.lr", "training.epochs", "training.lr_by_peer", "training.epochs_by_peer")

Settings = tuple[tuple[str, str], ...]  # dotted keys and values as JSON, sorted


def agreed_settings(config: Config, constants: str | None, more: Mapping[str, Any]) -> Settings:
    """The settings that all peers must share. constants: the hash of data.scale; more: others, by dotted key."""
    found = flat({key: value for key, value in config.toml().items() if key in _AGREED and value is not None})
    found = {key: value for key, value in found.items() if key not in _MAY_DIFFER}
    values = {**found, **({} if constants is None else {"data.scale": constants}), **more}
    return tuple(sorted((key, _short(value)) for key, value in values.items()))[:MAX_SETTINGS]


def _short(value: Any) -> str:
    """A value as JSON; a long one as the beginning of its hash, by which it can be compared."""
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= MAX_SETTING_CHARS else f"#{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def differing_settings(theirs: Settings, mine: Settings) -> dict[str, tuple[str, str]]:
    """The keys in which two peers differ, with both values."""
    a, b = dict(theirs), dict(mine)
    absent = "(left out)"
    return {
        key: (a.get(key, absent), b.get(key, absent)) for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)
    }


def read_settings(given: Any) -> Settings | None:
    """Settings as they were received; None: they are malformed."""
    if not isinstance(given, dict) or len(given) > MAX_SETTINGS:
        return None
    for key, value in given.items():
        if not isinstance(value, str) or len(key) > MAX_SETTING_CHARS or len(value) > MAX_SETTING_CHARS:
            return None
        if not key.isprintable() or not value.isprintable():
            return None
    return tuple(sorted(given.items()))
