"""Writes the report: one HTML file with its data, script and style inside, which loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from homophily.atomic_io import write_text
from homophily.errors import UserError
from homophily.report.page.comparison import comparison_view
from homophily.report.page.figures import View
from homophily.report.page.peer import peer_view
from homophily.report.page.run import run_view
from homophily.report.page.sources import Compared, Source, alike, is_comparison, is_peer, is_run
from homophily.runs.reader import Run, runs_inside
from homophily.version import __version__

_SCRIPTS = ("core.js", "charts.js", "canvases.js", "page.js")


def views_of(folders: Sequence[Path]) -> list[View]:
    """A view of each folder; several runs are also shown side by side."""
    views = [_view(folder) for folder in folders]
    runs = [Source(Run(folder)) for folder in folders if is_run(folder) and not is_peer(folder)]
    if len(runs) < 2:
        return views
    groups = alike(runs)
    return [comparison_view("side by side", Compared(groups, len(groups))), *views]


def _view(folder: Path) -> View:
    if is_peer(folder):
        return peer_view(Source(Run(folder)))
    if is_run(folder):
        return run_view(Source(Run(folder)))
    if is_comparison(folder):
        return comparison_view(str(folder), Compared.read(folder))
    why = (
        "is not a folder"
        if not folder.is_dir()
        else f"has no config.toml (a run or a peer) and no comparison.json (a comparison){runs_inside(folder)}"
    )
    raise UserError(f"{folder}: {why}")


def write_page(views: Sequence[View], path: Path) -> None:
    """Write the HTML file."""
    write_text(path, page_of(views)[0])


def page_of(views: Sequence[View], live: bool = False) -> tuple[str, str]:
    """The HTML of the report, and its Content-Security-Policy. live: it follows the server that it comes from."""
    script = '"use strict";\n' + "".join(_asset(name) for name in (*_SCRIPTS, *(["live.js"] if live else [])))
    style = _asset("style.css")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    if live:
        policy += "; connect-src 'self'"
    parts = {
        "POLICY": html.escape(policy),
        "TITLE": html.escape(", ".join(view.name for view in views)),
        "STYLE": style,
        "DATA": data_of(views).replace("<", "\\u003c"),
        "SCRIPT": script,
    }
    pieces = _asset("shell.html").split("@@")  # text and names of parts alternate
    return "".join(parts[piece] if place % 2 else piece for place, piece in enumerate(pieces)), policy


def data_of(views: Sequence[View]) -> str:
    """What the page shows, as JSON."""
    data = {"version": __version__, "views": [view.as_dict() for view in views]}
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The hash by which a Content-Security-Policy allows an inline script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
