"""The page of a result, NAME.md: its numbers beside the printed ones, the claims, notes, and the recipe's choices.

A page is written from a `Result`, so a stored NAME.json is enough to write it again. A file ``notes.toml`` in the same
folder adds what only a person can say: notes on a result, and changes of the code that a result is older than.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pydantic

from homophily.atomic_io import write_json, write_text, writing
from homophily.errors import UserError
from homophily.papers.summary import distance
from homophily.papers.tables import Result, Verdict, as_json, beside_printed, cell_text, distances, tally, verdicts

_HELD = {True: "held", False: "**not held**", None: "not computed"}
_OURS = " (our claim, not the paper's)"


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class Change(_Part):
    """A change of the code that stored results are older than."""

    method: str  # whose rows it concerns
    results: list[str]  # names
    text: str


class Note(_Part):
    """What a person says about a result. date: of the runs that the text speaks of."""

    date: str
    text: str


class Notes(_Part):
    """All of notes.toml."""

    changes: list[Change] = []
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
    """Write NAME.md and NAME.json (or NAME-quick) and return their paths."""
    paths = [folder / f"{result.title}{ending}" for ending in (".md", ".json")]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    picture = f"{result.title}.png" if (folder / f"{result.title}.png").exists() else None
    write_text(paths[0], markdown(result, Notes.read(folder), picture))
    write_json(paths[1], as_json(result))
    return paths


def markdown(result: Result, notes: Notes | None = None, picture: str | None = None) -> str:
    """Return the Markdown page. picture: the file of the figure, in the folder of the page."""
    return "\n".join(_lines(result, notes or Notes(), picture)) + "\n"


def _lines(result: Result, notes: Notes, picture: str | None) -> Iterator[str]:
    recipe, found = result.recipe, verdicts(result)
    yield from (f"# {recipe.title}", "")
    if result.quick:
        yield from ("**A quick, small version, not the paper's: other peers, rounds and data.**", "")
    yield from _summary(result, found)
    if picture:
        yield from ("", f"![{recipe.title}]({picture})")
    for text in _older(result, notes):
        yield from ("", f"**Older than the code.** {text}")
    yield from ("", "## Numbers", "", _legend(result), "", *_table(result))
    if found:
        yield from ("", "## Claims", "")
        yield from (f"- {_HELD[one.held]}: {one.text}{_OURS if one.ours else ''}." for one in found)
    if not result.quick and result.name in notes.notes:
        note = notes.notes[result.name]
        yield from ("", f"## Notes on the runs of {note.date}", "", note.text.strip())
    if recipe.choices:
        yield from ("", "## What the paper leaves open", "", "What the recipe takes, and why:", "")
        yield from (f"- {name}: {why}" for name, why in recipe.choices.items())


def _summary(result: Result, found: Sequence[Verdict]) -> Iterator[str]:
    """The sentences that a reader would quote, then the command, the date and the machine."""
    ours = [one for one in found if one.ours]
    if found:
        own = f", and {tally(ours)} of our own" if ours else ""
        yield f"**{tally([one for one in found if not one.ours])} claims of the paper hold{own}.**"
    far = distance([result])
    if far.mean is not None:
        gaps = "" if far.to_oracle is None else f"; in distances to Oracle, {far.to_oracle:.1f}"
        yield f"Mean distance to the {far.cells} printed accuracies: {far.mean:.1f} points{gaps}."
    command = f"homophily reproduce {result.name}{' --quick' * result.quick} --seeds {result.seeds}"
    seeds = "" if result.quick else f"; the full recipe has {result.recipe.seeds} seeds"
    yield from ("", f"`{command}`{seeds}.", f"{result.date}: {result.made}.")
    if result.missing:
        yield f"{result.missing} runs are missing."


def _older(result: Result, notes: Notes) -> Iterator[str]:
    for change in notes.changes:
        if not result.quick and result.name in change.results:
            rows = [row.label for row in result.recipe.rows.values() if _method(row.config) == change.method]
            yield f"Rows {', '.join(rows)}: {change.text}" if rows else change.text


def _method(config: dict[str, object]) -> object:
    method = config.get("method")
    return method.get("name") if isinstance(method, dict) else None


def _legend(result: Result) -> str:
    beside = "; in brackets what the paper prints; then the difference" if beside_printed(result.cells) else ""
    spread = f"mean ± standard deviation over {result.seeds} seeds" if result.seeds > 1 else "one seed, so no spread"
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
