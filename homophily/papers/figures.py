"""Figures drawn like the papers': curves, heat maps, bars, sensitivities, topologies and histograms."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from homophily.groups import two_groups
from homophily.keys import taken
from homophily.papers.reproduce import Reproduction
from homophily.papers.tables import numbers, score_in
from homophily.pictures import COLOURS, pyplot
from homophily.storage import writing
from homophily.topology import topologies

_PANEL = (4.2, 3.4)


def written(found: Reproduction, folder: Path) -> list[Path]:
    """NAME.png, where the recipe has a figure and something was played."""
    figure = found.recipe.figure
    if figure is None or all(found.result(row, column, 0) is None for row in found.rows for column in found.columns):
        return []
    drawn = _DRAW[figure.draw](found)
    note = " (a quick, small version)" if found.quick else ""
    drawn.suptitle(found.recipe.title + note, fontsize=10)
    path = folder / f"{found.folder.name}.png"
    with writing(path):
        drawn.savefig(path, dpi=130)
    pyplot().close(drawn)
    return [path]


def _panels(names: list[str]) -> tuple[Any, list[Any]]:
    """A figure with a panel for each name, at most three in a line."""
    wide = min(3, len(names))
    high = -(-len(names) // wide)
    size = (_PANEL[0] * wide, _PANEL[1] * high)
    figure, axes = pyplot().subplots(high, wide, figsize=size, layout="constrained", squeeze=False)
    flat = list(axes.flat)
    for axis, name in zip(flat, names, strict=False):
        axis.set_title(name, fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in flat[len(names) :]:
        axis.set_visible(False)
    return figure, flat


def _curves(found: Reproduction) -> Any:
    """The score over rounds, a line a row, a panel a column: the mean over seeds and, as a band, their range."""
    recipe = found.recipe
    figure, axes = _panels([recipe.columns[column].label for column in found.columns])
    for axis, column in zip(axes, found.columns, strict=False):
        score = recipe.score_of(column)
        for number, row in enumerate(found.rows):
            lines = [_curve(found, row, column, seed, score) for seed in range(found.seeds)]
            there = [line for line in lines if line]
            if there:
                rounds = sorted(set.intersection(*(set(line) for line in there)))
                values = np.array([[line[round] for round in rounds] for line in there])
                look = {"color": COLOURS[number % len(COLOURS)]}
                axis.plot(rounds, values.mean(0), **look, lw=1.2, label=recipe.rows[row].label)
                axis.fill_between(rounds, values.min(0), values.max(0), **look, alpha=0.15, lw=0)
        axis.set(xlabel="round", ylabel=recipe.unit)
    axes[0].legend(frameon=False, fontsize=7)
    return figure


def _curve(found: Reproduction, row: str, column: str, seed: int, score: str) -> dict[int, float]:
    result = found.result(row, column, seed)
    lines = [] if result is None else result["curve"]
    return {line["round"]: value for line in lines if (value := score_in(line, score)) is not None}


def _heatmap(found: Reproduction) -> Any:
    """Who merged whom how often, a panel a row and column."""
    cells = [(row, column) for row in found.rows for column in found.columns if found.result(row, column, 0)]
    recipe = found.recipe
    several = len(found.columns) > 1
    figure, axes = _panels(
        [recipe.rows[r].label + (f", {recipe.columns[c].label}" if several else "") for r, c in cells]
    )
    for axis, (row, column) in zip(axes, cells, strict=False):
        result = found.result(row, column, 0)
        assert result is not None
        merges = np.array(result["merges"], dtype=float)
        axis.imshow(merges, cmap="magma_r", vmax=max(1.0, float(np.quantile(merges, 0.995))), interpolation="nearest")
        axis.set(xlabel="merged", ylabel="peer")
    return figure


def _bars(found: Reproduction) -> Any:
    """A bar a row, in groups of columns; the paper's numbers as short lines."""
    recipe, cells = found.recipe, numbers(found)
    figure, axes = _panels([recipe.unit])
    width = 0.8 / len(found.rows)
    for number, row in enumerate(found.rows):
        for place, column in enumerate(found.columns):
            cell = cells[row][column]
            at = place + (number - (len(found.rows) - 1) / 2) * width
            label = recipe.rows[row].label if place == 0 else None
            axes[0].bar(at, cell.mean or math.nan, width * 0.92, color=COLOURS[number % len(COLOURS)], label=label)
            if cell.printed is not None:
                axes[0].plot([at - width / 2, at + width / 2], [cell.printed] * 2, color="black", lw=1)
    labels = [recipe.columns[column].label for column in found.columns]
    axes[0].set(xticks=range(len(labels)), xticklabels=labels)
    axes[0].legend(frameon=False, fontsize=7)
    return figure


def _sensitivity(found: Reproduction) -> Any:
    """The score over a key whose values are the columns, a line a row."""
    recipe, cells = found.recipe, numbers(found)
    figure, axes = _panels([recipe.unit])
    labels = [recipe.columns[column].label for column in found.columns]
    for number, row in enumerate(found.rows):
        means = [cells[row][column].mean for column in found.columns]
        values = [math.nan if mean is None else mean for mean in means]
        axes[0].plot(
            labels, values, "o-", color=COLOURS[number % len(COLOURS)], ms=3, lw=1.2, label=recipe.rows[row].label
        )
    assert recipe.figure is not None
    axes[0].set(xlabel=recipe.figure.x)
    axes[0].legend(frameon=False, fontsize=7)
    return figure


def _topology(found: Reproduction) -> Any:
    """Each column's graph, peers coloured by their cluster."""
    import networkx

    recipe, row = found.recipe, found.rows[0]
    figure, axes = _panels([recipe.columns[column].label for column in found.columns])
    for axis, column in zip(axes, found.columns, strict=False):
        result = found.result(row, column, 0)
        if result is None:
            continue
        config = found.config(row, column, 0)
        make = topologies.get(config.topology.name)
        clusters = result["clusters"]
        graph = make(**taken(make, {"peers": len(clusters), "seed": config.seed}), **config.topology.keys)
        names = sorted(set(clusters))
        colours = [COLOURS[names.index(cluster) % len(COLOURS)] for cluster in clusters]
        graph = networkx.complete_graph(len(clusters)) if graph is None else graph
        places = networkx.spring_layout(graph, seed=0)
        networkx.draw_networkx(
            graph, places, ax=axis, node_color=[colours[peer] for peer in graph], node_size=24, with_labels=False,
            width=0.4, edge_color="#999999",
        )  # fmt: skip
        axis.axis("off")
    return figure


def _histogram(found: Reproduction) -> Any:
    """The similarities that a few peers last measured, and the two normal distributions that PANM's EM fits to them."""
    recipe, column = found.recipe, found.columns[0]
    figure, axes = _panels([recipe.rows[row].label for row in found.rows])
    for axis, row in zip(axes, found.rows, strict=False):
        result = found.result(row, column, 0)
        values = np.array(sorted(result["similarities"])) if result is not None else np.zeros(0)
        if len(values) < 4:
            continue
        axis.hist(values, bins=30, density=True, color="#cccccc")
        everyone = torch.ones(1, len(values), dtype=torch.bool)
        alike = two_groups(everyone, ~everyone, torch.from_numpy(values)[None], torch.arange(len(values))[None])[0]
        for number, group in enumerate((values[~alike.numpy()], values[alike.numpy()])):
            if not len(group):
                continue
            mean, deviation = float(group.mean()), max(float(group.std()), 1e-3)
            at = np.linspace(mean - 3 * deviation, mean + 3 * deviation, 100)
            high = np.exp(-0.5 * ((at - mean) / deviation) ** 2) / (deviation * math.sqrt(2 * math.pi))
            axis.plot(at, high * len(group) / len(values), color=COLOURS[number], lw=1.2)
        axis.set(xlabel="similarity", ylabel="density")
    return figure


_DRAW: dict[str, Callable[[Reproduction], Any]] = {
    "curves": _curves, "heatmap": _heatmap, "bars": _bars, "sensitivity": _sensitivity, "topology": _topology,
    "histogram": _histogram,
}  # fmt: skip
