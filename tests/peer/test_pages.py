"""The pages on real peers quote the messages, settings and tests that exist."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from homophily.peer.settings import Peer

ROOT = Path(__file__).resolve().parents[2]
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "homophily/peer").glob("*.py"))}


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    text = (ROOT / page).read_text(encoding="utf-8")
    section = re.search(rf"^##+ {re.escape(heading)}\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None, f"{page} has no section {heading}"
    table = re.search(r"(?:^\|.*\n)+", section[1], re.MULTILINE)
    assert table is not None, f"{page}: {heading} has no table"
    return [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in table[0].splitlines()[2:]]


def quoted(heading: str) -> list[str]:
    """All code spans in the first column of a table of docs/deploy.md."""
    return [span for first, *_ in rows("docs/deploy.md", heading) for span in re.findall(r"`([^`]+)`", first)]


def pattern(node: ast.expr) -> str | None:
    """A regular expression of what a string, f-string or %-format of the source can become; None: it is neither."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%[sd]", ".+", re.escape(node.value).replace("\\%", "%"))
    if isinstance(node, ast.JoinedStr):
        return "".join(pattern(part) or ".+" if isinstance(part, ast.Constant) else ".+" for part in node.values)
    return None


def calls(function: str) -> Iterator[str]:
    """Patterns of the first argument of every call of a function or method in homophily/peer."""
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and re.fullmatch(function, ast.unparse(node.func)) and node.args:
                found = pattern(node.args[0])
                if found is not None:
                    yield found


def unmatched(messages: list[str], patterns: list[str]) -> list[str]:
    return [message for message in messages if not any(re.fullmatch(each, message) for each in patterns)]


def undocumented(patterns: list[str], messages: list[str]) -> list[str]:
    return [each for each in patterns if not any(re.fullmatch(each, message) for message in messages)]


def test_all_log_messages_are_documented_as_they_are() -> None:
    messages, patterns = quoted("Log messages"), list(calls(r"(self\._)?log\.(info|warning|error)"))
    assert len(patterns) >= 10
    assert unmatched(messages, patterns) == []
    assert undocumented(patterns, messages) == []
    threats = (ROOT / "docs/threat-model.md").read_text(encoding="utf-8")
    assert unmatched(re.findall(r"`(this peer [^`]+)`", threats), patterns) == []


def test_all_reasons_for_refusals_are_documented_as_they_are() -> None:
    messages = quoted("Reasons for refusals")
    patterns = [*calls("Refused"), *calls(r".*refusals\.add"), *calls(r".*\.refuse")]
    assert len(patterns) >= 30
    assert unmatched(messages, [*patterns, "other reasons"]) == []
    handshakes = "handshake: .+".replace(" ", re.escape(" "))
    assert [each for each in undocumented(patterns, messages) if each != handshakes] == []


def test_all_reasons_for_failed_connections_are_documented_as_they_are() -> None:
    tree = TREES[ROOT / "homophily/peer/handshakes.py"]
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "plain_reason")
    returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
    cut = [value.value if isinstance(value, ast.Subscript) else value for value in returned]
    patterns = [found for found in map(pattern, cut) if found is not None]
    messages = quoted("Reasons for failed connections")
    of_the_system = [message for message in messages if re.search(r"os error|failed to lookup|sent no cert", message)]
    assert len(patterns) >= 6
    assert unmatched(messages, patterns) == of_the_system
    assert undocumented(patterns, messages) == []


def test_documented_errors_are_errors_of_the_code() -> None:
    assert unmatched(quoted("Errors"), list(calls("UserError"))) == []


def kind(field: FieldInfo) -> str:
    """The type of a setting in words, with its bounds."""
    allowed = [each for each in get_args(field.annotation) if each is not type(None)] or [field.annotation]
    if get_origin(field.annotation) is Literal:
        *first, last = (f'`"{each}"`' for each in allowed)
        return f"{', '.join(first)} or {last}"
    if get_origin(field.annotation) is list:
        return "list of strings"
    name = {str: "string", int: "integer", float: "number"}[allowed[0]]
    bounds = {key: getattr(each, key) for each in field.metadata for key in ("ge", "gt", "le") if hasattr(each, key)}
    if "le" in bounds:
        return f"{name}, {bounds['ge']:g} to {bounds['le']:d}"
    if "ge" in bounds:
        return f"{name}, at least {bounds['ge']}"
    return f"{name}, greater than {bounds['gt']}" if "gt" in bounds else name


def test_all_settings_are_documented_with_type_and_default() -> None:
    table = {key.strip("`"): cells for key, *cells in rows("docs/deploy.md", "Settings of `[peer]`")}
    assert set(table) == set(Peer.model_fields)
    for name, field in Peer.model_fields.items():
        shown, default, meaning = table[name]
        assert shown == kind(field), name
        assert meaning, name
        if field.default is PydanticUndefined:
            assert default == "required", name
        elif field.default not in (None, ""):
            assert default == f"`{json.dumps(field.default)}`", name


def test_the_status_fields_are_documented() -> None:
    page = (ROOT / "docs/deploy.md").read_text(encoding="utf-8")
    tree = TREES[ROOT / "homophily/peer/process.py"]
    status = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "_write_status")
    keys = [key.value for node in ast.walk(status) if isinstance(node, ast.Dict) for key in node.keys if key is not None
            if isinstance(key, ast.Constant)]  # fmt: skip
    fields = page.partition("| field of `status.json` |")[2].partition("\n\n")[0]
    assert len(keys) >= 10
    assert [key for key in keys if f"`{key}`" not in fields] == []


@pytest.mark.parametrize("page", ["docs/threat-model.md"])
def test_tests_named_as_evidence_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"`(\w+)::(test_\w+)`", text)
    assert len(named) >= 15
    for file, test in named:
        source = (ROOT / "tests" / "peer" / f"{file}.py").read_text(encoding="utf-8")
        assert f"\ndef {test}(" in source, f"{page} names {file}::{test}"
