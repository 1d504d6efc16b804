"""The generated files and the functions that make them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from docs.generate.config_page import page
from docs.generate.drawing import drawing

DOCS = Path(__file__).resolve().parents[1]
GENERATED: dict[Path, Callable[[], str]] = {DOCS / "config.md": page, DOCS / "architecture.svg": drawing}
