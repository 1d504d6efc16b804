"""Every subpackage (room) imports only rooms below it, there are no import cycles, and the root stays small."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import homophily

ROOT = Path(homophily.__file__).parent
ROOMS = [
    "plugins", "config", "data", "models", "federation", "runs", "training", "fingerprints", "methods", "simulation",
    "experiments", "peer", "papers", "report", "api", "cli",
]  # fmt: skip
FOUNDATION = {f"homophily.{name}" for name in ("errors", "randomness", "version", "atomic_io")}
EXEMPT = {"homophily", "homophily.__main__"}  # the public names, and `python -m homophily`


def _modules() -> dict[str, Path]:
    """The path of each module of the package."""
    paths = ROOT.rglob("*.py")
    names = {path: ".".join(("homophily", *path.relative_to(ROOT).with_suffix("").parts)) for path in paths}
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


MODULES = _modules()


def _targets(source: str, modules: dict[str, Path]) -> Iterator[str]:
    """The modules of the package that a source imports, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            full = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found = [path if path in modules else str(node.module) for path in full.values()]
        else:
            continue
        yield from (name for name in found if name.partition(".")[0] == "homophily")


IMPORTS = {name: set(_targets(path.read_text(encoding="utf-8"), MODULES)) for name, path in MODULES.items()}


def _room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def _wrong(module: str, target: str) -> bool:
    """Whether an import goes to a room above, or from the foundation to a room."""
    if module in EXEMPT or target in FOUNDATION:
        return False
    if module in FOUNDATION or target in EXEMPT:
        return True
    return ROOMS.index(_room(target)) > ROOMS.index(_room(module))


def test_every_module_is_in_a_room() -> None:
    outside = [name for name in MODULES if name not in FOUNDATION | EXEMPT and _room(name) not in ROOMS]
    assert outside == []


def test_modules_import_only_from_rooms_below() -> None:
    arrows = [(module, target) for module, found in IMPORTS.items() for target in found]
    assert len(arrows) > 300
    assert sorted(f"{module} -> {target}" for module, target in arrows if _wrong(module, target)) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    order = list(TopologicalSorter({name: IMPORTS[name] - {name} for name in MODULES}).static_order())
    assert set(order) == set(MODULES)


def test_the_root_has_at_most_ten_files() -> None:
    assert len([path for path in ROOT.iterdir() if path.is_file()]) <= 10


def test_only_the_command_line_imports_the_api() -> None:
    users = {name for name, found in IMPORTS.items() if "homophily.api" in found}
    assert {_room(name) for name in users - EXEMPT} <= {"cli"}


def test_reading_a_run_loads_no_simulator() -> None:
    script = "import sys, homophily.runs.reader; print(*sorted(m for m in sys.modules if m.startswith('homophily.')))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    loaded = done.stdout.split()
    assert "homophily.runs.reader" in loaded
    rooms = {"training", "simulation", "experiments", "methods", "peer"}
    assert [module for module in loaded if _room(module) in rooms] == []


@pytest.mark.parametrize(
    "source",
    [
        "from homophily.simulation.setup import prepare",
        "from homophily.simulation import setup",
        "import homophily.simulation.setup",
        "def late():\n    from homophily.simulation.setup import prepare",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import homophily.simulation.setup",
    ],
)
def test_imports_are_found_anywhere_in_a_module(source: str) -> None:
    assert list(_targets(source, MODULES)) == ["homophily.simulation.setup"]
    assert _wrong("homophily.data.types", "homophily.simulation.setup")
    assert not _wrong("homophily.api", "homophily.simulation.setup")
