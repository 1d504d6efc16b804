"""The documentation is correct: its commands and snippets are run in order, and its lists are complete.

Each page is run in one folder. A block whose first line is ``# file: NAME`` is a file the reader writes; lines of a
``sh`` block are commands; a ``python`` block is run; a ``text`` block right after one of these is what it prints, and a
``json`` block after a command the object that its ``--json`` prints. ``error:`` as shown output means exit code 2. A
command that ends with ``&`` runs in the background and must have succeeded when the page ends.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import math
import re
import shlex
import subprocess
import sys
import tomllib
import types
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from homophily import Method, RoundContext, Run, View
from homophily.atomic_io import read_tensors
from homophily.cli import app as cli
from homophily.config.schema import Config, Data, Model, Topology, Training
from homophily.config.schema import Method as MethodTable
from homophily.data import shifts, sources
from homophily.data.sources import HEART_FEATURES
from homophily.federation.merging import MergeGroup, merges
from homophily.federation.similarity import metrics
from homophily.federation.topology import topologies
from homophily.methods import methods
from homophily.models import models
from homophily.plugins.parameters import accepted
from homophily.plugins.registry import Registry
from homophily.simulation.configuration import make

ROOT = Path(__file__).resolve().parents[1]
STORIES = ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]

# Shown, but not run here: they set up the machine, or are what runs this very test.
NOT_RUN = {
    "make demo",
    "make test",
    "pip install -c constraints.txt -e .",
    ".venv/bin/pytest tests/test_docs.py",
    ".venv/bin/ruff format .",
    "export HOMOPHILY_DATA=$HOME/data",
    "export HOMOPHILY_DATA=$HOME/data:/mnt/data",
}
NEEDS_FILES = {"mnist", "fashion-mnist", "cifar-10", "cifar-100", "heart-disease"}
CLOSE = 4.0  # how far a shown number may be from the one here: other machines round differently

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d+(\.\d+)?%?")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page. shown: the block of output right after it, if any."""

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
        """The lines of a shell block without prompts and comments."""
        lines = (re.sub(r"(^|\s+)#.*", "", line).strip().removeprefix("$ ") for line in self.text.splitlines())
        return [line for line in lines if line]


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    found = list(FENCE.finditer(text))
    assert len(found) * 2 == len(re.findall(r"^```", text, re.MULTILINE)), f"{page}: a block without a language or end"
    out = []
    for i, match in enumerate(found):
        after = found[i + 1] if i + 1 < len(found) else None
        follows = after and after[1] in ("text", "json") and not text[match.end() : after.start()].strip()
        shown = (after[1], after[2]) if after and follows else None
        line = text.count("\n", 0, match.start()) + 1
        out.append(Block(f"{page}:{line}", match[1], match[2], shown))
    return out


def needs_files(command: str) -> bool:
    values = {word.partition("=")[2] for word in shlex.split(command) if word.startswith("data")}
    return bool(values & NEEDS_FILES)


class Reader:
    """A reader who follows a page in an empty folder."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.capsys, self.monkeypatch = capsys, monkeypatch
        self.running: list[tuple[str, subprocess.Popen[bytes], Path]] = []
        self.module = types.ModuleType("page")
        monkeypatch.setitem(sys.modules, "page", self.module)

    def beside(self, command: str) -> None:
        """Start a command in the background."""
        words = [sys.executable, "-m", "homophily", *shlex.split(command)[1:]]
        log = Path(f"beside-{len(self.running)}.log")
        with log.open("wb") as out:
            self.running.append((command, subprocess.Popen(words, stdout=out, stderr=out), log))

    def finish(self) -> None:
        """Wait for the commands in the background."""
        for command, process, log in self.running:
            assert process.wait(60) == 0, f"{command}:\n{log.read_text(encoding='utf-8')}"

    def homophily(self, command: str) -> tuple[int, str]:
        """Run a command and return its exit code and output."""
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
        self.capsys.readouterr()
        exec(compile(block.text, block.where, "exec"), self.module.__dict__)
        return self.capsys.readouterr().out

    def write(self, name: str, text: str) -> None:
        Path(name).write_text(text, encoding="utf-8")
        importlib.invalidate_caches()


@pytest.fixture
def reader(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("HOMOPHILY_MIRROR", "http://127.0.0.1:9")  # nothing is downloaded by a test
    for registry in (methods, shifts, sources, models, merges, metrics, topologies):  # a page may register things
        monkeypatch.setattr(registry, "_items", dict(registry._items))
    reader = Reader(capsys, monkeypatch)
    yield reader
    for _, process, _ in reader.running:
        process.kill()
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def check_printed(where: str, shown: str, printed: str) -> None:
    """Compare two outputs word by word; numbers may differ a little, and times may have any value."""
    want, have = (re.sub(r"\b\d+\.\d+ s\b", "SECONDS", text).split() for text in (shown, printed))
    differ = [f"{a} is {b}" for a, b in zip_longest(want, have, fillvalue="nothing") if not same(a, b)]
    assert not differ, f"{where}: what is shown as {', '.join(differ)} in:\n{printed}"


def same(shown: str, printed: str) -> bool:
    if shown[-1:] == printed[-1:] and shown[-1:] in (",", ";"):
        shown, printed = shown[:-1], printed[:-1]
    if NUMBER.fullmatch(shown) and NUMBER.fullmatch(printed) and shown.endswith("%") == printed.endswith("%"):
        a, b = float(shown.rstrip("%")), float(printed.rstrip("%"))
        return math.isclose(a, b, abs_tol=CLOSE)
    return shown == printed


def check_object(where: str, shown: Mapping[str, Any], printed: Mapping[str, Any]) -> None:
    assert list(shown) == list(printed), where
    for key, value in shown.items():
        if isinstance(value, dict):
            check_object(f"{where} {key}", value, printed[key])
        elif key != "seconds" and not isinstance(value, str | list):
            assert math.isclose(value, printed[key], abs_tol=CLOSE), f"{where}: {key}"


def follow(reader: Reader, block: Block) -> None:
    """Execute one block of a page."""
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
            if command in NOT_RUN or needs_files(command):
                continue
            assert command.split()[0] == "homophily", f"{block.where}: nothing is known of the command {command!r}"
            if command.endswith("&"):
                reader.beside(command.removesuffix("&"))
                continue
            code, printed = reader.homophily(command)
            assert code == (2 if failing else 0), f"{block.where}: {command} ended with {code}:\n{printed}"
        if block.shown and block.shown[0] == "json":
            check_object(block.where, json.loads(block.shown[1]), json.loads(printed.splitlines()[-1]))
        elif block.shown:
            check_printed(block.where, block.shown[1], printed)
    else:
        shown = ("text", "json", "toml", "ini", "dockerfile")
        assert block.language in shown, f"{block.where}: {block.language} blocks are not run"


@pytest.mark.parametrize("page", STORIES)
def test_a_page_works_from_top_to_bottom(page: str, reader: Reader) -> None:
    for block in blocks(page):
        # The first screen's commands set up the machine; what they show is tested below.
        if not (block.language == "sh" and set(block.commands) <= NOT_RUN):
            follow(reader, block)
    reader.finish()


WITH_FILES = [
    pytest.param(command, id=f"{block.where} {command}")
    for page in STORIES
    for block in blocks(page)
    if block.language == "sh"
    for command in block.commands
    if needs_files(command)
]


@pytest.mark.parametrize("command", WITH_FILES)
def test_a_command_that_needs_files(command: str, reader: Reader) -> None:
    code, printed = reader.homophily(command)
    if code == 2 and "could not be downloaded" in printed:
        warnings.warn(f"NOT TESTED, as its files are not here (HOMOPHILY_DATA): {command}", stacklevel=1)
        pytest.skip(" ".join(printed.split()))
    assert code == 0, printed


def test_the_readme_shows_what_the_demo_prints(reader: Reader) -> None:
    """One seed of the three, and the first and last method, so that it stays quick."""
    makefile, readme = ((ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", "README.md"))
    demo = re.search(r"/(homophily compare methods=(\S+) seeds=\S+)\n", makefile)
    assert demo is not None
    assert f"`{demo[1]}`" in readme
    shown = accuracies(next(block.text for block in blocks("README.md") if block.language == "text"))
    assert list(shown) == demo[2].split(",")
    first, *_, last = shown
    code, printed = reader.homophily(f"homophily compare methods={first},{last} seeds=0")
    assert code == 0, printed
    for method, values in accuracies(printed).items():
        assert shown[method] == pytest.approx(values, abs=CLOSE), f"{method} in the README"


def accuracies(table: str) -> dict[str, list[float]]:
    """Each method's accuracy in the four clusters and in all, from the table of a comparison."""
    rows = [line.split() for line in table.splitlines()]
    return {row[0]: [float(cell) for cell in row[1:6]] for row in rows if row and row[0] in methods}


def test_the_readme_has_every_key_of_the_config_with_its_default(reader: Reader) -> None:
    text = next(block.text for block in blocks("README.md") if block.language == "toml")
    shown = tomllib.loads(text)
    tables = {"data": Data, "model": Model, "training": Training, "method": MethodTable}
    keys = {"": [*Config.model_fields], **{name: [*table.model_fields] for name, table in tables.items()}}
    for table, names in keys.items():
        section = shown[table] if table else shown
        for name in names:
            assert name in section or f"# {name} = " in text, f"README: the config has a key {table}.{name}"
    assert make(shown).topology == Topology()
    reader.write("run.toml", text)
    assert reader.homophily("homophily run run.toml rounds=1 --out file")[0] == 0
    assert reader.homophily("homophily run rounds=1 --out bare")[0] == 0
    assert Run("file").config == Run("bare").config


def test_the_run_folder_page_names_every_file_and_field(reader: Reader) -> None:
    page = (ROOT / "docs/run-folder.md").read_text(encoding="utf-8")
    names: list[str] = []
    for method in ("random", "panm", "ifca"):
        reader.homophily(f"homophily run method={method} peers=8 rounds=3 --out {method}")
        run = Run(method)
        layout = run.about["layout"]
        names += [path.name for path in run.path.rglob("*") if path.is_file()]
        names += [
            *run.summary, *run.scores, *run.metrics()[0], *run.about, *run.about["versions"], *run.about["plan"],
            *layout, *layout["columns"][0], *read_tensors(run.path / "merges.safetensors"),
        ]  # fmt: skip
    missing = [name for name in dict.fromkeys(names) if f"`{name}`" not in page]
    assert not missing, f"docs/run-folder.md says nothing of {missing}"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not [path.name for path in run.path.iterdir() if f"`{path.name}" not in readme]
    reader.homophily("homophily kin peers=8 --out kin")
    answer = json.loads(Path("kin/kin.json").read_text(encoding="utf-8"))
    assert not [name for name in ["kin.json", "kin.png", *answer] if f"`{name}`" not in page]


def table(page: str, heading: str) -> dict[str, list[str]]:
    """The cells of the first table of a section, by the name in its first column."""
    text = (ROOT / page).read_text(encoding="utf-8")
    section = re.split(r"^## ", text.partition(f"\n## {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    first = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert first is not None, f"{page}: {heading} has no table"
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in first[0].splitlines()[2:]]
    return {name.strip("`"): cells for name, *cells in rows}


def keys_in_words(item: Any, passed: tuple[str, ...]) -> list[str]:
    """A function's keys with their defaults as a page says them; what a key left out stands for is up to the page."""
    parameters = [p for p in inspect.signature(item).parameters.values() if p.name not in passed]
    words = {p.name: "no default)" if p.default is p.empty else "left out: " for p in parameters}
    return [
        f"`{p.name}` ({words[p.name]}" if p.default in (p.empty, None) else f"`{p.name}` = {json.dumps(p.default)}"
        for p in parameters
    ]


@pytest.mark.parametrize(
    ("heading", "registry", "passed"),
    [
        ("All methods and their keys", methods, methods.passed),
        ("Similarity metrics", metrics, ("pairs",)),
        ("Topologies", topologies, topologies.passed),
    ],
)
def test_the_methods_page_has_every_name_and_key_with_its_default(
    heading: str, registry: Registry[Any], passed: tuple[str, ...]
) -> None:
    shown = table("docs/methods.md", heading)
    assert sorted(shown) == list(registry), f"docs/methods.md: {heading}"
    for name, (cell, *_) in shown.items():
        there = [] if cell == "none" else cell.split(", ")
        wanted = keys_in_words(registry.get(name), passed)
        exact = [re.sub(r"(\(left out: ).*", r"\1", key) for key in there]
        assert exact == wanted, f"docs/methods.md: the keys of {name}"


def test_the_methods_page_explains_every_merge_key_and_cost(reader: Reader) -> None:
    page = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
    assert sorted(table("docs/methods.md", "Merges")) == list(merges)
    explained = re.sub(r"^\| `.*` = .*\n", "", page, flags=re.MULTILINE)  # all but the lists of keys and defaults
    keys = {key for name in methods for key in accepted(methods.get(name)) or []}
    missing = sorted(key for key in keys if not re.search(rf"`{key}[` ]", explained))
    assert not missing, f"docs/methods.md does not explain {missing}"
    reader.homophily("homophily run peers=8 rounds=1 --out run")
    counted = table("docs/methods.md", "What is counted")
    costs = [field for field in Run("run").summary if "models" in field or "bytes" in field or "neighbour" in field]
    assert sorted(counted) == sorted(costs)


def test_the_page_on_writing_a_method_is_short_and_names_all_there_is() -> None:
    page = (ROOT / "docs/write-a-method.md").read_text(encoding="utf-8")
    example = next(block for block in blocks("docs/write-a-method.md") if block.file)
    lines = [line for line in example.text.splitlines() if line.strip() and not line.strip().startswith("#")]
    assert len(lines) < 30
    names = [f"now.{name}" for name in dir(RoundContext) if not name.startswith("_")]
    names += [f"now.{field.name}" for field in dataclasses.fields(RoundContext)]
    names += [field.name for field in dataclasses.fields(View)]
    names += [name for name in dir(Method) if not name.startswith("_")]
    missing = [name for name in dict.fromkeys(names) if not re.search(rf"`{name}[`(]", page)]
    assert not missing, f"docs/write-a-method.md says nothing of {missing}"


def test_the_bring_your_own_page_names_what_a_merge_is_given() -> None:
    page = (ROOT / "docs/bring-your-own.md").read_text(encoding="utf-8")
    assert not [field.name for field in dataclasses.fields(MergeGroup) if f"`{field.name}`" not in page]


def test_the_data_page_names_every_data_set_shift_and_key() -> None:
    page = (ROOT / "docs/data.md").read_text(encoding="utf-8")
    keys = [key for source in sources for key in accepted(sources.get(source), ["seed"]) or []]
    keys += [key for shift in shifts for key in accepted(shifts.get(shift), ["source", "peers", "seed"]) or []]
    missing = [name for name in [*sources, *shifts, *keys] if not re.search(rf"`{name}[` ]", page)]
    assert not missing, f"docs/data.md says nothing of {missing}"
    for feature, (mean, deviation) in HEART_FEATURES.items():
        assert f"| `{feature}` | {mean} | {deviation} |" in page


def test_links_lead_somewhere() -> None:
    for page in [*STORIES, "CHANGELOG.md"]:
        text = (ROOT / page).read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            target, _, anchor = link.partition("#")
            if target.startswith("http"):
                continue
            path = (ROOT / page).parent / target if target else ROOT / page
            assert path.is_file(), f"{page}: {link}"
            if path.suffix != ".md":
                continue
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings]
            assert not anchor or anchor in anchors, f"{page}: {link} is not one of {anchors}"
