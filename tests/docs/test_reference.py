"""What the pages list is what the code has: keys, defaults, fields and names."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from homophily import Method, RoundContext, Run, View
from homophily.atomic_io import read_tensors
from homophily.config.schema import Config, Data, Model, Topology, Training
from homophily.config.schema import Method as MethodTable
from homophily.data import shifts, sources
from homophily.data.sources import HEART_FEATURES
from homophily.federation.merging import MergeGroup, merges
from homophily.federation.similarity import metrics
from homophily.federation.topology import topologies
from homophily.methods import methods
from homophily.plugins.parameters import accepted
from homophily.plugins.registry import Registry
from homophily.simulation.configuration import make
from homophily.training.objectives import objectives
from tests.docs.pages import ROOT, Reader, blocks


def test_the_command_line_page_has_every_key_of_the_config_with_its_default(reader: Reader) -> None:
    text = next(block.text for block in blocks("docs/command-line.md") if block.language == "toml")
    shown = tomllib.loads(text)
    tables = {"data": Data, "model": Model, "training": Training, "method": MethodTable}
    keys = {"": [*Config.model_fields], **{name: [*table.model_fields] for name, table in tables.items()}}
    for table, names in keys.items():
        section = shown[table] if table else shown
        for name in names:
            assert name in section or f"# {name} = " in text, f"docs/command-line.md lacks the key {table}.{name}"
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
    assert not missing, f"docs/run-folder.md does not mention {missing}"
    overview = table("docs/run-folder.md", "Overview")
    assert sorted(name.rstrip("/") for name in overview) == sorted(path.name for path in run.path.iterdir())
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
    """A function's keys and defaults as a page writes them; the page explains what an omitted key means."""
    parameters = [p for p in inspect.signature(item).parameters.values() if p.name not in passed]
    words = {p.name: "no default)" if p.default is p.empty else "left out: " for p in parameters}
    return [
        f"`{p.name}` ({words[p.name]}" if p.default in (p.empty, None) else f"`{p.name}` = {json.dumps(p.default)}"
        for p in parameters
    ]


@pytest.mark.parametrize(
    ("page", "heading", "registry", "passed"),
    [
        ("docs/methods.md", "All methods and their keys", methods, methods.passed),
        ("docs/methods.md", "Similarity metrics", metrics, ("pairs",)),
        ("docs/methods.md", "Topologies", topologies, topologies.passed),
        ("docs/training.md", "Local objectives", objectives, objectives.passed),
    ],
)
def test_a_page_has_every_name_and_key_with_its_default(
    page: str, heading: str, registry: Registry[Any], passed: tuple[str, ...]
) -> None:
    shown = table(page, heading)
    assert sorted(shown) == list(registry), f"{page}: {heading}"
    for name, (cell, *_) in shown.items():
        found = [] if cell == "none" else cell.split(", ")
        wanted = keys_in_words(registry.get(name), passed)
        exact = [re.sub(r"(\(left out: ).*", r"\1", key) for key in found]
        assert exact == wanted, f"{page}: the keys of {name}"


def test_the_methods_page_explains_every_merge_key_and_cost(reader: Reader) -> None:
    page = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
    assert sorted(table("docs/methods.md", "Merges")) == list(merges)
    explained = re.sub(r"^\| `.*` = .*\n", "", page, flags=re.MULTILINE)  # without the lists of keys and defaults
    keys = {key for name in methods for key in accepted(methods.get(name)) or []}
    missing = sorted(key for key in keys if not re.search(rf"`{key}[` ]", explained))
    assert not missing, f"docs/methods.md does not explain {missing}"
    reader.homophily("homophily run peers=8 rounds=1 --out run")
    counted = table("docs/methods.md", "What is counted")
    costs = [field for field in Run("run").summary if "models" in field or "bytes" in field or "neighbour" in field]
    assert sorted(counted) == sorted(costs)


def test_the_page_on_writing_a_method_is_short_and_names_everything() -> None:
    page = (ROOT / "docs/write-a-method.md").read_text(encoding="utf-8")
    example = next(block for block in blocks("docs/write-a-method.md") if block.file)
    lines = [line for line in example.text.splitlines() if line.strip() and not line.strip().startswith("#")]
    assert len(lines) < 30
    names = [f"now.{name}" for name in dir(RoundContext) if not name.startswith("_")]
    names += [f"now.{field.name}" for field in dataclasses.fields(RoundContext)]
    names += [field.name for field in dataclasses.fields(View)]
    names += [name for name in dir(Method) if not name.startswith("_")]
    missing = [name for name in dict.fromkeys(names) if not re.search(rf"`{name}[`(]", page)]
    assert not missing, f"docs/write-a-method.md does not mention {missing}"


def test_the_page_on_extending_names_what_a_merge_is_given() -> None:
    page = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    assert not [field.name for field in dataclasses.fields(MergeGroup) if f"`{field.name}`" not in page]


def test_the_data_page_names_every_data_set_shift_and_key() -> None:
    page = (ROOT / "docs/data.md").read_text(encoding="utf-8")
    keys = [key for source in sources for key in accepted(sources.get(source), ["seed"]) or []]
    keys += [key for shift in shifts for key in accepted(shifts.get(shift), ["source", "peers", "seed"]) or []]
    missing = [name for name in [*sources, *shifts, *keys] if not re.search(rf"`{name}[` ]", page)]
    assert not missing, f"docs/data.md does not mention {missing}"
    for feature, (mean, deviation) in HEART_FEATURES.items():
        assert f"| `{feature}` | {mean} | {deviation} |" in page
