"""The command ``homophily reproduce``."""

from __future__ import annotations

import time
from functools import partial
from math import inf
from pathlib import Path
from typing import Annotated

import typer

from homophily.cli.printing import print_result, stoppable
from homophily.errors import UserError
from homophily.experiments.runner import chosen_device
from homophily.papers import pages, summary, tables
from homophily.papers import recipe as recipes
from homophily.papers.reproduce import Reproduction
from homophily.papers.verdicts import verdicts
from homophily.report import console as show
from homophily.report import paper_figures, papers


def reproduce(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME ...]", show_default=False)] = None,
    listed: Annotated[bool, typer.Option("--list", help="List all tables and figures.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A small version, not the paper's, in a minute.")] = False,
    seeds: Annotated[int | None, typer.Option("--seeds", help="Number of seeds (default: the paper's).")] = None,
    budget: Annotated[
        float, typer.Option("--budget", help="Stop after this many seconds; call again to continue.")
    ] = inf,
    store: Annotated[Path, typer.Option("--store", help="Folder for the results of runs.")] = Path("runs/papers"),
    out: Annotated[Path, typer.Option("--out", help="Folder for NAME.md and NAME.json.")] = Path("results"),
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="Write pages from the NAME.json in --out; run nothing.")
    ] = False,
    variant: Annotated[
        str | None, typer.Option("--variant", help="A variant of the paper, fixed beforehand, instead of the recipe.")
    ] = None,
    rows: Annotated[str | None, typer.Option("--rows", help="Execute only these rows: a,b,c.")] = None,
    columns: Annotated[str | None, typer.Option("--columns", help="Execute only these columns: a,b,c.")] = None,
    add: Annotated[
        bool, typer.Option("--add", help="Run only what the NAME.json in --out lack, and add it to them.")
    ] = False,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object on the last line.")
    ] = False,
) -> None:
    """Reproduce tables or figures of the papers: our values beside the paper's, and which claims hold."""
    if rewrite:
        _rewrite(out, names or [])
        return
    if listed or not names:
        show.names("recipes", {name: recipes.load(name).title for name in recipes.names()})
        return
    if not budget >= 0:
        raise UserError(f"--budget {budget}: must be at least 0")
    until, chosen = time.monotonic() + budget, chosen_device(device)
    known = tables.known_scores(pages.stored(out)) if add else None
    only_rows, only_columns = (words.split(",") if words else [] for words in (rows, columns))
    wanted = [Reproduction.of(name, store, quick, seeds, variant, only_rows, only_columns, known) for name in names]
    for found in wanted:
        with stoppable(lambda run: "run the same command again to continue"), papers.playing(found.missing()) as bar:
            found.play(chosen, until - time.monotonic(), bar)
        before = out / f"{found.title}.json"
        result = tables.Result.of(found, tables.Result.read(before) if add and before.exists() else None)
        missing, variants = len(found.missing()), pages.variants_of(result, out)
        paths = []
        if not paper_figures.stays(found, out):
            pictures = paper_figures.written(found, out)
            paths = [*pages.write(result, out), *pictures]
        otherwise = partial(papers.reproduction, result, verdicts(result, variants), missing, paths)
        print_result(pages.as_json(result, variants), as_json, otherwise)


def _rewrite(out: Path, names: list[str]) -> None:
    """Write the pages of stored results again, and print the tables of docs/papers.md."""
    results = pages.stored(out, names)
    for result in results:
        pages.write(result, out)
    of_all = (summary.by_paper, summary.by_kind, summary.by_variant, summary.older, summary.left)
    print("\n\n".join([*(table(results) for table in of_all), summary.contradictions()]))
