"""A virtual environment for each framework, because they cannot share one; versions.toml lists the packages."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

VERSIONS: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("versions.toml").read_text(encoding="utf-8"))


class Missing(Exception):
    """The environment is missing; the message says why."""


def python_of(name: str, folder: Path, make: bool) -> Path:
    """Return the interpreter of a framework's environment under ``folder``; create the environment if allowed."""
    home, wanted = folder / name, "\n".join(VERSIONS[name])
    marker, python = home / "installed", home / "bin" / "python"
    if marker.exists() and marker.read_text(encoding="utf-8") == wanted:
        return python
    if not make:
        raise Missing("not installed: run with --setup")
    print(f"installing {', '.join(VERSIONS[name])}", file=sys.stderr, flush=True)
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(home)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *VERSIONS[name]],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise Missing(f"cannot be installed: {(errors or done.stderr.splitlines() or ['no reason given'])[-1]}")
    marker.write_text(wanted, encoding="utf-8")
    return python
