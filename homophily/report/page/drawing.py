"""Draws every figure of a report as PNG and SVG, from the data that the page shows, and writes its tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from homophily.atomic_io import write_text, writing
from homophily.report.page.figures import (
    Absent,
    Bars,
    Figure,
    Frames,
    Graph,
    Histogram,
    Intervals,
    Lines,
    Matrix,
    Points,
    Table,
    Timeline,
    View,
)
from homophily.report.plots import COLOURS, pyplot

_ENDINGS = {"Markdown": "md", "LaTeX": "tex", "CSV": "csv"}
_MARKS = "os^Dvp"
_STYLES = ("-", "--", ":", "-.")
_GREY = "#bbbbbb"
_INK = "#222222"


def draw_all(views: Sequence[View], folder: Path) -> list[Path]:
    """Write every figure and table of the views below ``folder``; returns the files."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for number, view in enumerate(views):
        prefix = f"{number + 1}-{_file_name(view.name)}-" if len(views) > 1 else ""
        for tab in view.tabs:
            frames = next((figure.frames for figure in tab.figures if isinstance(figure, Matrix)), None)
            for figure in tab.figures:
                written += _write(figure, frames, folder / f"{prefix}{figure.id}")
    return written


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text)[-40:].strip("-") or "folder"


def _write(figure: Figure, frames: Frames | None, stem: Path) -> list[Path]:
    if isinstance(figure, Absent):
        return []
    if isinstance(figure, Table):
        texts = {stem.with_name(f"{stem.name}.{_ENDINGS[name]}"): text for name, text in figure.texts().items()}
        for path, text in texts.items() if figure.copied else ():
            write_text(path, text)
        return list(texts) if figure.copied else []
    plt = pyplot()
    square = isinstance(figure, Matrix | Graph)
    canvas, axis = plt.subplots(figsize=(6, 6) if square else (6.4, 4), layout="constrained")
    axis.set_title(_literal(figure.title))
    _DRAWN[type(figure)](axis, figure, frames)
    paths = [stem.with_name(f"{stem.name}.{ending}") for ending in ("png", "svg")]
    for path in paths:
        with writing(path):
            canvas.savefig(path, dpi=130)
    plt.close(canvas)
    return paths


def _literal(text: str) -> str:
    """The text as matplotlib must write it to show it unchanged: a dollar sign would begin a formula."""
    return text.replace("$", r"\$")


def _tone(colour: int) -> str:
    return _INK if colour < 0 else COLOURS[colour % len(COLOURS)]


def _known(values: Sequence[float | None]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _plain(axis: Any) -> None:
    axis.grid(axis="y", color="#dddddd", lw=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _lines(axis: Any, figure: Lines, frames: Frames | None) -> None:
    for one in figure.series:
        style = "--" if one.dashed else "-" if one.colour < 0 else _STYLES[one.colour // len(COLOURS) % len(_STYLES)]
        width = 2.4 if one.colour < 0 else 1.5
        axis.plot(one.x, _known(one.y), style, color=_tone(one.colour), lw=width, label=_literal(one.name))
        if one.low is not None and one.high is not None:
            axis.fill_between(one.x, _known(one.low), _known(one.high), color=_tone(one.colour), alpha=0.15, lw=0)
    axis.set(xlabel=_literal(figure.x_label), ylabel=_literal(figure.y_label), ylim=figure.y_range)
    _plain(axis)
    if all(float(value).is_integer() for one in figure.series for value in one.x):
        axis.xaxis.get_major_locator().set_params(integer=True)
    if figure.x_names:
        axis.set_xticks(range(len(figure.x_names)), [_literal(name) for name in figure.x_names])
    if len(figure.series) > 1:
        axis.legend(frameon=False, fontsize=8)


def _intervals(axis: Any, figure: Intervals, frames: Frames | None) -> None:
    places = np.arange(len(figure.names))
    means, low, high = (_known(values) for values in (figure.means, figure.low, figure.high))
    for place in places:
        ends = [[means[place] - low[place]], [high[place] - means[place]]]
        bars = {} if np.isnan(low[place]) else {"xerr": ends}
        axis.errorbar([means[place]], [place], fmt="o", color=_tone(int(place)), capsize=4, **bars)
    axis.set_yticks(places, [_literal(name) for name in figure.names])
    axis.invert_yaxis()
    axis.set_xlabel(_literal(figure.label))
    _plain(axis)


def _bars(axis: Any, figure: Bars, frames: Frames | None) -> None:
    values = _known(figure.values)
    above = np.ones(len(values), dtype=bool) if figure.threshold is None else values > figure.threshold
    axis.bar(np.arange(1, len(values) + 1), values, color=[COLOURS[0] if signal else _GREY for signal in above])
    if figure.threshold is not None:
        axis.axhline(figure.threshold, color=COLOURS[1], lw=1.4, ls="--")
        at = (len(values) + 0.4, figure.threshold)
        axis.annotate(figure.threshold_label, at, ha="right", va="bottom", fontsize=8)
    axis.set(xlabel=figure.x_label, ylabel=figure.y_label)
    _plain(axis)


def _points(axis: Any, figure: Points, frames: Frames | None) -> None:
    for start, stop, name in figure.regions:
        axis.axvspan(start, stop, color="#eeeeee", lw=0, zorder=0)
        axis.annotate(
            name, ((start + stop) / 2, 1.0), xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize=7
        )
    mark = np.zeros_like(figure.colour) if figure.mark is None else figure.mark
    for colour, kind in sorted(set(zip(figure.colour.tolist(), mark.tolist(), strict=True))):
        here = (figure.colour == colour) & (mark == kind)
        both = [names[place] for names, place in ((figure.colours, colour), (figure.marks, kind)) if len(names) > 1]
        label = _literal(", ".join(both)) if both else None
        axis.scatter(
            figure.x[here], figure.y[here], s=14, color=_tone(colour), marker=_MARKS[kind % len(_MARKS)], label=label
        )
    axis.set(xlabel=_literal(figure.x_label), ylabel=_literal(figure.y_label))
    _plain(axis)
    if 1 < len(figure.colours) <= len(COLOURS):
        axis.legend(frameon=False, fontsize=8)


def _matrix(axis: Any, figure: Matrix, frames: Frames | None) -> None:
    """The merges of all shown rounds."""
    size = figure.frames.size
    total = np.zeros(size * size)
    for cells, counts in zip(figure.frames.cells, figure.frames.counts, strict=True):
        total[cells] += counts
    shown = np.ma.masked_equal(total.reshape(size, size), 0)
    image = axis.imshow(shown, cmap="Blues", interpolation="nearest", vmin=0)
    axis.figure.colorbar(image, ax=axis, shrink=0.7, label="merges")
    scale, start = size / sum(count for _, count in figure.groups), 0.0
    middles = []
    for _, count in figure.groups:
        axis.axhline(start - 0.5, color="#888888", lw=0.6)
        axis.axvline(start - 0.5, color="#888888", lw=0.6)
        middles.append(start + count * scale / 2 - 0.5)
        start += count * scale
    names = [_literal(name) for name, _ in figure.groups] if len(figure.groups) > 1 else []
    axis.set_xticks(middles[: len(names)], names, rotation=90)
    axis.set_yticks(middles[: len(names)], names)


def _graph(axis: Any, figure: Graph, frames: Frames | None) -> None:
    """The merges of the last shown round."""
    found = figure.frames or frames
    assert found is not None
    first, second = found.cells[-1] // found.size, found.cells[-1] % found.size
    strength = found.counts[-1] / max(1, found.counts[-1].max(initial=1))
    strongest = np.argsort(-strength, kind="stable")[:20_000]
    from matplotlib.collections import LineCollection

    ends = np.stack([figure.x, 1 - figure.y], 1)
    tones = [
        _tone(int(figure.colour[a])) if figure.colour[a] == figure.colour[b] else _INK
        for a, b in zip(first[strongest], second[strongest], strict=True)
    ]
    segments = list(np.stack([ends[first[strongest]], ends[second[strongest]]], 1))
    axis.add_collection(
        LineCollection(segments, colors=tones, linewidths=0.6, alpha=max(0.08, min(0.8, 400 / max(1, len(segments)))))
    )
    for group in range(len(figure.colours)):
        here = figure.colour == group
        axis.scatter(
            *ends[here].T,
            s=12,
            color=_tone(group),
            marker=_MARKS[group % len(_MARKS)],
            zorder=2,
            label=_literal(figure.colours[group]),
        )
    if 1 < len(figure.colours) <= len(COLOURS):
        axis.legend(frameon=False, fontsize=8)
    axis.set_axis_off()


def _histogram(axis: Any, figure: Histogram, frames: Frames | None) -> None:
    """The first peer in its last measured round."""
    peer, measured = next(iter(figure.measured.items()))
    last = measured[-1]
    edges = np.histogram_bin_edges(last.values, bins=max(6, min(30, round(2 * len(last.values) ** 0.5) + 4)))
    axis.hist(last.values, bins=edges, color=_GREY)
    x = np.linspace(edges[0], edges[-1], 200)
    for number, (name, mean, deviation, size) in enumerate(last.groups):
        if deviation > 0:
            height = size * (edges[1] - edges[0]) / (deviation * (2 * np.pi) ** 0.5)
            axis.plot(x, height * np.exp(-0.5 * ((x - mean) / deviation) ** 2), color=_tone(number), label=name)
    axis.set(xlabel=figure.x_label, ylabel=f"peers ({_literal(peer)}, round {last.round})")
    _plain(axis)
    if last.groups:
        axis.legend(frameon=False, fontsize=8)


def _timeline(axis: Any, figure: Timeline, frames: Frames | None) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    tones = ["#ffffff", _GREY, COLOURS[0], COLOURS[1]]
    axis.imshow(figure.events, cmap=ListedColormap(tones), vmin=0, vmax=3, aspect="auto", interpolation="nearest")
    axis.set_yticks(range(len(figure.rows)), [_literal(name) for name in figure.rows])
    shown = range(0, len(figure.rounds), max(1, len(figure.rounds) // 8))
    axis.set_xticks(list(shown), [str(figure.rounds[place]) for place in shown])
    axis.set_xlabel("round")
    patches = [Patch(color=tone, label=text) for tone, text in zip(tones[1:], figure.meaning[1:], strict=True)]
    axis.legend(handles=patches, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3, frameon=False)


_DRAWN: dict[type[Figure], Callable[[Any, Any, Frames | None], None]] = {
    Lines: _lines, Intervals: _intervals, Bars: _bars, Points: _points, Matrix: _matrix, Graph: _graph,
    Histogram: _histogram, Timeline: _timeline,
}  # fmt: skip
