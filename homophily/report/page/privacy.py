"""What a page says of [privacy]: how much of the promised epsilon is spent."""

from __future__ import annotations

from homophily.config.privacy import Privacy


def privacy_facts(promise: Privacy | None, spent: float | None) -> list[tuple[str, str]]:
    """Epsilon spent and promised; nothing without a promise. spent: None: it is not known."""
    if promise is None:
        return []
    return [("epsilon spent", f"{'-' if spent is None else f'{spent:.3g}'} of {promise.epsilon:g}")]
