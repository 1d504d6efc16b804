"""Every subpackage (room) imports only rooms below it, there are no import cycles, and the root stays small."""

from __future__ import annotations

import subprocess
import sys
from graphlib import TopologicalSorter

import pytest

from docs.generate.imports import EXEMPT, FOUNDATION, ROOMS, ROOT, imports, modules, room, targets
from tests.patience import PATIENCE


def _wrong(module: str, target: str) -> bool:
    """Whether an import goes to a room above, or from the foundation to a room."""
    if module in EXEMPT or target in FOUNDATION:
        return False
    if module in FOUNDATION or target in EXEMPT:
        return True
    return ROOMS.index(room(target)) > ROOMS.index(room(module))


def test_every_module_is_in_a_room() -> None:
    outside = [name for name in modules() if name not in FOUNDATION | EXEMPT and room(name) not in ROOMS]
    assert outside == []


def test_modules_import_only_from_rooms_below() -> None:
    arrows = [(module, target) for module, found in imports().items() for target in found]
    assert len(arrows) > 300
    assert sorted(f"{module} -> {target}" for module, target in arrows if _wrong(module, target)) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    order = list(TopologicalSorter({name: imports()[name] - {name} for name in modules()}).static_order())
    assert set(order) == set(modules())


def test_the_root_has_at_most_ten_files() -> None:
    assert len([path for path in ROOT.iterdir() if path.is_file()]) <= 10


def test_only_the_command_line_imports_the_api() -> None:
    users = {name for name, found in imports().items() if "homophily.api" in found}
    assert {room(name) for name in users - EXEMPT} <= {"cli"}


@pytest.mark.parametrize("name", ["Run", "Comparison"])
def test_reading_a_folder_loads_no_simulator(name: str) -> None:
    loads = f"import sys, homophily; homophily.{name}"
    script = f"{loads}; print(*sorted(m for m in sys.modules if m.startswith('homophily.')))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=PATIENCE)
    loaded = done.stdout.split()
    assert "homophily.runs.reader" in loaded
    rooms = {"training", "simulation", "experiments", "methods", "peer"}
    assert [module for module in loaded if room(module) in rooms] == []


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
    assert list(targets(source)) == ["homophily.simulation.setup"]
    assert _wrong("homophily.data.types", "homophily.simulation.setup")
    assert not _wrong("homophily.api", "homophily.simulation.setup")
