"""A folder in which an operator types commands, each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT
from tests.processes import completed

ENVIRONMENT = {"PYTHONPATH": str(ROOT), "COLUMNS": "500"}


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir(exist_ok=True)

    def type(self, *words: str, code: int = 0) -> str:
        """Run a command to its end: what it prints."""
        done = completed(*words, folder=self.folder, **ENVIRONMENT)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def start(self, log: str, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("wb") as out:
            made = subprocess.Popen(
                [sys.executable, "-m", "homophily", *words], cwd=self.folder, env={**os.environ, **ENVIRONMENT},
                stdout=out, stderr=out,
            )  # fmt: skip
        self.processes.append(made)
        return made

    def printed(self, log: str) -> str:
        return (self.folder / log).read_text()

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
