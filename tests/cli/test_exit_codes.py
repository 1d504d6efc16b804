"""The exit codes are those that docs/command-line.md lists, and no command ends with another number."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from homophily.cli.exit_codes import ExitCode

ROOT = Path(__file__).resolve().parents[2]
Command = Callable[..., tuple[int, str, str]]


def test_the_page_lists_all_codes() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    table = page.partition("| exit code | meaning |\n")[2].partition("\n\n")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == [*ExitCode]


def test_the_command_line_names_no_number() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "homophily" / "cli").rglob("*.py")]
    ends = [end for source in sources for end in re.findall(r"SystemExit\(([^)]*)\)|sys\.exit\(([^)]*)\)", source)]
    assert ends
    assert all(end[0].startswith("ExitCode.") for end in ends), ends


def test_a_command_that_finishes_a_mistake_and_a_run_that_diverges(command: Command) -> None:
    assert command("list", "merges")[0] == ExitCode.DONE
    assert command("run", "rounds=-1")[0] == ExitCode.MISTAKE
    assert command("run", "peers=4", "rounds=1", "training.lr=1e30", "data.test=5")[0] == ExitCode.FAILED


def test_backup_and_restore_print_what_they_wrote(command: Command) -> None:
    assert command("run", "peers=4", "rounds=1", "data.test=5", "--out", "run")[0] == ExitCode.DONE
    assert command("backup", "run", "run.tar")[1].endswith("round 1\n")
    assert command("restore", "run.tar", "again")[1].startswith("again: ")
    code, _, said = command("restore", "run.tar", "again")
    assert (code, "already exists" in said) == (ExitCode.MISTAKE, True)
