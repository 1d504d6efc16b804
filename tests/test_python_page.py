"""docs/python.md names every public function and class with all arguments, and so do their docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

import homophily
from docs.generate.imports import ROOMS, ROOT
from docs.generate.pages import DOCS
from homophily.peer import Peer

PAGE = (DOCS / "python.md").read_text(encoding="utf-8")
READERS = {name: getattr(homophily.data, name) for name in homophily.data.__all__ if name.startswith(("from_", "pad"))}
PUBLIC = {**{name: getattr(homophily, name) for name in homophily.__all__}, **READERS, "Peer": Peer}
WITHOUT_ARGUMENTS = (Exception, int, homophily.Config)  # errors, Purpose; the keys of a config are on another page


def own_members(kind: type) -> dict[str, Any]:
    """The public methods, properties and fields that a class defines."""
    if issubclass(kind, WITHOUT_ARGUMENTS):
        return {}
    fields = {field.name: field for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else {}
    return fields | {name: value for name, value in vars(kind).items() if not name.startswith("_")}


def functions() -> Iterator[tuple[str, Callable[..., Any], str]]:
    """Each public function, constructor and method, with its docstring."""
    for name, item in PUBLIC.items():
        if inspect.isfunction(item):
            yield name, item, inspect.getdoc(item) or ""
        elif isinstance(item, type):
            about = inspect.getdoc(item) or ""
            if inspect.isfunction(item.__init__) and not issubclass(item, WITHOUT_ARGUMENTS):
                own = "" if dataclasses.is_dataclass(item) else inspect.getdoc(item.__init__) or ""
                yield f"{name}.__init__", item.__init__, f"{about} {own}"
            for member, value in own_members(item).items():
                function = value.__func__ if isinstance(value, classmethod) else value
                if inspect.isfunction(function):
                    yield f"{name}.{member}", function, inspect.getdoc(function) or ""


def arguments(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]


def shown(name: str) -> bool:
    """Whether the page has the name in code, alone or as a member or argument."""
    return re.search(rf"`[^`\n]*\b{name}\b[^`\n]*`", PAGE) is not None


def test_the_page_names_everything_public() -> None:
    members = [name for item in PUBLIC.values() if isinstance(item, type) for name in own_members(item)]
    missing = [name for name in dict.fromkeys([*PUBLIC, *members]) if not shown(name)]
    assert not missing, f"docs/python.md says nothing of {missing}"


@pytest.mark.parametrize(("name", "function", "about"), [pytest.param(*one, id=one[0]) for one in functions()])
def test_every_argument_is_on_the_page_and_in_the_docstring(
    name: str, function: Callable[..., Any], about: str
) -> None:
    if dataclasses.is_dataclass(PUBLIC.get(name.partition(".")[0])) and name != "PeerData.__init__":
        about = " ".join(arguments(function)) if name.endswith("__init__") else about  # a comment explains each field
    assert [one for one in arguments(function) if not shown(one)] == [], f"docs/python.md on {name}"
    assert [one for one in arguments(function) if not re.search(rf"\b{one}\b", about)] == [], f"docstring of {name}"


@pytest.mark.parametrize("name", ["run", "resume", "compare", "kin"])
def test_the_section_of_a_function_has_its_signature_and_every_argument(name: str) -> None:
    section = PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    signature = inspect.signature(PUBLIC[name])
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    words = str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty)).replace("'", '"')
    assert f"`homophily.{name}{words}`" in " ".join(section.split())
    rest = section.partition("\n\n")[2]
    assert [one for one in signature.parameters if f"`{one}`" not in rest] == []


def test_every_public_item_has_a_docstring() -> None:
    assert [name for name, item in PUBLIC.items() if not isinstance(item, ModuleType) and not item.__doc__] == []


def test_the_architecture_page_has_every_room_and_names_files_that_exist() -> None:
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \| ", page, re.MULTILINE) == ROOMS[::-1]
    named = set(re.findall(r"`(homophily/[\w/.]+)`", page))
    assert len(named) > 20
    assert [path for path in sorted(named) if not (ROOT.parent / path).exists()] == []
