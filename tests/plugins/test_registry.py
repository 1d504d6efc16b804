"""Bundled items are found by name, users' own objects by package.module:name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from homophily.errors import UserError
from homophily.plugins.registry import Registry, import_object


@pytest.fixture
def animals() -> Registry[Callable[..., Any]]:
    found: Registry[Callable[..., Any]] = Registry("animal", ("peers",))

    @found("zebra")
    def zebra(peers: int) -> str:
        """Has stripes.

        And legs.
        """
        return "zebra"

    @found("ant")
    def ant(peers: int) -> str:
        return "ant"

    return found


def test_a_registered_item_is_found_by_its_name(animals: Registry[Any]) -> None:
    assert animals.get("zebra")(3) == "zebra"
    assert list(animals) == ["ant", "zebra"]
    assert "ant" in animals
    assert "cow" not in animals
    assert animals.passed == ("peers",)
    assert animals.about("zebra") == "Has stripes."
    assert animals.about("ant") == ""


def test_a_name_can_be_registered_only_once(animals: Registry[Any]) -> None:
    with pytest.raises(ValueError, match="two animals are called 'ant'"):

        @animals("ant")
        def other() -> None: ...

    assert animals.get("ant")(3) == "ant"


def test_an_unknown_name_is_refused_with_a_hint(animals: Registry[Any]) -> None:
    with pytest.raises(UserError) as refused:
        animals.get("zebr")
    assert str(refused.value) == (
        "unknown animal 'zebr' (did you mean 'zebra'?); there are ant, zebra, or your own as package.module:name"
    )
    with pytest.raises(UserError, match=r"^unknown animal 'whale'; there are ant, zebra"):
        animals.get("whale")


def test_a_users_object_is_imported_by_its_path(
    animals: Registry[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_animals.py").write_text(
        "class Farm:\n    @staticmethod\n    def cow():\n        return 'moo'\nnumber = 3\n"
    )
    (tmp_path / "ill_animals.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert animals.get("own_animals:Farm.cow")() == "moo"
    for path, message in {
        "own_animals:Farm.pig": "animal 'own_animals:Farm.pig': 'own_animals' has no 'Farm.pig'",
        "own_animals:number": "animal 'own_animals:number' is not callable",
        "ill_animals:cow": "animal 'ill_animals:cow': cannot import 'ill_animals': division by zero",
        "no.such:cow": "animal 'no.such:cow': cannot import 'no.such': No module named 'no'",
        ":cow": "animal ':cow': must be package.module:name",
        "own_animals:": "animal 'own_animals:': must be package.module:name",
        ".own_animals:cow": "animal '.own_animals:cow': must be package.module:name",
    }.items():
        with pytest.raises(UserError) as refused:
            import_object(path, "animal")
        assert str(refused.value) == message
