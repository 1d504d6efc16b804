"""The settings of a run: its config, versions, machine, and the commands that run it again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from homophily.report.page.figures import Figure, Tab, Table
from homophily.report.page.sources import Source, shortened


def settings_tab(source: Source, path: Path) -> Tab:
    """source: a run; path: the folder that is shown, of this run or of the comparison that holds it."""
    return Tab("Settings", [_again(source, path), _versions(source), _config(source, path)])


def _again(source: Source, path: Path) -> Figure:
    config, rows = shlex.quote(str(path / "config.toml")), []
    if source.given_in_python:
        rows.append(["again", "this run was given objects in Python: run the same program again"])
    elif path == source.path:
        rows.append(["again", f"homophily run {config}"])
    program, *words = source.run.about.get("command") or ["?"]
    rows.append(["began with", shlex.join([Path(program).name, *map(str, words)])])
    if source.state == "stopped" and path == source.path:
        rows.append(["continue", f"homophily run --resume {shlex.quote(str(path))}"])
    return Table("again", "Commands", "", ["", "command"], rows, copied=False)


def _versions(source: Source) -> Figure:
    about = source.run.about
    plan = about["plan"]
    rows = [
        *([name, str(version)] for name, version in about["versions"].items()),
        ["machine", str(about["machine"])],
        ["device", str(about["device"])],
        ["engine", f"{plan.get('engine')}: {plan.get('why')}"],
        ["began", str(about.get("created", "-"))],
    ]
    return Table("versions", "Versions and machine", "", ["", "value"], rows, copied=False)


def _config(source: Source, path: Path) -> Figure:
    whose = "" if path == source.path else f" of the run {shortened(source.path.name)}"
    text = f"Every key{whose} with its value, defaults included."
    return Table("config", "Config", text, ["key", "value"], _flat("", source.config.toml()), copied=False)


def _flat(prefix: str, value: Any) -> list[list[str]]:
    """Nested tables as rows of a key and its value."""
    if isinstance(value, dict):
        return [row for key, inner in value.items() for row in _flat(f"{prefix}.{key}" if prefix else key, inner)]
    return [] if value is None else [[shortened(prefix), str(value)]]
