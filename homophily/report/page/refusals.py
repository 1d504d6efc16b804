"""What a real peer refused, by kind: a reason without the peer that caused it, its certificate and dates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_WHOSE = re.compile(r"^certificate (?:\S+ )?of \S+ (?:is )?")  # certificate 5c1f of hospital-b is
_DAY = re.compile(r" on \d{4}-\d\d-\d\d$")


@dataclass(frozen=True)
class Refused:
    """Refusals of one kind."""

    kind: str
    count: int
    last: str  # the last reason, with its peer if it is known


def by_kind(reasons: Mapping[str, int]) -> list[Refused]:
    """The kinds, the most frequent first. reasons: ``refused`` of the status, in the order of their last occurrence."""
    found: dict[str, Refused] = {}
    for reason, count in reasons.items():
        kind = kind_of(reason)
        before = found[kind].count if kind in found else 0
        found[kind] = Refused(kind, before + count, reason)
    return sorted(found.values(), key=lambda one: (-one.count, one.kind))


def kind_of(reason: str) -> str:
    """A reason without the peer that caused it, which stands in brackets at its end, and without dates."""
    kind = reason.rpartition(" (")[0] if reason.endswith(")") and " (" in reason else reason
    return _DAY.sub("", _WHOSE.sub("certificate ", kind))
