"""Plots; they need matplotlib (the ``report`` extra)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from homophily.atomic_io import writing
from homophily.errors import UserError
from homophily.experiments.discovery import Discovery
from homophily.plugins.optional import imported
from homophily.report.sweep_figure import Curve, Panel, panels
from homophily.runs.comparison import Comparison

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")  # colour-blind safe
_MARKS = "osD^vP*X"
_TICKS = 9  # values of a swept key that are all written at its axis


def pyplot() -> Any:
    """Return matplotlib.pyplot with the Agg backend, which opens no window."""
    imported("matplotlib", "report", "drawing a figure").use("Agg")
    from matplotlib import pyplot as found

    return found


def acquaintance(found: Discovery, path: Path) -> None:
    """Plot peers in the first two signal directions, by family (colour) and true cluster (marker), and the spectrum."""
    plt = pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4), layout="constrained")
    place = found.kinship.place.cpu().numpy()
    family = found.kinship.family
    labels = [0] * len(place) if family is None else family.tolist()
    colours = [COLOURS[label % len(COLOURS)] for label in labels]
    clusters = [0] * len(place) if found.cluster is None else found.cluster.tolist()
    for cluster in sorted(set(clusters)):
        rows = [i for i, c in enumerate(clusters) if c == cluster]
        label = found.cluster_names[cluster] if found.cluster is not None and len(set(clusters)) > 1 else None
        look = {"c": [colours[i] for i in rows], "marker": _MARKS[cluster % len(_MARKS)], "s": 36, "alpha": 0.85}
        left.scatter(place[rows, 0], place[rows, 1], **look, linewidths=0, label=label)
    if len(set(clusters)) > 1:
        left.legend(title="true cluster", frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    count = "a continuum" if family is None else f"{len(found.families or [])} families"
    count = count if found.conclusive else "no difference found"
    left.set(title=f"{len(place)} peers, {count}", xlabel="first direction", ylabel="second direction")
    values = found.kinship.squared.clamp(min=0).sqrt().tolist()[:20]
    shown = range(1, len(values) + 1)
    right.bar(shown, values, color=[COLOURS[0] if k <= found.kinship.rank else "#cccccc" for k in shown])
    if found.kinship.enough_samples:
        edge = found.kinship.edge**0.5
        right.axhline(edge, color=COLOURS[1], lw=1.2)
        at = (len(values) + 0.4, edge)
        right.annotate("noise edge", at, color=COLOURS[1], ha="right", va="bottom", fontsize=8)
    right.set(title=f"{found.kinship.rank} directions above the noise", xlabel="direction", ylabel="singular value")
    right.xaxis.get_major_locator().set_params(integer=True)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    with writing(path):
        figure.savefig(path, dpi=130)
    plt.close(figure)


def sweep(comparison: Comparison, path: Path) -> None:
    """Plot the score against each swept key: mean over seeds, and a band of one standard deviation on both sides."""
    found = panels(comparison)
    if not found:
        raise UserError(f"{comparison.path} has no finished runs with several values of a swept key")
    plt, size = pyplot(), (1.5 + 4.2 * len(found), 3.6)
    figure, axes = plt.subplots(1, len(found), figsize=size, layout="constrained", squeeze=False)
    for axis, panel in zip(axes[0], found, strict=True):
        for number, curve in enumerate(panel.curves):
            _draw_curve(axis, panel, curve, number)
        axis.set_xscale("log" if panel.scale == "log" else "linear")
        at = range(len(panel.values)) if panel.scale == "names" else panel.values
        if len(panel.values) <= _TICKS:
            axis.set_xticks(at, [str(value) for value in panel.values], minor=False)
            axis.minorticks_off()
        better = "higher" if panel.higher_is_better else "lower"
        axis.set(xlabel=panel.key, ylabel=f"{panel.score} ({better} is better)")
        axis.grid(axis="y", color="#dddddd", lw=0.6)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    with writing(path):
        figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw_curve(axis: Any, panel: Panel, curve: Curve, number: int) -> None:
    """A line with a band over seeds; a horizontal, dashed line for a method that does not have the key."""
    look = {"color": COLOURS[number % len(COLOURS)], "lw": 1.6, "label": curve.name}
    known = [(mean, std or 0.0) for mean, std in zip(curve.mean, curve.std, strict=True) if mean is not None]
    if not known:
        return
    if not curve.values:
        ((mean, std),) = known
        axis.axhline(mean, linestyle=(0, (4, 3)), **look)
        axis.axhspan(mean - std, mean + std, color=look["color"], alpha=0.12, linewidth=0)
        return
    kept = [value for value, mean in zip(curve.values, curve.mean, strict=True) if mean is not None]
    at = [panel.values.index(value) if panel.scale == "names" else value for value in kept]
    axis.plot(
        at, [mean for mean, _ in known], marker=_MARKS[number // len(COLOURS) % len(_MARKS)], markersize=4, **look
    )
    low, high = [mean - std for mean, std in known], [mean + std for mean, std in known]
    axis.fill_between(at, low, high, color=look["color"], alpha=0.15, linewidth=0)
