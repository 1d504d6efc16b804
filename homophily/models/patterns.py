"""Name patterns: how config keys such as ``model.personal`` and ``model.frozen`` select tensors of a network."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence

from homophily.errors import UserError


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern matches a tensor's name, the full name of a module around it, or one part of the name."""
    parts = name.split(".")
    levels = [".".join(parts[: i + 1]) for i in range(len(parts))]
    return any(fnmatch.fnmatchcase(part, pattern) for part in [*levels, *parts])


def selected(patterns: Sequence[str], names: Iterable[str], key: str, what: str = "layer or buffer") -> set[str]:
    """Return the names that a pattern matches; raise a UserError for a pattern without a match. key: of the config."""
    names, found = list(names), set()
    for pattern in patterns:
        matching = {name for name in names if matches(name, pattern)}
        if not matching:
            raise UserError(f"{key}: no {what} matches {pattern!r}; the names are {', '.join(names)}")
        found |= matching
    return found
