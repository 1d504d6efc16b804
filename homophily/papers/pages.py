"""The page of a result, NAME.md: its numbers beside the printed ones, the claims, notes, and the recipe's choices.

A page is written from a `Result`, so a stored NAME.json is enough to write it again. A file ``notes.toml`` in the same
folder adds what only a person can say: notes on a result.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pydantic

from homophily.atomic_io import write_json, write_text, writing
from homophily.errors import UserError
from homophily.papers.editions import EDITIONS
from homophily.papers.reproduce import file_name
from homophily.papers.summary import distance
from homophily.papers.tables import Result, beside_printed, cell_text, distances
from homophily.papers.verdicts import Kind, Verdict, tally, verdicts

_OURS = " (our claim, not the paper's)"


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class Note(_Part):
    """What a person says about a result. date: of the runs that the text speaks of."""

    date: str
    text: str


class Notes(_Part):
    """All of notes.toml."""

    notes: dict[str, Note] = {}  # by the name of the result

    @classmethod
    def read(cls, folder: Path) -> Notes:
        """Those of a folder; none if it has no such file."""
        path = folder / "notes.toml"
        if not path.exists():
            return cls()
        try:
            return cls.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read {path}: {error}") from None


def stored(folder: Path, names: Sequence[str] = ()) -> list[Result]:
    """The results in a folder, by name; names: only these."""
    known = {path.stem: path for path in sorted(folder.glob("*-*.json"))}
    if missing := [name for name in names if name not in known]:
        raise UserError(f"there is no result {missing[0]!r} in {folder}; there are {', '.join(known) or 'none'}")
    return [Result.read(known[name]) for name in names or known]


def write(result: Result, folder: Path) -> list[Path]:
    """Write NAME.md and NAME.json (or NAME-quick, NAME-VARIANT) and return their paths."""
    paths = [folder / f"{result.title}{ending}" for ending in (".md", ".json")]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    picture = f"{result.title}.png" if (folder / f"{result.title}.png").exists() else None
    variants = variants_of(result, folder)
    write_text(paths[0], markdown(result, Notes.read(folder), picture, variants))
    write_json(paths[1], as_json(result, variants))
    return paths


def variants_of(result: Result, folder: Path) -> list[Result]:
    """The stored results of a result's variants."""
    paths = [folder / f"{file_name(result.name, variant, result.quick)}.json" for variant in result.recipe.variants]
    return [Result.read(path) for path in paths if result.variant is None and path.exists()]


def markdown(
    result: Result, notes: Notes | None = None, picture: str | None = None, variants: Sequence[Result] = ()
) -> str:
    """Return the Markdown page. picture: the file of the figure, in the folder of the page."""
    return "\n".join(_lines(result, notes or Notes(), picture, variants)) + "\n"


def _lines(result: Result, notes: Notes, picture: str | None, variants: Sequence[Result]) -> Iterator[str]:
    recipe, found = result.recipe, verdicts(result, variants)
    yield from (f"# {recipe.title}", "")
    if result.quick:
        yield from ("**A quick, small version, not the paper's: other peers, rounds and data.**", "")
    if result.variant is not None:
        variant = recipe.variants[result.variant]
        yield from (f"**A variant, fixed on {variant.date}:** {variant.choice}. Reason: {variant.reason}.", "")
    yield from _summary(result, found)
    if picture:
        yield from ("", f"![{recipe.title}]({picture})")
    for method, cells in result.older().items():
        change = f"{EDITIONS[method].change}; changed on {EDITIONS[method].date}"
        where = _where(result, cells)
        yield from ("", f"**Older than the code.** {where}: these runs are older than a change: {change}.")
    yield from ("", "## Numbers", "", _legend(result), "", *_table(result))
    if found:
        yield from ("", "## Claims", "")
        yield from (f"- {claim_text(one)}." for one in found)
    if not result.quick and result.variant is None and result.name in notes.notes:
        note = notes.notes[result.name]
        yield from ("", f"## Notes on the runs of {note.date}", "", note.text.strip())
    if recipe.choices:
        but = "" if result.variant is None else ", which hold but for the variant"
        yield from ("", "## What the paper leaves open", "", f"The recipe's choices and the reasons for them{but}:", "")
        yield from (f"- {name}: {why}" for name, why in recipe.choices.items())


def _where(result: Result, cells: Sequence[tuple[str, str]]) -> str:
    """The labels of the rows of cells, and of their columns if other columns have values in these rows."""
    rows, columns = (list(dict.fromkeys(part)) for part in zip(*cells, strict=True))
    filled = [column for column in result.columns if any(result.cells[row][column].values for row in rows)]
    recipe = result.recipe
    only = f", columns {', '.join(recipe.columns[one].label for one in columns)}" if columns != filled else ""
    return f"Rows {', '.join(recipe.rows[row].label for row in rows)}{only}"


def _summary(result: Result, found: Sequence[Verdict]) -> Iterator[str]:
    """The sentences that a reader would quote, then the command, the date and the machine."""
    ours = [one for one in found if one.ours]
    if any(one.held is not None for one in found):
        own = f", and {tally(ours)} of our own" if ours else ""
        yield f"**{tally([one for one in found if not one.ours])} claims of the paper hold{own}.**"
    elif found:
        yield "**No claim can be checked yet: cells are missing.**"
    far = distance([result])
    if far.mean is not None:
        gaps = "" if far.to_oracle is None else f"; after subtracting Oracle, {far.to_oracle:.1f}"
        yield f"Mean distance to the {far.cells} printed accuracies: {far.mean:.1f} points{gaps}."
    variant = "" if result.variant is None else f" --variant {result.variant}"
    least, most = result.seeds
    command = f"homophily reproduce {result.name}{variant}{' --quick' * result.quick} --seeds {max(1, most)}"
    full = result.recipe.seeds
    seeds = "" if result.quick else f"; the full recipe has {full} seed{'s' * (full > 1)}"
    yield from ("", f"`{command}`{seeds}.", *_made(result))
    if least < most:
        yield f"Not all cells have {most} seeds: {_fewer(result)}."
    if result.empty:
        yield f"{result.empty} cells have no run yet."


def _made(result: Result) -> Iterator[str]:
    """A line for each day and machine."""
    seconds: dict[str, float] = {}
    for one in result.made.values():
        about = f"{one.date}: {one.machine}"
        seconds[about] = seconds.get(about, 0.0) + one.seconds
    yield from (f"{about}; {took:,.0f} s in rounds." for about, took in sorted(seconds.items()))
    if not seconds:
        yield "No run finished yet."


def _fewer(result: Result) -> str:
    """The rows that have cells with fewer seeds than others, such as "kin (0)"."""
    most = result.seeds[1]
    rows = {
        result.recipe.rows[row].label: sorted({tuple(cell.values) for cell in mine.values() if cell.values})
        for row, mine in result.cells.items()
        if any(0 < len(cell.values) < most for cell in mine.values())
    }
    return ", ".join(f"{row} ({' or '.join(', '.join(map(str, own)) for own in seeds)})" for row, seeds in rows.items())


def claim_text(one: Verdict) -> str:
    """A claim with its verdict, such as "**does not hold**: Oracle is best"."""
    kind = one.kind.value if one.kind in (Kind.HELD, Kind.OPEN) else f"**{one.kind.value}**"
    why = f" ({one.why})" if one.why else ""
    return f"{kind}{why}: {one.text}{_OURS if one.ours else ''}"


def as_json(result: Result, variants: Sequence[Result] = ()) -> dict[str, Any]:
    """Return the result as NAME.json stores it."""
    return {
        "name": result.name,
        "title": result.recipe.title,
        "quick": result.quick,
        "variant": result.variant,
        "unit": result.recipe.unit,
        "cells": {
            row: {
                column: {
                    "seeds": list(number.values),
                    "values": list(number.values.values()),
                    "edition": number.edition,
                    "diverged": number.diverged,
                    "mean": number.mean,
                    "std": number.deviation,
                    "printed": number.printed,
                    "printed_std": number.printed_deviation,
                    "difference": number.difference,
                }
                for column, number in mine.items()
            }
            for row, mine in result.cells.items()
        },
        "distances": distances(result.cells),
        "claims": [
            {"text": one.text, "held": one.held, "ours": one.ours, "verdict": one.kind.value, "why": one.why}
            for one in verdicts(result, variants)
        ],
        "runs": {name: asdict(one) for name, one in result.made.items()},
    }


def _legend(result: Result) -> str:
    beside = "; in brackets what the paper prints; then the difference" if beside_printed(result.cells) else ""
    least, most = result.seeds
    up_to = "up to " if least < most else ""
    spread = f"mean ± standard deviation over {up_to}{most} seeds" if most > 1 else "one seed, so no spread"
    return f"Unit: {result.recipe.unit}. Ours ({spread}){beside}."


def _table(result: Result) -> Iterator[str]:
    recipe, columns = result.recipe, result.columns
    yield f"| | {' | '.join(recipe.columns[column].label for column in columns)} |"
    yield f"| --- |{' --- |' * len(columns)}"
    for row, mine in result.cells.items():
        label = recipe.rows[row].label + (" (not the paper's)" if recipe.rows[row].ours else "")
        yield f"| {label} | {' | '.join(cell_text(mine[column]) for column in columns)} |"
    for kind, off in distances(result.cells).items():
        yield f"| *{kind}* | {' | '.join(f'{off[c]:.2f}' if c in off else '' for c in columns)} |"
