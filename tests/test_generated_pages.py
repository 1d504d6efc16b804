"""The generated pages are up to date, and every key and argument that a user can set has a meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

from docs.generate.config_page import keys_without_meaning
from docs.generate.imports import ROOMS, rooms_below
from docs.generate.pages import DOCS, GENERATED
from homophily.methods import Method, methods


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.name)
def test_a_generated_file_is_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == GENERATED[path](), f"{path.name} is out of date: run `make reference`"


def test_every_key_has_a_meaning() -> None:
    assert keys_without_meaning() == [], 'give these keys a meaning: Annotated[..., Field(description="...")]'


def test_a_key_without_a_meaning_and_a_new_key_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nameless(Method):
        def __init__(self, silent: int = 1, explained: Annotated[int, Field(description="of use")] = 2) -> None: ...

    monkeypatch.setitem(methods._items, "nameless", Nameless)
    assert keys_without_meaning() == ["method nameless: silent"]
    shown = GENERATED[DOCS / "config.md"]()
    assert "| `explained` | `nameless` | integer |  | `2` | of use |" in shown
    assert shown != (DOCS / "config.md").read_text(encoding="utf-8")


def test_the_drawing_shows_every_room_and_no_arrow_that_is_not_an_import() -> None:
    drawn = GENERATED[DOCS / "architecture.svg"]()
    assert all(f">{name}</text>" in drawn for name in ROOMS)
    direct = sum(len(found) for found in rooms_below().values())
    assert len(ROOMS) - 2 <= drawn.count('<path class="import"') < direct
