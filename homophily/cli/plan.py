"""The command ``homophily plan``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from homophily.config.overlay import nested, split
from homophily.experiments.planning import plan
from homophily.report.console import planned
from homophily.simulation.configuration import load


def plan_run(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[CONFIG.toml] [key=value ...]", show_default=False)
    ] = None,
    ranks: Annotated[int, typer.Option("--ranks", help="Processes that share the peers, one per GPU.")] = 1,
    link: Annotated[str, typer.Option("--link", help="Speed at which a rank receives, such as 400Gbit.")] = "100Gbit",
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Estimate memory per rank, seconds per round and the bottleneck of a run, before it is started."""
    config, assignments = split(words or [])
    found = plan(load(config, nested(assignments)), ranks, link, device)
    if as_json:
        print(json.dumps(found.as_dict()))
    else:
        planned(found)
