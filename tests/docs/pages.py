"""Reading and following a documentation page.

A page is a story in one folder, followed from top to bottom:

- A block whose first line is ``# file: NAME`` is a file that the reader writes.
- Each line of a ``sh`` block is a command. A command that ends with ``&`` runs in the background and must succeed
  before the page ends.
- A ``python`` block is executed; all blocks of a page share one namespace.
- A ``text`` block directly after a command or a ``python`` block is its output. If it begins with ``error:``, the
  command must exit with code 2.
- A ``json`` block directly after a command is the object that the command prints with ``--json``.
"""

from __future__ import annotations

import importlib
import json
import math
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from homophily.cli import app as cli

ROOT = Path(__file__).resolve().parents[2]
STORIES = ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]

# Pages show these commands, but the tests do not run them, and why.
_SETS_UP = "installs packages into .venv"
_TESTS = "starts this test suite"
_SERVES = "serves until Ctrl-C; tests/report/live starts the same servers"
_JOINS = "needs a person and a running authority; tests/peer/test_governed_peers.py follows the page"
_SETS_VARIABLE = "sets a variable of the reader's shell"
NOT_RUN = {
    "make demo": _SETS_UP,
    "make docs": "installs packages into .venv; tests/docs/test_site.py builds the same site",
    "make setup": _SETS_UP,
    "make test": _TESTS,
    "pip install -c constraints.txt -e .": _SETS_UP,
    ".venv/bin/pytest tests/docs": _TESTS,
    ".venv/bin/pytest -m slow": _TESTS,
    ".venv/bin/pytest -m gpu": _TESTS,
    ".venv/bin/ruff format .": "changes the source; CI runs it with --check",
    "homophily live runs/mine": _SERVES,
    "homophily federation serve": _JOINS,
    "homophily join TOKEN --listen 127.0.0.1:17451 --data hospital-d.npz": _JOINS,
    "homophily federation confirm hospital-d CODE": _JOINS,
    "homophily live runs/mine --host 0.0.0.0 --port 8080": _SERVES,
    "export HOMOPHILY_DATA=$HOME/data": _SETS_VARIABLE,
    "export HOMOPHILY_DATA=$HOME/data:/mnt/data": _SETS_VARIABLE,
}
CONTAINER_TOOLS = ("docker", "kubectl")  # need a daemon or a cluster; test_containers.py checks what they are given
NEEDS_FILES = {"mnist", "fashion-mnist", "cifar-10", "cifar-100", "heart-disease"}
CLOSE = 4.0  # tolerance between a number on a page and the number printed here: other machines round differently

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d+(\.\d+)?%?")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page. ``shown`` is the output block directly after it, if there is one."""

    where: str  # page:line
    language: str
    text: str
    shown: tuple[str, str] | None = None  # language and text

    @property
    def file(self) -> str | None:
        found = re.match(r"# file: (\S+)\n", self.text)
        return found[1] if found else None

    @property
    def commands(self) -> list[str]:
        """The lines of a ``sh`` block without prompts and comments."""
        lines = (re.sub(r"(^|\s+)#.*", "", line).strip().removeprefix("$ ") for line in self.text.splitlines())
        return [line for line in lines if line]


def blocks(page: str) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = list(FENCE.finditer(text))
    fences = len(re.findall(r"^```", text, re.MULTILINE))
    assert len(found) * 2 == fences, f"{page}: a block has no language or no end"
    out = []
    for i, match in enumerate(found):
        after = found[i + 1] if i + 1 < len(found) else None
        follows = after and after[1] in ("text", "json") and not text[match.end() : after.start()].strip()
        shown = (after[1], after[2]) if after and follows else None
        line = text.count("\n", 0, match.start()) + 1
        out.append(Block(f"{page}:{line}", match[1], match[2], shown))
    return out


def needs_files(command: str) -> bool:
    """Whether a command reads a data set that is not bundled."""
    values = {word.partition("=")[2] for word in shlex.split(command) if word.startswith("data")}
    return bool(values & NEEDS_FILES)


class Reader:
    """Follows a page in an empty folder."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.capsys, self.monkeypatch = capsys, monkeypatch
        self.background: list[tuple[str, subprocess.Popen[bytes], Path]] = []
        self.module = types.ModuleType("page")
        monkeypatch.setitem(sys.modules, "page", self.module)

    def start(self, command: str) -> None:
        """Start a command in the background."""
        words = [sys.executable, "-m", "homophily", *shlex.split(command)[1:]]
        log = Path(f"background-{len(self.background)}.log")
        with log.open("wb") as out:
            self.background.append((command, subprocess.Popen(words, stdout=out, stderr=out), log))

    def finish(self) -> None:
        """Wait for the commands in the background; all must have succeeded."""
        for command, process, log in self.background:
            assert process.wait(60) == 0, f"{command}:\n{log.read_text(encoding='utf-8')}"

    def homophily(self, command: str) -> tuple[int, str]:
        """Run a ``homophily`` command in this process: its exit code and everything it printed."""
        self.capsys.readouterr()
        self.monkeypatch.setattr(sys, "argv", shlex.split(command))
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = self.capsys.readouterr()
        return code, out + err

    def python(self, block: Block) -> str:
        """Execute a ``python`` block: everything it printed."""
        self.capsys.readouterr()
        exec(compile(block.text, block.where, "exec"), self.module.__dict__)
        return self.capsys.readouterr().out

    def write(self, name: str, text: str) -> None:
        """Write a file that the page shows."""
        Path(name).write_text(text, encoding="utf-8")
        importlib.invalidate_caches()


def check_printed(where: str, shown: str, printed: str) -> None:
    """Compare word by word. Numbers may differ by CLOSE, and times are not compared."""
    want, have = (re.sub(r"\b\d+\.\d+ s\b", "SECONDS", text).split() for text in (shown, printed))
    differ = [f"{a!r} but got {b!r}" for a, b in zip_longest(want, have, fillvalue="") if not same(a, b)]
    assert not differ, f"{where}: the page shows {', '.join(differ)} in:\n{printed}"


def same(shown: str, printed: str) -> bool:
    """Whether two words are equal, or numbers of the same unit that differ by at most CLOSE."""
    if shown[-1:] == printed[-1:] and shown[-1:] in (",", ";"):
        shown, printed = shown[:-1], printed[:-1]
    if NUMBER.fullmatch(shown) and NUMBER.fullmatch(printed) and shown.endswith("%") == printed.endswith("%"):
        a, b = float(shown.rstrip("%")), float(printed.rstrip("%"))
        return math.isclose(a, b, abs_tol=CLOSE)
    return shown == printed


def check_object(where: str, shown: Mapping[str, Any], printed: Mapping[str, Any]) -> None:
    """Compare JSON objects: the same keys, and numbers that differ by at most CLOSE."""
    assert list(shown) == list(printed), where
    for key, value in shown.items():
        if isinstance(value, dict):
            check_object(f"{where} {key}", value, printed[key])
        elif value is None:
            assert printed[key] is None, f"{where}: {key}"
        elif key != "seconds" and not isinstance(value, str | list):
            assert math.isclose(value, printed[key], abs_tol=CLOSE), f"{where}: {key}"


def follow(reader: Reader, block: Block) -> None:
    """Do what one block of a page shows, and compare the output."""
    if block.file:
        reader.write(block.file, block.text)
    elif block.language == "python":
        printed = reader.python(block)
        if block.shown:
            check_printed(block.where, block.shown[1], printed)
    elif block.language == "sh":
        printed = ""
        failing = block.shown is not None and block.shown[1].startswith("error:")
        for command in block.commands:
            if command in NOT_RUN or needs_files(command) or command.split()[0] in CONTAINER_TOOLS:
                continue
            assert command.split()[0] == "homophily", f"{block.where}: unknown command {command!r}; add it to NOT_RUN?"
            if command.endswith("&"):
                reader.start(command.removesuffix("&"))
                continue
            code, printed = reader.homophily(command)
            assert code == (2 if failing else 0), f"{block.where}: {command} exited with {code}:\n{printed}"
        if block.shown and block.shown[0] == "json":
            check_object(block.where, json.loads(block.shown[1]), json.loads(printed.splitlines()[-1]))
        elif block.shown:
            check_printed(block.where, block.shown[1], printed)
    else:
        shown = ("text", "json", "toml", "ini")
        assert block.language in shown, f"{block.where}: {block.language} blocks are not supported"
