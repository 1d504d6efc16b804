"""The data of a report's figures and tables. The page shows them in a browser; ``drawing`` draws the same data.

Every figure has an id (unique in its tab), a title and a text. Numbers that are not known are None.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from homophily.atomic_io import plain
from homophily.report.page.text_tables import as_csv, as_latex, as_markdown

Array = np.ndarray[Any, np.dtype[Any]]
Numbers = Sequence[float | None]
INK = -1  # the colour of text, for a line that stands for everything


@dataclass(frozen=True)
class Series:
    """A line y(x), with an optional band from ``low`` to ``high``."""

    name: str
    x: Sequence[float]
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None
    colour: int = INK
    dashed: bool = False

    def as_dict(self) -> dict[str, Any]:
        band = {} if self.low is None or self.high is None else {"low": rounded(self.low), "high": rounded(self.high)}
        style = {"colour": self.colour, "dashed": self.dashed}
        return {"name": self.name, "x": rounded(self.x), "y": rounded(self.y), **band, **style}


@dataclass(frozen=True)
class Figure:
    """What all figures have."""

    id: str
    title: str
    text: str

    def as_dict(self) -> dict[str, Any]:
        return {"kind": type(self).__name__.lower(), "id": self.id, "title": self.title, "text": self.text}


@dataclass(frozen=True)
class Absent(Figure):
    """A figure that is left out; the text says why."""


@dataclass(frozen=True)
class Lines(Figure):
    """Curves over a common axis."""

    x_label: str
    y_label: str
    series: Sequence[Series]
    x_names: Sequence[str] = ()  # if x is not a number: names of 0, 1, 2, ...
    limits: tuple[float, float] | None = None  # of y, if they are known before the values are

    def as_dict(self) -> dict[str, Any]:
        axes = {"x_label": self.x_label, "y_label": self.y_label, "x_names": list(self.x_names)}
        series = [one.as_dict() for one in self.series]
        return {**super().as_dict(), **axes, "y_range": rounded(self.y_range), "series": series}

    @property
    def y_range(self) -> tuple[float, float]:
        """The lines and their bands, but of a wide band only as much as the lines are high: below them and above."""
        if self.limits is not None:
            edge = 0.03 * (self.limits[1] - self.limits[0])
            return self.limits[0] - edge, self.limits[1] + edge
        values = [value for one in self.series for value in one.y if value is not None] or [0.0, 1.0]
        bands = [value for one in self.series for value in (*(one.low or ()), *(one.high or ())) if value is not None]
        least, most = min(values), max(values)
        room = most - least or abs(most) * 0.1 or 1.0
        low = max(min([least, *bands]), least - room)
        high = min(max([most, *bands]), most + room)
        edge = 0.05 * (high - low or room)
        return low - edge, high + edge


@dataclass(frozen=True)
class Intervals(Figure):
    """One mean and its interval per name; ``low`` and ``high`` are None if there is no interval.

    missing: why a mean is None, empty if it is known.
    """

    label: str
    names: Sequence[str]
    means: Numbers
    low: Numbers
    high: Numbers
    missing: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        values = {key: rounded(getattr(self, key)) for key in ("means", "low", "high")}
        texts = {"label": self.label, "names": list(self.names), "missing": list(self.missing)}
        return {**super().as_dict(), **texts, **values}


@dataclass(frozen=True)
class Bars(Figure):
    """Values from the largest to the smallest, and a threshold between signal and noise."""

    x_label: str
    y_label: str
    values: Numbers
    threshold: float | None
    threshold_label: str

    def as_dict(self) -> dict[str, Any]:
        axes = {"x_label": self.x_label, "y_label": self.y_label, "values": rounded(self.values)}
        threshold = {"threshold": self.threshold, "threshold_label": self.threshold_label}
        return {**super().as_dict(), **axes, **threshold}


@dataclass(frozen=True)
class Points(Figure):
    """One point per peer: its place, its colour (an index into ``colours``) and its mark (an index into ``marks``).

    Without names of marks, marks repeat what colours say.
    """

    x_label: str
    y_label: str
    peers: Array  # [P] numbers of the peers
    x: Array
    y: Array
    colour: Array
    colours: Sequence[str]
    mark: Array | None = None
    marks: Sequence[str] = ()
    regions: Sequence[tuple[float, float, str]] = ()  # from, to and name: parts of the x axis

    def as_dict(self) -> dict[str, Any]:
        return {
            **super().as_dict(),
            "x_label": self.x_label,
            "y_label": self.y_label,
            "peers": packed(self.peers, "u4"),
            "x": packed(self.x, "f4"),
            "y": packed(self.y, "f4"),
            "colour": packed(self.colour, "u2"),
            "colours": list(self.colours),
            "mark": packed(np.zeros_like(self.colour) if self.mark is None else self.mark, "u2"),
            "marks": list(self.marks),
            "regions": [list(region) for region in self.regions],
        }


@dataclass(frozen=True)
class Frames:
    """Sparse matrices [size, size], one per shown round: sorted cells (row * size + column) and their counts."""

    size: int
    rounds: Sequence[int]
    cells: Sequence[Array]
    counts: Sequence[Array]

    def as_dict(self) -> dict[str, Any]:
        steps = [np.diff(cells, prepend=0) for cells in self.cells]
        ones = all(bool((count == 1).all()) for count in self.counts)
        return {
            "size": self.size,
            "rounds": list(self.rounds),
            "lengths": [len(cells) for cells in self.cells],
            "steps": varints(np.concatenate([np.zeros(0, np.int64), *steps])),
            "counts": None if ones else varints(np.concatenate([np.zeros(0, np.int64), *self.counts])),
        }


@dataclass(frozen=True)
class Matrix(Figure):
    """Merges by round: row i, column j for peer i that merged the model of peer j; rows in the order of ``peers``."""

    frames: Frames
    peers: Array  # [N] the peer of each row, in the order of the rows, before cells are combined
    groups: Sequence[tuple[str, int]]  # name and number of peers, in the order of the rows

    def as_dict(self) -> dict[str, Any]:
        groups = [list(group) for group in self.groups]
        return {
            **super().as_dict(),
            "frames": self.frames.as_dict(),
            "peers": packed(self.peers, "u4"),
            "groups": groups,
        }


@dataclass(frozen=True)
class Graph(Figure):
    """Peers at fixed places, and the merges of a round as edges; ``frames`` has the rows of ``matrix`` if None."""

    frames: Frames | None
    peers: Array  # [N] the peer of each place
    x: Array  # [N] from 0 to 1
    y: Array
    colour: Array
    colours: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        return {
            **super().as_dict(),
            "frames": None if self.frames is None else self.frames.as_dict(),
            "peers": packed(self.peers, "u4"),
            "x": packed(self.x * 65535, "u2"),
            "y": packed(self.y * 65535, "u2"),
            "colour": packed(self.colour, "u2"),
            "colours": list(self.colours),
        }


@dataclass(frozen=True)
class Measured:
    """The similarities that one peer measured in one round."""

    round: int
    values: Array
    groups: Sequence[tuple[str, float, float, int]] = ()  # name, mean, standard deviation and size of each group


@dataclass(frozen=True)
class Histogram(Figure):
    """The similarities of one chosen peer in one chosen round."""

    x_label: str
    measured: Mapping[str, Sequence[Measured]]  # by the name of the peer

    def as_dict(self) -> dict[str, Any]:
        peers = [
            {
                "peer": peer,
                "rounds": [
                    {"round": one.round, "values": packed(one.values, "f4"), "groups": [list(g) for g in one.groups]}
                    for one in rounds
                ],
            }
            for peer, rounds in self.measured.items()
        ]
        return {**super().as_dict(), "x_label": self.x_label, "measured": peers}


@dataclass(frozen=True)
class Timeline(Figure):
    """What happened between a real peer and each other peer, by round; 0 means nothing."""

    rows: Sequence[str]
    rounds: Sequence[int]
    events: Array  # [rows, rounds] an index into ``meaning``
    meaning: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        values = {"rows": list(self.rows), "rounds": list(self.rounds), "meaning": list(self.meaning)}
        return {**super().as_dict(), **values, "events": packed(self.events, "u1")}


@dataclass(frozen=True)
class Table(Figure):
    """Rows of strings under headings; the first column holds names."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    copied: bool = True  # offered as Markdown, LaTeX and CSV

    def as_dict(self) -> dict[str, Any]:
        values = {"headings": list(self.headings), "rows": [list(row) for row in self.rows]}
        return {**super().as_dict(), **values, "texts": self.texts() if self.copied else {}}

    def texts(self) -> dict[str, str]:
        """The table as Markdown, LaTeX and CSV."""
        made = {"Markdown": as_markdown, "LaTeX": as_latex, "CSV": as_csv}
        return {name: make(self.headings, self.rows) for name, make in made.items()}


@dataclass(frozen=True)
class Tab:
    """Figures that are shown together. ``rounds``: the steps of the slider that all of them follow."""

    name: str
    figures: Sequence[Figure]
    rounds: Sequence[int] = ()

    def as_dict(self) -> dict[str, Any]:
        adds = any(isinstance(figure, Matrix) for figure in self.figures)
        figures = [figure.as_dict() for figure in self.figures]
        return {"name": self.name, "rounds": list(self.rounds), "adds": adds, "figures": figures}


@dataclass(frozen=True)
class View:
    """All about one folder."""

    name: str  # of the folder
    title: str
    state: str  # finished, running or stopped; of the live page also waiting or unreadable
    facts: Sequence[tuple[str, str]]  # shown first: what, and its value
    tabs: Sequence[Tab]
    notes: Sequence[str] = ()
    peers: Sequence[str] = field(default=())  # names, if peers have any

    def as_dict(self) -> dict[str, Any]:
        shown = {key: list(getattr(self, key)) for key in ("facts", "notes", "peers")}
        plain_text = {"name": self.name, "title": self.title, "state": self.state}
        found: dict[str, Any] = plain({**plain_text, **shown, "tabs": [tab.as_dict() for tab in self.tabs]})
        return found


def rounded(values: Numbers) -> list[float | None]:
    """The values with six significant digits, which no screen can show."""
    return [None if value is None else float(f"{value:.6g}") for value in values]


def packed(values: Array, dtype: str) -> str:
    """An array as base64 of little-endian numbers."""
    array = np.asarray(values)
    whole = np.rint(array) if not dtype.startswith("f") else array
    return base64.b64encode(whole.astype(f"<{dtype}").tobytes()).decode()


def varints(values: Array) -> str:
    """Whole numbers from 0 up, as base64 of 7 bits per byte, the lowest first; the high bit says that more follow."""
    left = np.asarray(values, dtype=np.uint64)
    columns, more = [], [np.ones(len(left), dtype=bool)]
    while bool(more[-1].any()):
        columns.append((left & np.uint64(127)).astype(np.uint8))
        left = left >> np.uint64(7)
        more.append(more[-1] & (left > 0))
    if not columns:
        return ""
    for column, follow in zip(columns, more[1:], strict=True):
        column[follow] |= 128
    table, kept = np.stack(columns, 1), np.stack(more[:-1], 1)
    return base64.b64encode(table[kept].tobytes()).decode()
