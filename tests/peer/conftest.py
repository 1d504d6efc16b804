"""Fields of real peers that end with the test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.peer.field import Field


@pytest.fixture
def field(tmp_path: Path) -> Iterator[Callable[..., Field]]:
    """Makes fields whose processes are gone after the test."""
    made: list[Field] = []

    def make(peers: int, **keys: object) -> Field:
        made.append(Field(tmp_path / f"field-{len(made)}", peers, **keys))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.close()
