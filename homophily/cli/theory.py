"""The command ``homophily theory``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from homophily.methods import theory
from homophily.report.console import chances as print_chances


def show_theory(
    peers: Annotated[int, typer.Option("--peers", help="Number of peers.")] = 100,
    cluster: Annotated[int, typer.Option("--cluster", help="Peers of the own cluster, the peer itself included.")] = 50,
    candidates: Annotated[int, typer.Option("--l", help="Peers drawn per round.")] = 10,
    k: Annotated[int, typer.Option("--k", help="Number of neighbours.")] = 5,
    rounds: Annotated[int, typer.Option("--rounds", help="Rounds of stage 1.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Print the probability that all k neighbours are of the own cluster, by round, for PANM (stage 1) and PENS."""
    chances = theory.cni(rounds, peers, cluster, candidates, k)
    fixed = theory.pens(peers, cluster, candidates, k)
    if as_json:
        print(json.dumps({"cni": chances, "pens": [fixed] * rounds}))
    else:
        print_chances(chances, fixed)
