"""Commit subjects follow CONTRIBUTING.md, from BASE on."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BASE = "c19e9a519035"  # older commits do not follow the rule
LONGEST = 72


def git(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("git is not installed")


def test_commit_subjects_are_short_and_begin_with_a_verb() -> None:
    """A capital letter and no full stop at the end; no program can decide whether a verb is imperative."""
    if git("rev-parse", "--show-toplevel").stdout.strip() != str(ROOT):
        pytest.skip("not a git checkout")
    if git("merge-base", "--is-ancestor", BASE, "HEAD").returncode != 0:
        pytest.skip(f"the history does not reach back to {BASE}: a shallow clone?")
    subjects = git("log", "--no-merges", "--format=%s", f"{BASE}..HEAD").stdout.splitlines()
    wrong = [
        subject for subject in subjects if len(subject) > LONGEST or not re.match(r"[A-Z][a-z-]+ .*[^.]$", subject)
    ]
    assert wrong == []
