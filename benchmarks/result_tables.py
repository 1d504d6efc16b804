"""Selecting records of results, and writing them as a Markdown table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Record = dict[str, Any]


def values(found: Iterable[Record], key: str) -> list[Any]:
    """The distinct values of a key, in order of appearance."""
    return list(dict.fromkeys(record[key] for record in found))


def matching(found: Iterable[Record], **keys: Any) -> list[Record]:
    return [record for record in found if all(record[key] == value for key, value in keys.items())]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def named(epsilon: float | None) -> str:
    return "none" if epsilon is None else f"epsilon {epsilon:g}"
