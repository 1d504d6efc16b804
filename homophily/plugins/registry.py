"""Names a config can use: bundled items, registered by a decorator, and any object at ``package.module:name``."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

from homophily.errors import UserError

Item = TypeVar("Item", bound=Callable[..., Any])

GIVEN = "(given in Python)"  # the name in a stored config of an object that was passed in Python and has no name


class Registry(Generic[Item]):
    """Classes or functions of one kind, by name.

    kind: the word used in messages ("method", "shift", ...); passed: the parameters of an item that the program itself
    passes. The other parameters of an item are config keys.
    """

    def __init__(self, kind: str, passed: tuple[str, ...] = ()) -> None:
        self.kind, self.passed = kind, passed
        self._items: dict[str, Item] = {}

    def __call__(self, name: str) -> Callable[[Item], Item]:
        """Decorator: register a class or function under ``name``."""

        def register(item: Item) -> Item:
            if name in self._items:
                raise ValueError(f"two {self.kind}s are called {name!r}")
            self._items[name] = item
            return item

        return register

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._items))

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def get(self, name: str) -> Item:
        """Return the item registered as ``name``, or the object at ``package.module:name``."""
        if name in self._items:
            return self._items[name]
        if ":" in name:
            return import_object(name, self.kind)  # type: ignore[no-any-return]
        raise UserError(self.unknown(name))

    def unknown(self, name: str) -> str:
        """Return the error message that ``name`` is not registered, with the names that are."""
        hint = get_close_matches(name, self._items, n=1)
        return (
            f"unknown {self.kind} {name!r}"
            + (f" (did you mean {hint[0]!r}?)" if hint else "")
            + f"; there are {', '.join(self)}, or your own as package.module:name"
        )

    def about(self, name: str) -> str:
        """The first line of the item's docstring."""
        return (inspect.getdoc(self._items[name]) or "").split("\n")[0]


def import_object(path: str, kind: str) -> Any:
    """Return the callable at ``package.module:name``; ``kind`` is what error messages call it."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute or module_name.startswith("."):
        raise UserError(f"{kind} {path!r}: must be package.module:name")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may raise any exception while it is imported
        raise UserError(f"{kind} {path!r}: cannot import {module_name!r}: {error}") from error
    try:
        found: Any = module
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise UserError(f"{kind} {path!r}: {module_name!r} has no {attribute!r}") from None
    if not callable(found):
        raise UserError(f"{kind} {path!r} is not callable")
    return found
