"""Draws the papers' figures: curves, heat maps, dots, sensitivities, topologies and histograms."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from homophily.atomic_io import writing
from homophily.papers.reproduce import Reproduction
from homophily.papers.tables import numbers, score_in
from homophily.report.plots import COLOURS, pyplot

_WIDE, _HIGH = 4.2, 3.4  # a panel, in inches
_LINES = (
    "-",
    "--",
    "-.",
    ":",
    (0, (8, 3)),
    (0, (3, 2)),
    (0, (8, 2, 1, 2, 1, 2)),
    (0, (1, 3)),
)  # line styles that stay visible if lines coincide
_LETTERS = 12  # letters of a title per inch
_FAR = 5  # ratio of the largest to the smallest value above which an axis is logarithmic


def stays(found: Reproduction, folder: Path) -> bool:
    """Whether the figure was drawn before and cannot be drawn again yet, because runs are missing.

    Then its page stays as well, so that both show the same runs.
    """
    return found.recipe.figure is not None and _path(found, folder).exists() and bool(found.whole().missing())


def _path(found: Reproduction, folder: Path) -> Path:
    return folder / f"{found.title}.png"


def written(found: Reproduction, folder: Path) -> list[Path]:
    """Write NAME.png and return its path in a list; empty if there is no figure or no finished run, or if it stays."""
    figure, path = found.recipe.figure, _path(found, folder)
    if figure is None or not found.results() or stays(found, folder):
        return []
    drawn = _DRAW[figure.draw](found)
    note = " (a quick, small version)" if found.quick else ""
    width = round(_LETTERS * drawn.get_figwidth())
    drawn.suptitle(textwrap.fill(found.recipe.title + note, width), fontsize=10)
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        drawn.savefig(path, dpi=130)
    pyplot().close(drawn)
    return [path]


def _panels(names: list[str], wide: float = _WIDE, high: float = _HIGH) -> tuple[Any, list[Any]]:
    """Return a figure with one panel per name, at most three per row (four are two by two), and its axes."""
    across = 2 if len(names) == 4 else min(3, len(names))
    down = -(-len(names) // across)
    size = (wide * across, high * down)
    figure, axes = pyplot().subplots(down, across, figsize=size, layout="constrained", squeeze=False)
    flat = list(axes.flat)
    for axis, name in zip(flat, names, strict=False):
        axis.set_title(name, fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in flat[len(names) :]:
        axis.set_visible(False)
    return figure, flat[: len(names)]


def _legend(figure: Any, axis: Any) -> None:
    """Draw the legend below all panels, so that it covers nothing."""
    handles, labels = axis.get_legend_handles_labels()
    across = max(1, int(figure.get_figwidth() * _LETTERS / (max(map(len, labels), default=0) + 8)))
    figure.legend(handles, labels, loc="outside lower center", ncols=across, frameon=False, fontsize=8)


def _upright(unit: str) -> str:
    """Wrap a unit to the height of a panel."""
    return textwrap.fill(unit, round(8 * _HIGH))


def _line(found: Reproduction, row: str) -> dict[str, Any]:
    """Return the line style of a row: a row that is not in the paper is black and drawn on top."""
    label, number = found.recipe.rows[row].label, found.rows.index(row)
    if found.recipe.rows[row].ours:
        return {"label": label, "color": "black", "ls": "-", "lw": 1.1, "zorder": 3}
    return {"label": label, "color": COLOURS[number % len(COLOURS)], "ls": _LINES[number % len(_LINES)], "lw": 1.4}


def _spread(axis: Any, along: str, values: list[float]) -> None:
    """Use a logarithmic scale if the values differ by more than a factor of _FAR."""
    shown = [value for value in values if value > 0]
    if shown and max(shown) > _FAR * min(shown):
        axis.set(**{f"{along}scale": "log"})


def _curves(found: Reproduction) -> Any:
    """The score over rounds, one line per row, one panel per column: the mean over seeds, and their range as a band."""
    recipe = found.recipe
    figure, axes = _panels([recipe.columns[column].label for column in found.columns])
    for axis, column in zip(axes, found.columns, strict=True):
        score = recipe.score_of(column)
        for row in found.rows:
            lines = [_curve(found, row, column, seed, score) for seed in range(found.seeds)]
            finished = [line for line in lines if line]
            if finished:
                rounds = sorted(set.intersection(*(set(line) for line in finished)))
                values = np.array([[line[round] for round in rounds] for line in finished])
                look = _line(found, row)
                axis.plot(rounds, values.mean(0), **look)
                axis.fill_between(rounds, values.min(0), values.max(0), color=look["color"], alpha=0.15, lw=0)
        axis.set(xlabel="round", ylabel=_upright(recipe.unit_of(column)))
    _legend(figure, axes[0])
    return figure


def _curve(found: Reproduction, row: str, column: str, seed: int, score: str) -> dict[int, float]:
    result = found.result(row, column, seed)
    lines = [] if result is None else result["curve"]
    return {line["round"]: value for line in lines if (value := score_in(line, score)) is not None}


def _heatmap(found: Reproduction) -> Any:
    """How often each peer merged with each other peer, one panel per row and column."""
    recipe, several = found.recipe, len(found.columns) > 1
    results = {
        recipe.rows[row].label + (f", {recipe.columns[column].label}" if several else ""): result
        for row in found.rows
        for column in found.columns
        if (result := found.result(row, column, 0)) is not None
    }
    figure, axes = _panels(list(results), wide=_HIGH + 0.4)
    for axis, result in zip(axes, results.values(), strict=True):
        merges = np.array(result["merges"], dtype=float)
        most = max(1.0, float(np.quantile(merges, 0.995)))  # one pair in 200 may be darker than the scale
        image = axis.imshow(merges.T, cmap="magma_r", vmax=most, interpolation="nearest")
        axis.set(xlabel="peer", ylabel="merged with")
        axis.locator_params(integer=True)
        figure.colorbar(image, ax=axis, shrink=0.75, label="times", extend="max")
    return figure


def _dots(found: Reproduction) -> Any:
    """One line per row, one panel per column: our mean ± standard deviation, the paper's value as an open square."""
    recipe, cells = found.recipe, numbers(found)
    size = 1.2 + 0.24 * len(found.rows)
    figure, axes = _panels([recipe.columns[column].label for column in found.columns], wide=5.2, high=size)
    places = range(len(found.rows))
    for axis, column in zip(axes, found.columns, strict=True):
        mine = [cells[row][column] for row in found.rows]
        means = [math.nan if cell.mean is None else cell.mean for cell in mine]
        printed = [math.nan if cell.printed is None else cell.printed for cell in mine]
        bars = [cell.deviation or 0.0 for cell in mine]
        axis.errorbar(means, places, xerr=bars, fmt="o", ms=5, color=COLOURS[0], label="ours")
        axis.plot(printed, places, "s", ms=6, mfc="none", color=COLOURS[1], label="the paper's")
        _spread(axis, "x", [*means, *printed])
        axis.set(xlabel=recipe.unit_of(column), yticks=places, yticklabels=[recipe.rows[r].label for r in found.rows])
        axis.grid(axis="y", lw=0.3)
        axis.invert_yaxis()
    if not found.quick:
        _legend(figure, axes[0])
    return figure


def _sensitivity(found: Reproduction) -> Any:
    """The score over a config key whose values are the columns, one line per row."""
    recipe, cells = found.recipe, numbers(found)
    figure, (axis,) = _panels([""])
    labels = [recipe.columns[column].label for column in found.columns]
    shown: list[float] = []
    for row in found.rows:
        mine = [cells[row][column] for column in found.columns]
        values = [math.nan if cell.mean is None else cell.mean for cell in mine]
        bars = [cell.deviation or 0.0 for cell in mine]
        axis.errorbar(labels, values, yerr=bars, marker="o", ms=4, elinewidth=0.8, capsize=2, **_line(found, row))
        shown += values
    _spread(axis, "y", shown)
    assert recipe.figure is not None
    axis.set(xlabel=recipe.figure.x, ylabel=_upright(recipe.unit))
    _legend(figure, axis)
    return figure


def _topology(found: Reproduction) -> Any:
    """The graph of final neighbours, one panel per row, with peers coloured by cluster."""
    import networkx

    recipe, column = found.recipe, found.columns[0]
    results = {
        recipe.rows[row].label: result for row in found.rows if (result := found.result(row, column, 0)) is not None
    }
    figure, axes = _panels(list(results))
    for axis, result in zip(axes, results.values(), strict=True):
        clusters = result["clusters"]
        names = sorted(set(clusters))
        graph = networkx.Graph((peer, other) for peer, mine in enumerate(result["neighbours"]) for other in mine)
        graph.add_nodes_from(range(len(clusters)))
        networkx.draw_networkx(
            graph, networkx.spring_layout(graph, seed=0), ax=axis, node_size=24, with_labels=False, width=0.3,
            node_color=[COLOURS[names.index(clusters[peer]) % len(COLOURS)] for peer in graph], edge_color="#bbbbbb",
        )  # fmt: skip
        axis.spines[:].set(visible=True, color="#dddddd")
    return figure


def _histogram(found: Reproduction) -> Any:
    """One peer's similarities to peers of its own cluster and to others, each with a fitted normal distribution."""
    recipe, column = found.recipe, found.columns[0]
    figure, axes = _panels([recipe.rows[row].label for row in found.rows])
    for axis, row in zip(axes, found.rows, strict=True):
        result = found.result(row, column, 0)
        groups = {"inside": [], "outside": []} if result is None else result["similarities"]
        everyone = [value for values in groups.values() for value in values]
        if not everyone:
            continue
        bins = np.linspace(min(everyone), max(everyone), 31)
        for number, (name, label) in enumerate((("inside", "own cluster"), ("outside", "other clusters"))):
            values, colour = np.array(groups[name]), COLOURS[number]
            if len(values) < 2:
                continue
            axis.hist(values, bins=bins, density=True, color=colour, alpha=0.4, label=label)
            mean, deviation = float(values.mean()), max(float(values.std()), 1e-3)
            at = np.linspace(bins[0], bins[-1], 200)
            high = np.exp(-0.5 * ((at - mean) / deviation) ** 2) / (deviation * math.sqrt(2 * math.pi))
            axis.plot(at, high, color=colour, lw=1.2)
        axis.set(xlabel="similarity", ylabel="density")
    _legend(figure, axes[0])
    return figure


_DRAW: dict[str, Callable[[Reproduction], Any]] = {
    "curves": _curves, "heatmap": _heatmap, "dots": _dots, "sensitivity": _sensitivity, "topology": _topology,
    "histogram": _histogram,
}  # fmt: skip
