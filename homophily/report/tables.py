"""Console tables that never cut off numbers: columns that do not fit are printed below."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

_NAME = 8  # characters of a name that are always shown
_HEADING = 19  # characters up to which a heading stays on one line even if its column could be narrower
_Column = tuple[str, list[str]]  # heading and cells


def print_table(
    console: Console,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str = "",
    sections: Collection[int] = (),
    first: JustifyMethod = "left",
) -> None:
    """Print rows of strings: a name, then numbers.

    sections: rows with an empty line below; first: alignment of the names.
    If the terminal is too narrow, names are shortened and headings wrapped, and then columns are printed below in
    tables that repeat the names; cells that are too long even then are wrapped between words.
    """
    if title:
        console.print(Text(title, style="table.title"), soft_wrap=True)
    columns = [(heading, [row[i] for row in rows]) for i, heading in enumerate(headings)]
    name, widths, parts = _fitted(columns, _room(console))
    for part in parts:
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), width=_total([name, *(widths[i] for i in part)]))
        table.add_column(Text(_shortened(headings[0], name)), justify=first, no_wrap=True, width=name)
        for i in part:
            table.add_column(Text(headings[i + 1]), justify="right", overflow="fold", width=widths[i])
        for number, row in enumerate(rows):
            cells = (Text(row[i + 1]) for i in part)
            table.add_row(Text(_shortened(row[0], name)), *cells, end_section=number in sections)
        console.print(table, crop=False)


def fits(console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a table fits into the console's width, with no heading wrapped and no name shortened."""
    columns = [(heading, [row[i] for row in rows]) for i, heading in enumerate(headings)]
    room = _room(console)
    return room is None or _total([_width(column, _HEADING) for column in columns]) <= room


def print_pairs(console: Console, pairs: Mapping[str, str]) -> None:
    """Print names and their values; on a terminal, long values are wrapped between words."""
    room = _room(console)
    name = max(map(cell_len, pairs), default=0)
    widest = max(map(cell_len, pairs.values()), default=0)
    value = widest if room is None else max(_NAME, min(widest, room - name - 2))
    table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    table.width = name + 2 + value
    table.add_column(no_wrap=True, width=name)
    table.add_column(overflow="fold", width=value)
    for key, text in pairs.items():
        table.add_row(Text(key), Text(text))
    console.print(table, crop=False)


def _room(console: Console) -> int | None:
    """Return the characters per line; None: unlimited, because the output is a file or pipe."""
    return console.width if console.is_terminal or os.environ.get("COLUMNS") else None


def _fitted(columns: Sequence[_Column], room: int | None) -> tuple[int, list[int], list[list[int]]]:
    """Return the width of the names, the widths of the other columns, and which columns are printed together."""
    name, *widths = (_width(column, _HEADING) for column in columns)
    if room is None:
        return name, widths, [list(range(len(widths)))]
    least = min(name, _NAME)
    if _total([least, *widths]) > room:  # wrap headings before columns are printed below
        widths = [_width(column, 0) for column in columns[1:]]
    most = room - _total([least, 0])
    widths = [
        max(min(width, most), _longest([heading, *cells]))
        for width, (heading, cells) in zip(widths, columns[1:], strict=True)
    ]
    parts = _parts(least, widths, room)
    left = min(room - _total([0, *(widths[i] for i in part)]) for part in parts)
    return max(least, min(name, left)), widths, parts


def _width(column: _Column, one_line: int) -> int:
    """Return the width that a column needs; a heading longer than ``one_line`` is wrapped between words."""
    heading, cells = column
    return max(min(cell_len(heading), one_line), _longest([heading]), *map(cell_len, cells))


def _shortened(name: str, width: int) -> str:
    """Return a name with its middle left out if it is too long: names often differ in a number at their end."""
    if cell_len(name) <= width:
        return name
    last = width // 2
    end = next(name[i:] for i in range(len(name) + 1) if cell_len(name[i:]) <= last)
    return next(name[:i] for i in range(len(name), -1, -1) if cell_len(name[:i]) < width - last) + "…" + end


def _longest(texts: Sequence[str]) -> int:
    """Return the width of the longest word of all texts."""
    return max((cell_len(word) for text in texts for word in text.split()), default=1)


def _total(widths: Sequence[int]) -> int:
    """Return the width of a table: one space at the left, and two after each column."""
    return 1 + sum(width + 2 for width in widths)


def _parts(name: int, widths: Sequence[int], room: int) -> list[list[int]]:
    """Group column numbers into parts that fit beside the names, each as full as possible, with at least one column."""
    parts: list[list[int]] = [[]]
    for i, width in enumerate(widths):
        if parts[-1] and _total([name, *(widths[j] for j in parts[-1]), width]) > room:
            parts.append([])
        parts[-1].append(i)
    return parts
