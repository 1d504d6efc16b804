"""The rooms of the package and the imports between its modules, read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "homophily"
ROOMS = [
    "plugins", "config", "privacy", "data", "models", "federation", "runs", "trackers", "training", "fingerprints",
    "methods", "simulation", "cluster", "experiments", "peer", "papers", "report", "api", "cli",
]  # fmt: skip
"""From the bottom up: a room imports only rooms before it."""
FOUNDATION = {f"homophily.{name}" for name in ("errors", "randomness", "version", "atomic_io")}
EXEMPT = {"homophily", "homophily.__main__"}  # the public names, and `python -m homophily`


@cache
def modules() -> dict[str, Path]:
    """The path of each module of the package."""
    paths = sorted(ROOT.rglob("*.py"))
    names = {path: ".".join(("homophily", *path.relative_to(ROOT).with_suffix("").parts)) for path in paths}
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


def targets(source: str) -> Iterator[str]:
    """The modules of the package that a source imports, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            full = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found = [path if path in modules() else str(node.module) for path in full.values()]
        else:
            continue
        yield from (name for name in found if name.partition(".")[0] == "homophily")


@cache
def imports() -> dict[str, set[str]]:
    """The modules that each module imports."""
    return {name: set(targets(path.read_text(encoding="utf-8"))) for name, path in modules().items()}


def room(module: str) -> str:
    """The room of a module; the empty string for the package itself."""
    return module.split(".")[1] if "." in module else ""


def rooms_below() -> dict[str, set[str]]:
    """The rooms that each room imports directly, from the bottom up."""
    below: dict[str, set[str]] = {name: set() for name in ROOMS}
    for module, found in imports().items():
        if room(module) in below:
            below[room(module)] |= {room(target) for target in found if room(target) in below}
    return {name: found - {name} for name, found in below.items()}
