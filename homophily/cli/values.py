"""Values of JSON objects as text for people."""

from __future__ import annotations

from typing import Any


def formatted(value: Any) -> str:
    """None is -, and lists and objects are separated by commas."""
    if value is None:
        return "-"
    if isinstance(value, dict):
        return ", ".join(f"{key} {formatted(inner)}" for key, inner in value.items()) or "-"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return f"{value:.4g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)
