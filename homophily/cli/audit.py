"""The command ``homophily audit``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from homophily.api import audit
from homophily.cli.exit_codes import ExitCode
from homophily.report.console import audited


def audit_run(
    folder: Annotated[Path, typer.Argument(help="A run's folder.")],
    canaries: Annotated[int, typer.Option("--canaries", help="Samples that are added to copies of peers.")] = 1000,
    steps: Annotated[
        int | None, typer.Option("--steps", help="Steps of private training to attack (default: of the whole run).")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Attack what the peers of a run release, and compare what that shows with the promised epsilon."""
    found = audit(folder, canaries=canaries, steps=steps, device=device)
    if as_json:
        print(json.dumps(found.as_dict()))
    else:
        audited(found)
    if found.passed is False:
        raise SystemExit(ExitCode.FAILED)
